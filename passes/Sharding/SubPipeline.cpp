#include "passes/Sharding/SubPipeline.h"

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "passes/CostModel/Cost.h"
#include "passes/Planning/TwoStream.h"
#include "passes/Sharding/Passes.h"
#include "llvm/ADT/StringSet.h"
#include <numeric>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

constexpr int kHalves = 2;

bool isCollective(Operation *op) {
  return isa<AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp>(op);
}

// Ops that become views or nothing.
bool isFree(Operation *op) {
  return isa<LoadOp, StoreOp, ConstantOp, ReshapeOp, TransposeOp, SliceOp,
             ExpandOp>(op);
}

// One result element per operand element: what joins the result of a
// collective to the rest (bias, residual) is made of these.
bool joins(Operation *op) {
  return isFree(op) || isa<AddOp, SubOp, MulOp, DivOp, NegOp, CastOp>(op);
}

double bytesOf(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  double bits = type.getElementType().isIntOrFloat()
                    ? type.getElementType().getIntOrFloatBitWidth()
                    : 64;
  return double(type.getNumElements()) * std::max(1.0, bits / 8);
}

class Doubler {
public:
  Doubler(ModuleOp module, const costmodel::Cluster &cluster, int level,
          SubPipelineCounts &counts)
      : module(module), mesh(module->getAttrOfType<MeshAttr>(kMeshAttr)),
        cluster(cluster), level(level), counts(counts) {}

  void run() {
    for (TransferOp transfer : module.getOps<TransferOp>())
      if (transfer.getKind() != pipe::Action::S)
        received.insert({transfer.getTarget().getRootReference(),
                         transfer.getTarget().getLeafReference()});
    for (StageOp stage : module.getOps<StageOp>())
      doubleStage(stage);
    doubleTransfers();
  }

private:
  static bool isPerMicrobatch(ActionOp action) {
    return action.getKind() != pipe::Action::S &&
           action.getKind() != pipe::Action::U;
  }
  static std::string nameOf(StringRef value, int half) {
    return (value + ".half" + Twine(half)).str();
  }

  //===--------------------------------------------------------------------===//
  // Values and transfers
  //===--------------------------------------------------------------------===//

  void doubleStage(StageOp stage) {
    doubled.clear();
    kinds.clear();
    for (ValueOp value : stage.getOps<ValueOp>()) {
      kinds[value.getSymName()] = value.getKind();
      if (received.contains({stage.getSymNameAttr(), value.getSymNameAttr()}))
        doubled.insert(value.getSymName());
    }
    for (ActionOp action : stage.getOps<ActionOp>())
      if (isPerMicrobatch(action))
        for (StoreOp store : action.getOps<StoreOp>())
          if (!store.getAccumulate())
            doubled.insert(store.getValue());
    for (ValueOp value : llvm::make_early_inc_range(stage.getOps<ValueOp>())) {
      if (!doubled.contains(value.getSymName()))
        continue;
      OpBuilder b(value);
      for (int half = 0; half < kHalves; ++half) {
        auto copy = cast<ValueOp>(b.clone(*value));
        copy.setSymName(nameOf(value.getSymName(), half));
      }
      value.erase();
    }
    for (ActionOp action : stage.getOps<ActionOp>())
      if (isPerMicrobatch(action))
        doubleAction(action);
  }

  // All of the first half stand before those of the second: transfers between
  // two stages run in this order.
  void doubleTransfers() {
    SmallVector<TransferOp> transfers;
    for (TransferOp transfer : module.getOps<TransferOp>())
      if (transfer.getKind() != pipe::Action::S)
        transfers.push_back(transfer);
    if (transfers.empty())
      return;
    OpBuilder b(transfers.front());
    auto path = [&](SymbolRefAttr value, int half) {
      return SymbolRefAttr::get(
          value.getRootReference(),
          {FlatSymbolRefAttr::get(module.getContext(),
                                  nameOf(value.getLeafReference(), half))});
    };
    for (int half = 0; half < kHalves; ++half)
      for (TransferOp transfer : transfers) {
        auto copy = cast<TransferOp>(b.clone(*transfer));
        copy.setSymName(nameOf(transfer.getSymName(), half));
        copy.setSourceAttr(path(transfer.getSource(), half));
        copy.setTargetAttr(path(transfer.getTarget(), half));
      }
    for (TransferOp transfer : transfers)
      transfer.erase();
  }

  //===--------------------------------------------------------------------===//
  // Actions
  //===--------------------------------------------------------------------===//

  // What is the same in both halves stands once.
  bool isShared(Operation *op) {
    if (isa<ConstantOp>(op))
      return true;
    auto load = dyn_cast<LoadOp>(op);
    return load && !doubled.contains(load.getValue()) &&
           kinds.lookup(load.getValue()) != ValueKind::input;
  }

