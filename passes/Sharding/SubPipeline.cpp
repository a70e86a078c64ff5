#include "passes/Sharding/SubPipeline.h"

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Remarks.h"
#include "passes/CostModel/Cost.h"
#include "passes/Sharding/FillGaps.h"
#include "passes/Sharding/Machine.h"
#include "passes/Sharding/Passes.h"
#include "passes/Sharding/SubmicrobatchChain.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

namespace {

constexpr int kSubmicrobatches = 2;

class SubmicrobatchSplitter {
public:
  SubmicrobatchSplitter(ModuleOp module, const costmodel::Cluster &cluster,
                        int level, SubPipelineCounts &counts)
      : module(module), mesh(module->getAttrOfType<MeshAttr>(kMeshAttr)),
        chains(mesh, cluster), byAxis(chains.byAxis()), level(level),
        counts(counts) {}

  void run() {
    SmallVector<TransferOp> transfers;
    for (TransferOp transfer : module.getOps<TransferOp>()) {
      auto stage =
          module.lookupSymbol<StageOp>(transfer.getSource().getRootReference());
      auto value =
          stage.lookupSymbol<ValueOp>(transfer.getSource().getLeafReference());
      if (byAxis ? !isOfSubmicrobatch(value.getLayoutAttr())
                 : transfer.getKind() == pipe::Action::S)
        continue;
      transfers.push_back(transfer);
      received.insert({transfer.getTarget().getRootReference(),
                       transfer.getTarget().getLeafReference()});
    }
    for (StageOp stage : module.getOps<StageOp>()) {
      counts.filled += fillGaps(stage, chains, level);
      doubleStage(stage);
    }
    doubleTransfers(transfers);
    if (byAxis)
      finishLayouts();
  }

private:
  // Submicrobatches by axis are told apart by layouts, in all that a stage
  // does; others are microbatches, and all of one.
  bool hasSubmicrobatches(ActionOp action) {
    return byAxis || !isOncePerStep(action.getKind());
  }
  static std::string nameOf(StringRef value, int submicrobatch) {
    return (value + ".half" + Twine(submicrobatch)).str();
  }

  //===--------------------------------------------------------------------===//
  // Values and transfers
  //===--------------------------------------------------------------------===//

  void doubleStage(StageOp stage) {
    doubled.clear();
    kinds.clear();
    for (ValueOp value : stage.getOps<ValueOp>()) {
      kinds[value.getSymName()] = value.getKind();
      if (received.contains({stage.getSymNameAttr(), value.getSymNameAttr()}) ||
          (byAxis && isOfSubmicrobatch(value.getLayoutAttr())))
        doubled.insert(value.getSymName());
    }
    for (ActionOp action : stage.getOps<ActionOp>())
      if (!byAxis && hasSubmicrobatches(action))
        for (StoreOp store : action.getOps<StoreOp>())
          if (!store.getAccumulate())
            doubled.insert(store.getValue());
    for (ValueOp value : llvm::make_early_inc_range(stage.getOps<ValueOp>())) {
      if (!doubled.contains(value.getSymName()))
        continue;
      OpBuilder b(value);
      for (int submicrobatch = 0; submicrobatch < kSubmicrobatches;
           ++submicrobatch) {
        auto copy = cast<ValueOp>(b.clone(*value));
        copy.setSymName(nameOf(value.getSymName(), submicrobatch));
      }
      value.erase();
    }
    for (ActionOp action : stage.getOps<ActionOp>())
      if (hasSubmicrobatches(action))
        doubleAction(action);
  }

  // All of the first one stand before those of the second: transfers between
  // two stages run in this order.
  void doubleTransfers(ArrayRef<TransferOp> transfers) {
    if (transfers.empty())
      return;
    OpBuilder b(transfers.front());
    auto path = [&](SymbolRefAttr value, int submicrobatch) {
      return SymbolRefAttr::get(
          value.getRootReference(),
          {FlatSymbolRefAttr::get(
              module.getContext(),
              nameOf(value.getLeafReference(), submicrobatch))});
    };
    for (int submicrobatch = 0; submicrobatch < kSubmicrobatches;
         ++submicrobatch)
      for (TransferOp transfer : transfers) {
        auto copy = cast<TransferOp>(b.clone(*transfer));
        copy.setSymName(nameOf(transfer.getSymName(), submicrobatch));
        copy.setSourceAttr(path(transfer.getSource(), submicrobatch));
        copy.setTargetAttr(path(transfer.getTarget(), submicrobatch));
      }
    for (TransferOp transfer : transfers)
      transfer.erase();
  }

