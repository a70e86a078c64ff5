#include "passes/Graph/Matchers.h"

#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/DenseSet.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

DenseElementsAttr merak::constantThrough(Value value) {
  if (!value)
    return {};
  if (DenseElementsAttr attr = constantOf(value))
    return attr;
  auto expand = value.getDefiningOp<ExpandOp>();
  DenseElementsAttr inner =
      expand ? constantOf(expand.getX()) : DenseElementsAttr();
  return inner ? evaluate(expand, {inner}) : DenseElementsAttr();
}

static void multiply(Value value, Value stop, int depth, Product &product) {
  if (value != stop && depth < 12) {
    if (std::optional<double> number = splatOf(value)) {
      product.factor *= *number;
      return;
    }
    if (auto mul = value.getDefiningOp<MulOp>()) {
      multiply(mul.getLhs(), stop, depth + 1, product);
      multiply(mul.getRhs(), stop, depth + 1, product);
      return;
    }
    if (auto neg = value.getDefiningOp<NegOp>()) {
      product.factor *= -1;
      return multiply(neg.getX(), stop, depth + 1, product);
    }
    if (auto div = value.getDefiningOp<DivOp>())
      if (std::optional<double> number = splatOf(div.getRhs())) {
        product.factor /= *number;
        return multiply(div.getLhs(), stop, depth + 1, product);
      }
  }
  product.values.push_back(value);
}

Product merak::productOf(Value value, Value stop) {
  Product product;
  multiply(value, stop, 0, product);
  return product;
}

std::optional<Mean> merak::meanOf(Value value) {
  auto scaled = withNumber<MulOp>(value);
  double factor = 0;
  if (scaled) {
    factor = scaled->second;
  } else if (auto div = value.getDefiningOp<DivOp>()) {
    if (std::optional<double> number = splatOf(div.getRhs())) {
      scaled = std::pair(div.getLhs(), *number);
      factor = 1 / *number;
    }
  }
  auto sum = scaled ? scaled->first.getDefiningOp<ReduceSumOp>() : nullptr;
  if (!sum || !sum.getKeepdims())
    return std::nullopt;
  double count = 1;
  for (int64_t axis : sum.getAxes())
    count *= static_cast<double>(shapeOf(sum.getX())[axis]);
  if (!nearly(factor * count, 1))
    return std::nullopt;
  return Mean{sum.getX(), Shape(sum.getAxes())};
}

// m and epsilon of sqrt(m + epsilon).
static std::optional<std::pair<Value, double>> rootOf(Value value) {
  auto root = value.getDefiningOp<SqrtOp>();
  return root ? withNumber<AddOp>(root.getX()) : std::nullopt;
}

SmallVector<InverseRoot> merak::inverseRootsOf(Operation *op) {
  SmallVector<InverseRoot> found;
  if (auto div = dyn_cast<DivOp>(op))
    if (auto root = rootOf(div.getRhs()))
      found.push_back({div.getLhs(), root->first, root->second});
  if (auto mul = dyn_cast<MulOp>(op))
    for (bool swap : {false, true}) {
      Value x = swap ? mul.getRhs() : mul.getLhs();
      Value r = swap ? mul.getLhs() : mul.getRhs();
      std::optional<std::pair<Value, double>> root;
      if (auto inverse = r.getDefiningOp<ReciprocalOp>())
        root = rootOf(inverse.getX());
      else if (auto div = r.getDefiningOp<DivOp>())
        root =
            splatOf(div.getLhs()) == 1.0 ? rootOf(div.getRhs()) : std::nullopt;
      if (root)
        found.push_back({x, root->first, root->second});
    }
  return found;
}

bool merak::dependsOnTrained(Value value) {
  SmallVector<Value> work{value};
  llvm::DenseSet<Value> seen;
  while (!work.empty()) {
    Value next = work.pop_back_val();
    Operation *op = next.getDefiningOp();
    if (!op || !seen.insert(next).second)
      continue;
    if (auto read = dyn_cast<ReadOp>(op)) {
      auto parameter = SymbolTable::lookupNearestSymbolFrom<ParameterOp>(
          op, read.getParameterAttr());
      if (!parameter || parameter.getTrainable())
        return true;
    }
    llvm::append_range(work, op->getOperands());
  }
  return false;
}
