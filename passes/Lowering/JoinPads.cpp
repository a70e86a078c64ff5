#include "passes/Lowering/JoinPads.h"

#include "dialects/Train/TrainDialect.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/STLExtras.h"

#include <optional>

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

// The axis along which the op pads with zeros; nothing if it does anything
// else, or if others want the padded tensor.
std::optional<int64_t> axisOf(PadOp pad) {
  std::optional<int64_t> axis;
  if (!pad.getY().hasOneUse() || !pad.getValue().isZero() ||
      llvm::any_of(pad.getInterior(), [](int64_t n) { return n != 0; }))
    return std::nullopt;
  for (size_t d = 0; d < pad.getLow().size(); ++d) {
    if (pad.getLow()[d] == 0 && pad.getHigh()[d] == 0)
      continue;
    if (axis)
      return std::nullopt;
    axis = static_cast<int64_t>(d);
  }
  return axis;
}

// Whether the parts, sorted, lie one behind the other from end to end.
bool fills(ArrayRef<PadOp> parts, int64_t axis) {
  int64_t at = 0;
  for (PadOp part : parts) {
    if (part.getLow()[axis] != at)
      return false;
    at += cast<RankedTensorType>(part.getX().getType()).getDimSize(axis);
  }
  PadOp first = parts[0];
  return at == cast<RankedTensorType>(first.getY().getType()).getDimSize(axis);
}

// What a tree of sums adds, and its inner sums.
void collect(AddOp root, SmallVector<Value> &leaves,
             SmallVector<Operation *> &sums) {
  for (Value operand : {root.getLhs(), root.getRhs()}) {
    auto inner = operand.getDefiningOp<AddOp>();
    if (inner && operand.hasOneUse() && operand.getType() == root.getType() &&
        inner->getBlock() == root->getBlock() &&
        !inner->hasAttr("train.gradient_of")) {
      collect(inner, leaves, sums);
      sums.push_back(inner);
    } else {
      leaves.push_back(operand);
    }
  }
}

void join(AddOp root) {
  SmallVector<Value> leaves;
  SmallVector<Operation *> dead;
  collect(root, leaves, dead);
  SmallVector<PadOp> parts;
  SmallVector<Value> others;
  std::optional<int64_t> axis;
  for (Value leaf : leaves) {
    auto pad = leaf.getDefiningOp<PadOp>();
    std::optional<int64_t> own = pad ? axisOf(pad) : std::nullopt;
    if (own && (!axis || axis == own) && leaf.getType() == root.getType()) {
      axis = own;
      parts.push_back(pad);
    } else {
      others.push_back(leaf);
    }
  }
  if (parts.size() < 2)
    return;
  llvm::stable_sort(parts, [&](PadOp a, PadOp b) {
    return a.getLow()[*axis] < b.getLow()[*axis];
  });
  if (!fills(parts, *axis))
    return;
  OpBuilder b(root);
  SmallVector<Value> inputs;
  for (PadOp part : parts)
    inputs.push_back(part.getX());
  Operation *last = ConcatOp::create(b, root.getLoc(), root.getType(), inputs,
                                     b.getI64IntegerAttr(*axis));
  for (Value other : others) {
    last->setDiscardableAttrs(root->getDiscardableAttrDictionary());
    last->removeAttr("train.gradient_of");
    last = AddOp::create(b, root.getLoc(), root.getType(), last->getResult(0),
                         other);
  }
  last->setDiscardableAttrs(root->getDiscardableAttrDictionary());
  root.replaceAllUsesWith(last->getResult(0));
  root.erase();
  for (Operation *sum : llvm::reverse(dead)) // users before what they use
    sum->erase();
  for (PadOp part : parts)
    part.erase();
}

} // namespace

void joinPads(Block &body) {
  SmallVector<AddOp> roots;
  for (auto add : body.getOps<AddOp>()) {
    // A sum that only another sum reads belongs to that one's tree.
    bool isInner = add.getResult().hasOneUse() &&
                   isa<AddOp>(*add.getResult().user_begin()) &&
                   !add->hasAttr("train.gradient_of");
    if (!isInner)
      roots.push_back(add);
  }
  for (AddOp root : roots)
    join(root);
}

} // namespace merak::lowering