  void doubleAction(ActionOp action) {
    Block &block = action.getBody().front();
    SmallVector<Operation *> ops;
    for (Operation &op : block)
      ops.push_back(&op);
    bool communicates = llvm::any_of(ops, isCollective);
    ++(communicates ? counts.interleaved : counts.inOrder);
    std::vector<planning::Issue> order;
    if (communicates) {
      order = planning::orderHalves(chainOf(ops), level);
    } else {
      for (int half = 0; half < kHalves; ++half)
        for (int task = 0; task < static_cast<int>(ops.size()); ++task)
          order.push_back({half, task});
    }
    OpBuilder b = OpBuilder::atBlockEnd(&block);
    IRMapping mapping[kHalves];
    for (const planning::Issue &issue : order) {
      Operation *op = ops[issue.task];
      if (issue.half > 0 && isShared(op)) {
        mapping[issue.half].map(op->getResult(0),
                                mapping[0].lookup(op->getResult(0)));
        continue;
      }
      Operation *copy = b.clone(*op, mapping[issue.half]);
      if (issue.half > 0)
        copy->setAttr(kSubBatchAttr, b.getI64IntegerAttr(issue.half));
      if (auto load = dyn_cast<LoadOp>(copy);
          load && doubled.contains(load.getValue()))
        load.setValue(nameOf(load.getValue(), issue.half));
      if (auto store = dyn_cast<StoreOp>(copy);
          store && doubled.contains(store.getValue()))
        store.setValue(nameOf(store.getValue(), issue.half));
    }
    for (Operation *op : llvm::reverse(ops))
      op->erase();
  }

  //===--------------------------------------------------------------------===//
  // Times
  //===--------------------------------------------------------------------===//

  double secondsOf(Operation *op) {
    if (isFree(op))
      return 0;
    if (isCollective(op)) {
      int64_t devices = 1;
      for (Attribute axis : op->getAttrOfType<ArrayAttr>("axes"))
        devices *= mesh.getSize(cast<StringAttr>(axis).getValue());
      using costmodel::Collective;
      Collective kind = isa<AllReduceOp>(op)       ? Collective::AllReduce
                        : isa<AllGatherOp>(op)     ? Collective::AllGather
                        : isa<ReduceScatterOp>(op) ? Collective::ReduceScatter
                                                   : Collective::AllToAll;
      double bytes =
          std::max(bytesOf(op->getOperand(0)), bytesOf(op->getResult(0)));
      std::vector<int64_t> members(devices);
      std::iota(members.begin(), members.end(), 0);
      return costmodel::collectiveSeconds(kind, bytes, members, cluster);
    }
    double bytes = 0, flops = 0;
    for (Value result : op->getResults())
      bytes += bytesOf(result);
    // Elementwise ops run in kernels with their neighbours.
    if (!joins(op))
      for (Value operand : op->getOperands())
        bytes += bytesOf(operand);
    if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
      flops = ruled.getFlops();
    return costmodel::opSeconds(cluster.device(), flops, bytes);
  }

  planning::Chain chainOf(ArrayRef<Operation *> ops) {
    planning::ChainWriter writer;
    llvm::DenseMap<Operation *, int> taskOf;
    for (Operation *op : ops) {
      std::vector<int> needs;
      for (Value operand : op->getOperands())
        if (auto it = taskOf.find(operand.getDefiningOp()); it != taskOf.end())
          needs.push_back(it->second);
      taskOf[op] = writer.add(secondsOf(op), isCollective(op), std::move(needs),
                              joins(op));
    }
    return writer.chain();
  }

  ModuleOp module;
  MeshAttr mesh;
  const costmodel::Cluster &cluster;
  int level;
  SubPipelineCounts &counts;
  llvm::DenseSet<std::pair<StringAttr, StringAttr>> received;
  llvm::StringSet<> doubled;        // of the current stage
  llvm::StringMap<ValueKind> kinds; // of the current stage
};

} // namespace

LogicalResult merak::subPipeline(ModuleOp module,
                                 const costmodel::Cluster &cluster,
                                 SubPipelineCounts *counts) {
  auto level = module->getAttrOfType<IntegerAttr>(kOverlapAttr);
  if (!level)
    return success();
  auto mesh = module->getAttrOfType<MeshAttr>(kMeshAttr);
  if (!mesh || mesh.getSize("mb") % kHalves != 0)
    return module.emitError("expected a mesh whose axis 'mb' counts halves of "
                            "microbatches, found size ")
           << (mesh ? mesh.getSize("mb") : 1);
  if (level.getInt() < 1 || level.getInt() > planning::kMaxOverlapLevel)
    return module.emitError("expected an overlap level from 1 to ")
           << planning::kMaxOverlapLevel << ", found " << level.getInt();
  LogicalResult result = success();
  for (StageOp stage : module.getOps<StageOp>())
    for (ActionOp action : stage.getOps<ActionOp>())
      for (StoreOp store : action.getOps<StoreOp>())
        if (auto value = stage.lookupSymbol<ValueOp>(store.getValue());
            value && value.getKind() == ValueKind::result &&
            action.getKind() != pipe::Action::U)
          result = value.emitError("output '")
                   << value.getSymName()
                   << "' of every microbatch cannot be made in halves";
  if (failed(result))
    return failure();
  SubPipelineCounts unused;
  Doubler(module, cluster, static_cast<int>(level.getInt()),
          counts ? *counts : unused)
      .run();
  module->setAttr(kSubBatchesAttr,
                  Builder(module.getContext()).getI64IntegerAttr(kHalves));
  module->removeAttr(kOverlapAttr);
  return success();
}

namespace merak {
#define GEN_PASS_DEF_SUBPIPELINE
#include "passes/Sharding/Passes.h.inc"
} // namespace merak

namespace {
struct SubPipelinePass : merak::impl::SubPipelineBase<SubPipelinePass> {
  void runOnOperation() override {
    int64_t ranks = 1;
    if (auto mesh = getOperation()->getAttrOfType<MeshAttr>(kMeshAttr))
      for (int64_t size : mesh.getSizes())
        ranks *= size;
    SubPipelineCounts counts;
    if (failed(subPipeline(getOperation(), costmodel::defaultCluster(ranks),
                           &counts)))
      return signalPassFailure();
    interleaved += counts.interleaved;
    inOrder += counts.inOrder;
  }
};
} // namespace
