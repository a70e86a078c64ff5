#include "codegen/Kernels/GridPatterns.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/Matchers.h"

using namespace mlir;

namespace merak::codegen {

namespace {

// A value inside the body of an op.
struct Term {
  linalg::GenericOp generic;
  Value value;
};

// What the combiner of a reduction adds to the carried value, or compares with
// it; null if that is not one op of the kind.
template <typename Combiner>
Value contributionOf(linalg::GenericOp generic, unsigned number) {
  auto yield = cast<linalg::YieldOp>(generic.getBody()->getTerminator());
  BlockArgument carried =
      generic.getBody()->getArgument(generic.getNumDpsInputs() + number);
  auto combiner = yield.getOperand(number).getDefiningOp<Combiner>();
  if (!combiner)
    return nullptr;
  if (combiner.getLhs() == carried)
    return combiner.getRhs();
  return combiner.getRhs() == carried ? combiner.getLhs() : Value();
}

class Matcher {
public:
  explicit Matcher(const KernelGraph &graph) : graph(graph) {}

  // Where the value is computed: an argument of the body that stands for
  // another op's element at the same place is that op's.
  Term origin(Term term) const;
  // The tensor behind an argument of the body; null: another value.
  Value tensorOf(Term term) const;
  // Whether the terms are one value wherever both ops are.
  bool isSame(Term a, Term b) const;
  // Whether the value is one for all of a row.
  bool isOfRow(Term term) const;

private:
  // The dimensions along which an operand is indexed.
  SmallVector<int> dimsOf(OpOperand &operand) const;
  OpOperand *operandOf(Term term) const;

