#include "passes/Sharding/SubmicrobatchChain.h"

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/CostModel/Cost.h"
#include "passes/Planning/Submicrobatches.h"
#include <numeric>

using namespace mlir;
using namespace merak;
using namespace merak::dist;
using namespace merak::pipe;
using namespace merak::train;

bool merak::isBetweenSubmicrobatches(Operation *op) {
  return op->hasTrait<Conversion>() && isOverSubmicrobatches(op);
}

bool merak::isCollective(Operation *op) {
  return op->hasTrait<Collective>() && !isOverSubmicrobatches(op);
}

bool merak::isFree(Operation *op) {
  return isa<LoadOp, StoreOp, ConstantOp, ShardSliceOp>(op) ||
         op->hasTrait<ViewLike>();
}

bool merak::isOfSubmicrobatch(LayoutAttr attr) {
  return attr && planning::isOfSubmicrobatch(attr.getLayout());
}

bool merak::isOfBothSubmicrobatches(Operation *op) {
  if (isa<ConstantOp>(op))
    return true;
  if (auto load = dyn_cast<LoadOp>(op)) {
    // The values of submicrobatches may have got their names already.
    auto value =
        op->getParentOfType<StageOp>().lookupSymbol<ValueOp>(load.getValue());
    return value && !isOfSubmicrobatch(value.getLayoutAttr());
  }
  if (auto store = dyn_cast<StoreOp>(op))
    return isOfBothSubmicrobatches(store.getOperand().getDefiningOp());
  auto layouts = op->getAttrOfType<ArrayAttr>(kLayoutsAttr);
  return !layouts || llvm::none_of(layouts, [](Attribute layout) {
    return isOfSubmicrobatch(cast<LayoutAttr>(layout));
  });
}

// One result element per operand element: what joins the result of a
// collective to the rest (bias, residual) is made of these.
static bool joins(Operation *op) {
  if (isFree(op))
    return true;
  auto ruled = dyn_cast<ShardingRuleOpInterface>(op);
  return op->hasTrait<Pointwise>() && ruled &&
         !ruled.getShardingRule().linear.empty();
}

static double bytesOf(Value value) {
  auto type = cast<RankedTensorType>(value.getType());
  double bits = type.getElementType().isIntOrFloat()
                    ? type.getElementType().getIntOrFloatBitWidth()
                    : 64;
  return double(type.getNumElements()) * std::max(1.0, bits / 8);
}

SubmicrobatchChain::SubmicrobatchChain(MeshAttr mesh,
                                       const costmodel::Cluster &cluster)
    : mesh_(mesh), byAxis_(mesh.getSize(kSubmicrobatchAxis) > 1),
      cluster_(cluster) {}

double SubmicrobatchChain::secondsOf(Operation *op) const {
  if (isFree(op))
    return 0;
  if (isCollective(op)) {
    int64_t devices = 1;
    for (Attribute axis : op->getAttrOfType<ArrayAttr>("axes"))
      devices *= mesh_.getSize(cast<StringAttr>(axis).getValue());
    using costmodel::Collective;
    Collective kind = isa<AllReduceOp>(op)       ? Collective::AllReduce
                      : isa<AllGatherOp>(op)     ? Collective::AllGather
                      : isa<ReduceScatterOp>(op) ? Collective::ReduceScatter
                                                 : Collective::AllToAll;
    double bytes =
        std::max(bytesOf(op->getOperand(0)), bytesOf(op->getResult(0)));
    std::vector<int64_t> members(devices);
    std::iota(members.begin(), members.end(), 0);
    return costmodel::collectiveSeconds(kind, bytes, members, cluster_);
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
  return costmodel::opSeconds(cluster_.device(), flops, bytes);
}

planning::Chain SubmicrobatchChain::chainOf(ArrayRef<Operation *> ops) const {
  planning::ChainWriter writer;
  llvm::DenseMap<Operation *, int> taskOf;
  for (Operation *op : ops) {
    std::vector<int> needs;
    for (Value operand : op->getOperands())
      if (auto it = taskOf.find(operand.getDefiningOp()); it != taskOf.end())
        needs.push_back(it->second);
    taskOf[op] = writer.add(secondsOf(op), isCollective(op), std::move(needs),
                            joins(op), byAxis_ && isOfBothSubmicrobatches(op));
  }
  return writer.chain();
}
