#include "passes/Sharding/SubmicrobatchChain.h"

#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/CostModel/Describe.h"
#include "passes/Planning/Submicrobatches.h"

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

static costmodel::Sizes sizesOf(Value value) {
  ArrayRef<int64_t> shape = cast<RankedTensorType>(value.getType()).getShape();
  return {shape.data(), shape.size()};
}

static std::vector<costmodel::Sizes> sizesOf(ValueRange values) {
  std::vector<costmodel::Sizes> sizes;
  for (Value value : values)
    sizes.push_back(sizesOf(value));
  return sizes;
}

static std::string dtypeOf(Operation *op) {
  Value value = op->getNumOperands() ? op->getOperand(0) : op->getResult(0);
  Type element = cast<RankedTensorType>(value.getType()).getElementType();
  // f16 is priced as bf16 (CostModel.md).
  return isHalf(element) ? "bf16" : element.isF64() ? "f64" : "f32";
}

// What an op has to do as a kernel of its own; elementwise ops run in kernels
// with their neighbours, which read what they need.
static costmodel::Kernel kernelOf(Operation *op) {
  costmodel::Kernel kernel;
  kernel.name = op->hasTrait<Pointwise>() ? "elementwise"
                                          : op->getName().stripDialect().str();
  kernel.dtype = dtypeOf(op);
  for (Value result : op->getResults())
    kernel.bytes += bytesOf(result);
  if (!joins(op))
    for (Value operand : op->getOperands())
      kernel.bytes += bytesOf(operand);
  // Of a table the rows that are looked up.
  if (auto lookup = dyn_cast<GatherOp>(op))
    kernel.bytes +=
        std::min(0.0, bytesOf(lookup.getY()) - bytesOf(lookup.getTable()));
  if (auto ruled = dyn_cast<ShardingRuleOpInterface>(op))
    kernel.flops = ruled.getFlops();
  auto product = dyn_cast<EinsumOp>(op);
  costmodel::describeLibrary(
      kernel.name, product ? product.getEquation().str() : "",
      sizesOf(op->getOperands()), sizesOf(op->getResults()), kernel);
  if (product && product.getRounds()) {
    auto type = cast<RankedTensorType>(product.getLhs().getType());
    costmodel::describeRounding(sizesOf(product.getLhs()),
                                sizesOf(product.getRhs()),
                                type.getElementTypeBitWidth() / 8.0, kernel);
  }
  return kernel;
}

SubmicrobatchChain::SubmicrobatchChain(MeshAttr mesh,
                                       const costmodel::Cluster &cluster)
    : mesh_(mesh), byAxis_(mesh.getSize(kSubmicrobatchAxis) > 1),
      cluster_(cluster) {}

double SubmicrobatchChain::secondsOf(Operation *op) const {
  if (isFree(op))
    return 0;
  if (isCollective(op))
    return collectiveSeconds(
        op, std::max(bytesOf(op->getOperand(0)), bytesOf(op->getResult(0))));
  return costmodel::kernelSeconds(cluster_.device(), kernelOf(op)) /
         cluster_.rate(0);
}

double SubmicrobatchChain::collectiveSeconds(Operation *op,
                                             double bytes) const {
  using costmodel::Collective;
  Collective kind = isa<AllReduceOp>(op)       ? Collective::AllReduce
                    : isa<AllGatherOp>(op)     ? Collective::AllGather
                    : isa<ReduceScatterOp>(op) ? Collective::ReduceScatter
                                               : Collective::AllToAll;
  return costmodel::collectiveSeconds(kind, bytes, membersOf(op), cluster_);
}

bool SubmicrobatchChain::leavesNode(Operation *op) const {
  const std::vector<int64_t> members = membersOf(op);
  return cluster_.node(members.front()) != cluster_.node(members.back());
}

// The devices that the first one exchanges with. Ranks are pp-major, tp-minor.
std::vector<int64_t> SubmicrobatchChain::membersOf(Operation *op) const {
  std::vector<int64_t> members{0};
  const auto axes = op->getAttrOfType<ArrayAttr>("axes");
  int64_t stride = 1;
  for (auto [axis, size] :
       llvm::reverse(llvm::zip_equal(mesh_.getAxes(), mesh_.getSizes()))) {
    if (axis == kMicrobatchAxis || axis == kSubmicrobatchAxis)
      continue;
    if (llvm::is_contained(axes, axis)) {
      const size_t before = members.size();
      for (int64_t i = 1; i < size; ++i)
        for (size_t k = 0; k < before; ++k)
          members.push_back(
              std::min(members[k] + i * stride, cluster_.count - 1));
    }
    stride *= size;
  }
  llvm::sort(members);
  return members;
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