  const KernelGraph &graph;
};

SmallVector<int> Matcher::dimsOf(OpOperand &operand) const {
  auto generic = cast<linalg::GenericOp>(operand.getOwner());
  SmallVector<int> dims;
  const auto &loops = graph.loops.find(generic)->second;
  for (AffineExpr expr :
       generic.getMatchingIndexingMap(&operand).getResults()) {
    auto dim = dyn_cast<AffineDimExpr>(expr);
    dims.push_back(dim ? loops[dim.getPosition()] : -1);
  }
  return dims;
}

OpOperand *Matcher::operandOf(Term term) const {
  auto argument = dyn_cast<BlockArgument>(term.value);
  if (!argument || argument.getOwner() != term.generic.getBody())
    return nullptr;
  return &term.generic->getOpOperand(argument.getArgNumber());
}

Value Matcher::tensorOf(Term term) const {
  OpOperand *operand = operandOf(term);
  return operand ? operand->get() : Value();
}

Term Matcher::origin(Term term) const {
  while (OpOperand *operand = operandOf(term)) {
    auto result = dyn_cast<OpResult>(operand->get());
    auto from =
        result ? dyn_cast<linalg::GenericOp>(result.getOwner()) : nullptr;
    if (!from || graph.isReduction(result))
      break;
    auto yield = cast<linalg::YieldOp>(from.getBody()->getTerminator());
    term = {from, yield.getOperand(result.getResultNumber())};
  }
  return term;
}

bool Matcher::isSame(Term a, Term b) const {
  a = origin(a);
  b = origin(b);
  OpOperand *left = operandOf(a), *right = operandOf(b);
  if (left || right)
    return left && right && left->get() == right->get() &&
           dimsOf(*left) == dimsOf(*right);
  if (a.value == b.value)
    return true;
  Operation *x = a.value.getDefiningOp(), *y = b.value.getDefiningOp();
  if (!x || !y || x->getName() != y->getName() ||
      x->getAttrDictionary() != y->getAttrDictionary() ||
      x->getResultTypes() != y->getResultTypes() || isa<linalg::IndexOp>(x) ||
      x->getNumOperands() != y->getNumOperands() || x->getNumResults() != 1)
    return false;
  for (auto [l, r] : llvm::zip(x->getOperands(), y->getOperands()))
    if (!isSame({a.generic, l}, {b.generic, r}))
      return false;
  return true;
}

bool Matcher::isOfRow(Term term) const {
  if (OpOperand *operand = operandOf(term)) {
    if (graph.variesInReduction(operand->get()))
      return false;
    auto access = graph.readAccess.find(operand);
    if (access == graph.readAccess.end())
      return true;
    for (auto [stride, dim] :
         llvm::zip(graph.accesses[access->second].strides, graph.dims))
      if (dim.reduced && stride != 0)
        return false;
    return true;
  }
  Operation *op = term.value.getDefiningOp();
  if (!op || op->getBlock() != term.generic.getBody())
    return true; // a scalar of the kernel
  return !isa<linalg::IndexOp>(op) &&
         llvm::all_of(op->getOperands(), [&](Value operand) {
           return isOfRow({term.generic, operand});
         });
}

} // namespace

std::optional<RescaledSum> asRescaledSum(const KernelGraph &graph,
                                         OpResult sum) {
  const Matcher matcher(graph);
  auto generic = cast<linalg::GenericOp>(sum.getOwner());
  Value added = contributionOf<arith::AddFOp>(generic, sum.getResultNumber());
  if (!added)
    return std::nullopt;
  // Where less is held than is computed, each rounding would be of another
  // number.
  auto isWide = [](Value value) {
    return value.getType().isF32() || value.getType().isF64();
  };
  Term term = matcher.origin({generic, added});
  auto exponential = term.value.getDefiningOp<math::ExpOp>();
  if (!exponential || !isWide(added) || !isWide(exponential))
    return std::nullopt;
  term = matcher.origin({term.generic, exponential.getOperand()});
  auto difference = term.value.getDefiningOp<arith::SubFOp>();
  if (!difference)
    return std::nullopt;
  auto maximum = dyn_cast_or_null<OpResult>(
      matcher.tensorOf({term.generic, difference.getRhs()}));
  if (!maximum || !graph.isReduction(maximum))
    return std::nullopt;
  auto of = cast<linalg::GenericOp>(maximum.getOwner());
  Value compared =
      contributionOf<arith::MaximumFOp>(of, maximum.getResultNumber());
  if (!compared || !isWide(compared) ||
      !matcher.isSame({of, compared}, {term.generic, difference.getLhs()}))
    return std::nullopt;
  return RescaledSum{maximum, difference, exponential};
}

std::optional<PickedSum> asPickedSum(const KernelGraph &graph, OpResult sum) {
  const Matcher matcher(graph);
  auto generic = cast<linalg::GenericOp>(sum.getOwner());
  Value added = contributionOf<arith::AddFOp>(generic, sum.getResultNumber());
  auto chosen = added ? added.getDefiningOp<arith::SelectOp>() : nullptr;
  if (!chosen || !matchPattern(chosen.getFalseValue(), m_AnyZeroFloat()))
    return std::nullopt;
  auto compared = chosen.getCondition().getDefiningOp<arith::CmpIOp>();
  if (!compared || compared.getPredicate() != arith::CmpIPredicate::eq)
    return std::nullopt;
  // The only reduced dimension's own index on one side.
  int reduced = -1;
  for (auto [i, dim] : llvm::enumerate(graph.dims)) {
    if (!dim.reduced || dim.size == 1)
      continue;
    if (reduced >= 0)
      return std::nullopt;
    reduced = static_cast<int>(i);
  }
  auto isIndex = [&](Value value) {
    if (auto cast = value.getDefiningOp<arith::IndexCastOp>())
      value = cast.getIn();
    auto index = value.getDefiningOp<linalg::IndexOp>();
    return index &&
           graph.loops.find(generic)->second[index.getDim()] == reduced;
  };
  Value position = compared.getRhs();
  if (!isIndex(compared.getLhs())) {
    position = compared.getLhs();
    if (!isIndex(compared.getRhs()))
      return std::nullopt;
  }
  // An index must not have lost digits on the way to the type of comparison.
  Type type = position.getType();
  constexpr int64_t kBelow32 = int64_t{1} << 31;
  const bool holds =
      type.isIndex() || type.isInteger(64) ||
      (type.isInteger(32) && graph.dims[reduced].size < kBelow32);
  if (reduced < 0 || !holds || !matcher.isOfRow({generic, position}))
    return std::nullopt;
  return PickedSum{position, chosen.getTrueValue()};
}

} // namespace merak::codegen