  //===--------------------------------------------------------------------===//
  // Actions
  //===--------------------------------------------------------------------===//

  // What is the same in both submicrobatches stands once.
  bool isShared(Operation *op) {
    if (chains.byAxis())
      return isOfBothSubmicrobatches(op);
    if (isa<ConstantOp>(op))
      return true;
    auto load = dyn_cast<LoadOp>(op);
    return load && !doubled.contains(load.getValue()) &&
           kinds.lookup(load.getValue()) != ValueKind::input;
  }

  static void remarkAction(ActionOp action, bool communicates) {
    const auto name =
        remark::RemarkOpts::name("Submicrobatches").category("overlap");
    const std::string place = (action->getParentOfType<StageOp>().getSymName() +
                               "." + action.getSymName())
                                  .str();
    if (communicates)
      remark::passed(action.getLoc(), name) << "interleaved in " + place;
    else
      remark::missed(action.getLoc(), name)
          << "one after the other in " + place
          << remark::reason("nothing to hide");
  }

  void doubleAction(ActionOp action) {
    Block &block = action.getBody().front();
    SmallVector<Operation *> ops;
    for (Operation &op : block)
      ops.push_back(&op);
    bool once = isOncePerStep(action.getKind());
    bool communicates = !once && llvm::any_of(ops, isCollective);
    ++(communicates ? counts.interleaved : counts.inOrder);
    remarkAction(action, communicates);
    std::vector<planning::Issue> order;
    if (communicates) {
      order = planning::orderSubmicrobatches(chains.chainOf(ops), level);
    } else if (byAxis) {
      // Where the submicrobatches are joined both must be there.
      for (int task = 0; task < static_cast<int>(ops.size()); ++task)
        for (int submicrobatch = 0; submicrobatch < kSubmicrobatches;
             ++submicrobatch)
          order.push_back({submicrobatch, task});
    } else {
      for (int submicrobatch = 0; submicrobatch < kSubmicrobatches;
           ++submicrobatch)
        for (int task = 0; task < static_cast<int>(ops.size()); ++task)
          order.push_back({submicrobatch, task});
    }
    OpBuilder b = OpBuilder::atBlockEnd(&block);
    IRMapping mapping[kSubmicrobatches];
    for (const planning::Issue &issue : order) {
      Operation *op = ops[issue.task];
      if (issue.half > 0 && isShared(op)) {
        for (Value result : op->getResults())
          mapping[issue.half].map(result, mapping[0].lookup(result));
        continue;
      }
      if (isBetweenSubmicrobatches(op)) {
        Value made = isa<ShardSliceOp>(op)
                         ? part(b, cast<ShardSliceOp>(op), issue.half,
                                mapping[issue.half].lookup(op->getOperand(0)))
                         : join(b, op, mapping[0].lookup(op->getOperand(0)),
                                mapping[1].lookup(op->getOperand(0)));
        // What the plan knows a gradient by.
        if (Attribute parameter = op->getAttr("train.gradient_of"))
          made.getDefiningOp()->setAttr("train.gradient_of", parameter);
        mapping[issue.half].map(op->getResult(0), made);
        continue;
      }
      Operation *copy = b.clone(*op, mapping[issue.half]);
      if (issue.half > 0)
        copy->setAttr(kSubmicrobatchAttr, b.getI64IntegerAttr(issue.half));
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
  // Submicrobatches by axis
  //===--------------------------------------------------------------------===//

  template <typename Op, typename... Arguments>
  static Value create(OpBuilder &b, Operation *from, Arguments &&...arguments) {
    auto op =
        Op::create(b, from->getLoc(), std::forward<Arguments>(arguments)...);
    op->setAttr(kLayoutsAttr, from->getAttr(kLayoutsAttr));
    if (Attribute role = from->getAttr(kRoleAttr))
      op->setAttr(kRoleAttr, role);
    return op->getResult(0);
  }
  // The value with dimension `dim` cut into `major` and the rest.
  static Value cut(OpBuilder &b, Operation *from, Value value, int64_t dim,
                   int64_t major) {
    auto type = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape(type.getShape());
    if (major == 1)
      return value;
    shape[dim] /= major;
    shape.insert(shape.begin() + dim, major);
    return create<ReshapeOp>(
        b, from, RankedTensorType::get(shape, type.getElementType()), value);
  }
  static Value uncut(OpBuilder &b, Operation *from, Value value,
                     int64_t major) {
    return major == 1 ? value
                      : create<ReshapeOp>(b, from, from->getResult(0).getType(),
                                          value);
  }

  // What a conversion makes of the values of both submicrobatches.
  static Value join(OpBuilder &b, Operation *op, Value first, Value second) {
    auto gather = dyn_cast<AllGatherOp>(op);
    if (!gather)
      return create<AddOp>(b, op, first, second);
    int64_t dim = gather.getDim(), major = gather.getMajor();
    SmallVector<Value> parts{cut(b, op, first, dim, major),
                             cut(b, op, second, dim, major)};
    int64_t axis = major == 1 ? dim : dim + 1;
    return uncut(b, op, create<ConcatOp>(b, op, ValueRange(parts), axis),
                 major);
  }

  static Value part(OpBuilder &b, ShardSliceOp op, int submicrobatch,
                    Value whole) {
    int64_t dim = op.getDim(), major = op.getMajor();
    Value from = cut(b, op, whole, dim, major);
    int64_t axis = major == 1 ? dim : dim + 1;
    auto type = cast<RankedTensorType>(from.getType());
    SmallVector<int64_t> sizes(type.getShape()), starts(sizes.size(), 0),
        steps(sizes.size(), 1);
    sizes[axis] /= kSubmicrobatches;
    // Of 8 samples the second has those from 1 * 4.
    starts[axis] = submicrobatch * sizes[axis];
    Value made = create<SliceOp>(
        b, op, RankedTensorType::get(sizes, type.getElementType()), from,
        starts, sizes, steps);
    return uncut(b, op, made, major);
  }

  // Both submicrobatches have their ops: no value is a sum over them any more.
  void finishLayouts() {
    auto finished = [](LayoutAttr attr) {
      layout::Layout layout = attr.getLayout();
      llvm::erase(layout.partial, kSubmicrobatchAxis);
      return LayoutAttr::get(attr.getContext(), layout);
    };
    module.walk([&](Operation *op) {
      if (auto layouts = op->getAttrOfType<ArrayAttr>(kLayoutsAttr)) {
        SmallVector<Attribute> list;
        for (Attribute layout : layouts)
          list.push_back(finished(cast<LayoutAttr>(layout)));
        op->setAttr(kLayoutsAttr, ArrayAttr::get(op->getContext(), list));
      }
      if (auto value = dyn_cast<ValueOp>(op); value && value.getLayoutAttr())
        value.setLayoutAttr(finished(value.getLayoutAttr()));
    });
  }

  ModuleOp module;
  MeshAttr mesh;
  SubmicrobatchChain chains;
  bool byAxis; // submicrobatches are positions of kSubmicrobatchAxis, not of
               // "mb"
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
  if (!mesh || (mesh.getSize(kSubmicrobatchAxis) != kSubmicrobatches &&
                mesh.getSize(kMicrobatchAxis) % kSubmicrobatches != 0))
    return module.emitError(
               "expected a mesh whose axis 'mb' counts submicrobatches, "
               "found size ")
           << (mesh ? mesh.getSize(kMicrobatchAxis) : 1);
  if (level.getInt() < 1 || level.getInt() > planning::kMaxOverlapLevel)
    return module.emitError("expected an overlap level from 1 to ")
           << planning::kMaxOverlapLevel << ", found " << level.getInt();
  SubPipelineCounts unused;
  SubmicrobatchSplitter(module, cluster, static_cast<int>(level.getInt()),
                        counts ? *counts : unused)
      .run();
  if (mesh.getSize(kSubmicrobatchAxis) == 1)
    module->setAttr(
        kSubmicrobatchesAttr,
        Builder(module.getContext()).getI64IntegerAttr(kSubmicrobatches));
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
    Result<costmodel::Cluster> cluster = machineOf(getOperation());
    if (!cluster.ok()) {
      getOperation().emitError(cluster.status().str());
      return signalPassFailure();
    }
    SubPipelineCounts counts;
    if (failed(subPipeline(getOperation(), *cluster, &counts)))
      return signalPassFailure();
    filled += counts.filled;
    interleaved += counts.interleaved;
    inOrder += counts.inOrder;
  }
};
} // namespace
