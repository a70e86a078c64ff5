#include "passes/Lowering/Epilogues.h"

#include "dialects/Pipe/PipeDialect.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

RankedTensorType typeOf(Value value) {
  return cast<RankedTensorType>(value.getType());
}

// The product whose result nothing but `use` reads; null otherwise.
template <typename... Products>
Operation *productOf(Value value, Operation *use) {
  Operation *product = value.getDefiningOp();
  if (!product || !isa<Products...>(product) || !value.hasOneUse() ||
      product->getBlock() != use->getBlock())
    return nullptr;
  return product->hasAttr("train.gradient_of") ? nullptr : product;
}

// A vector along the last dimensions of `whole`.
bool isBias(Value bias, RankedTensorType whole) {
  RankedTensorType type = typeOf(bias);
  ArrayRef<int64_t> shape = type.getShape();
  while (!shape.empty() && shape.front() == 1)
    shape = shape.drop_front();
  return !shape.empty() && type.getElementType() == whole.getElementType() &&
         shape.size() <= whole.getShape().size() &&
         shape == whole.getShape().take_back(shape.size()) &&
         type.getNumElements() < whole.getNumElements() &&
         !bias.getDefiningOp<ConstantOp>();
}

// The gradient of a weight is converted to f32. Whatever else the group does,
// so that no bit depends on what a schedule brings together.
Epilogue matchCast(const KernelGroup &group) {
  for (Operation *op : group) {
    auto cast = dyn_cast<CastOp>(op);
    auto role = op->getAttrOfType<StringAttr>(kRoleAttr);
    if (!cast || !role || role.getValue() != kBackwardWeight ||
        !typeOf(cast.getY()).getElementType().isF32() ||
        !isa<BFloat16Type, Float16Type>(typeOf(cast.getX()).getElementType()))
      continue;
    Epilogue found;
    found.product = productOf<EinsumOp, ConvGradWeightOp>(cast.getX(), cast);
    found.result = cast.getY();
    found.ops = {cast};
    if (found.product)
      return found;
  }
  return {};
}

// The group adds a bias to a product, or applies GELU, or both; other ops of it
// do not need the product.
Epilogue matchForward(const KernelGroup &group) {
  Epilogue found;
  Value value; // the product, then what was made of it
  for (Operation *op : group) {
    if (!found.product) {
      for (Value operand : op->getOperands())
        if (Operation *product = productOf<EinsumOp>(operand, op)) {
          found.product = product;
          value = operand;
        }
      if (!found.product)
        continue; // on the way to a bias
    } else if (!llvm::is_contained(op->getOperands(), value)) {
      // Whoever reads an earlier value keeps the kernel in place.
      if (llvm::any_of(op->getOperands(), [&](Value operand) {
            return llvm::is_contained(found.ops, operand.getDefiningOp());
          }))
        return {};
      continue;
    }
    if (auto add = dyn_cast<AddOp>(op)) {
      Value other = add.getLhs() == value ? add.getRhs() : add.getLhs();
      if (found.bias || found.gelu || other == value ||
          add.getType() != value.getType() || !isBias(other, typeOf(value)))
        return {};
      found.bias = other;
    } else if (auto gelu = dyn_cast<GeluOp>(op)) {
      if (found.gelu || !gelu.getTanh())
        return {};
      found.gelu = Epilogue::Forward;
      found.argument = value;
    } else {
      return {};
    }
    value = op->getResult(0);
    found.ops.push_back(op);
  }
  if (!found.product || !isa<FloatType>(typeOf(value).getElementType()) ||
      typeOf(value).getElementType().isF64())
    return {};
  found.result = value;
  // Kept where the backward pass or another kernel reads it.
  if (found.argument && found.argument.hasOneUse())
    found.argument = {};
  return found;
}

// The gradient of a product's operand on its way through GELU, which others
// than this kernel read.
Epilogue matchGradient(const KernelGroup &group) {
  for (Operation *op : group) {
    auto slope = dyn_cast<GeluGradOp>(op);
    if (!slope || !slope.getTanh())
      continue;
    Epilogue found;
    found.product = productOf<EinsumOp>(slope.getDy(), op);
    bool leaves = llvm::any_of(op->getUsers(), [&](Operation *user) {
      return !llvm::is_contained(group, user);
    });
    if (!found.product || slope.getX() == slope.getDy() || !leaves ||
        typeOf(slope.getX()).getElementType().isF64() ||
        llvm::is_contained(group, slope.getX().getDefiningOp()))
      continue;
    found.gelu = Epilogue::Gradient;
    found.argument = slope.getX();
    found.result = slope.getDx();
    found.ops = {op};
    return found;
  }
  return {};
}

// Whether ops between the two change memory that the body reads.
bool crossesBarrier(Operation *from, Operation *to,
                    const llvm::StringSet<> &read) {
  for (Operation *op = from; op && op != to; op = op->getNextNode()) {
    auto store = dyn_cast<pipe::StoreOp>(op);
    if (isa<pipe::UpdateOp>(op) || (store && read.contains(store.getValue())))
      return true;
  }
  return false;
}

} // namespace

std::vector<Epilogue>
takeEpilogues(Block &body, std::vector<KernelGroup> &groups, bool forGpu) {
  llvm::StringSet<> read;
  for (auto load : body.getOps<pipe::LoadOp>())
    read.insert(load.getValue());
  std::vector<Epilogue> taken;
  auto take = [&](KernelGroup &group, Epilogue found) {
    if (!found.product || crossesBarrier(found.product, found.ops.back(), read))
      return false;
    llvm::erase_if(group, [&](Operation *op) {
      return llvm::is_contained(found.ops, op);
    });
    taken.push_back(std::move(found));
    return true;
  };
  for (KernelGroup &group : groups) {
    while (take(group, matchCast(group))) {
    }
    if (forGpu && !take(group, matchForward(group)))
      take(group, matchGradient(group));
  }
  llvm::erase_if(groups,
                 [](const KernelGroup &group) { return group.empty(); });
  return taken;
}

} // namespace merak::lowering
