#include "codegen/Kernels/ScalarTable.h"

#include "codegen/Kernels/VectorMath.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "llvm/ADT/DenseMap.h"

using namespace mlir;

namespace merak::codegen {
namespace {

// A function of VectorMath as a form.
template <Value (VectorMath::*function)(Value)>
Value form(VectorMath &math, ValueRange operands) {
  return (math.*function)(operands[0]);
}
template <Value (VectorMath::*function)(Value, Value)>
Value form(VectorMath &math, ValueRange operands) {
  return (math.*function)(operands[0], operands[1]);
}
template <Value (VectorMath::*function)(Value, Value, Value)>
Value form(VectorMath &math, ValueRange operands) {
  return (math.*function)(operands[0], operands[1], operands[2]);
}

class Table {
public:
  Table() {
    constants();
    combiners();
    everyWidth();
    functions();
  }
  const ScalarOp &of(Operation *op) const {
    auto row = rows.find(op->getName().getTypeID());
    if (row != rows.end())
      return row->second;
    return isa_and_nonnull<math::MathDialect>(op->getDialect()) ? function
                                                                : simple;
  }

private:
  template <typename... Ops> void add(const ScalarOp &row) {
    (rows.try_emplace(TypeID::get<Ops>(), row), ...);
  }
  void constants();
  void combiners();
  void everyWidth();
  void functions();

  // Of an op without a row: one instruction, or a function of `math`, which the
  // forms here lack (that is an error) or which is one of integers.
  ScalarOp simple, function{.cost = 40, .instructions = 40};
  llvm::DenseMap<TypeID, ScalarOp> rows;
};

} // namespace

// Known before a loop begins.
void Table::constants() {
  add<arith::ConstantOp, linalg::YieldOp, linalg::IndexOp>(
      {.cost = 0, .instructions = 0});
}

// MLIR's arith::getNeutralElement is not used: of maxnumf it is NaN, and
// kernels store it where a reduction is empty.
void Table::combiners() {
  add<arith::AddFOp, arith::AddIOp, arith::OrIOp, arith::XOrIOp,
      arith::MaxUIOp>({.neutral = Neutral::Zero});
  add<arith::MulFOp, arith::MulIOp>({.neutral = Neutral::One});
  add<arith::AndIOp, arith::MinUIOp>({.neutral = Neutral::AllOnes});
  add<arith::MaximumFOp, arith::MaxNumFOp, arith::MaxSIOp>(
      {.neutral = Neutral::Least});
  add<arith::MinimumFOp, arith::MinNumFOp, arith::MinSIOp>(
      {.neutral = Neutral::Greatest});
}

void Table::everyWidth() {
  using M = VectorMath;
  add<arith::DivFOp>({.cost = 4, .instructions = 8});
  add<math::SqrtOp>({.cost = 4, .instructions = 8, .any = form<&M::sqrt>});
  add<math::RsqrtOp>({.cost = 40, .instructions = 8, .any = form<&M::rsqrt>});
  add<math::AbsFOp>({.any = form<&M::abs>});
  add<math::CopySignOp>({.any = form<&M::copySign>});
  add<math::FmaOp>({.any = form<&M::fusedOnly>});
  add<math::FloorOp>({.any = form<&M::floor>});
  add<math::CeilOp>({.any = form<&M::ceil>});
  add<math::RoundEvenOp>(
      {.cost = 40, .instructions = 40, .any = form<&M::roundEven>});
  add<math::RoundOp>({.cost = 40, .instructions = 40, .any = form<&M::round>});
  add<math::TruncOp>({.cost = 40, .instructions = 40, .any = form<&M::trunc>});
}

void Table::functions() {
  using M = VectorMath;
  add<math::ExpOp>({.cost = 10,
                    .instructions = 16,
                    .f64 = form<&M::exp64>,
                    .f32 = form<&M::exp32>});
  add<math::LogOp>({.cost = 16,
                    .instructions = 20,
                    .f64 = form<&M::log64>,
                    .f32 = form<&M::log32>});
  add<math::TanhOp>({.cost = 16,
                     .instructions = 40,
                     .f64 = form<&M::tanh64>,
                     .f32 = form<&M::tanh32>});
  add<math::ErfOp>({.cost = 16, .instructions = 40, .f32 = form<&M::erf32>});
  auto in64 = [](ScalarForm form) {
    return ScalarOp{.cost = 40, .instructions = 40, .f64 = form};
  };
  add<math::Exp2Op>(in64(form<&M::exp2>));
  add<math::ExpM1Op>(in64(form<&M::expm1>));
  add<math::Log2Op>(in64(form<&M::log2>));
  add<math::Log10Op>(in64(form<&M::log10>));
  add<math::Log1pOp>(in64(form<&M::log1p>));
  add<math::SinOp>(in64(form<&M::sin>));
  add<math::CosOp>(in64(form<&M::cos>));
  add<math::TanOp>(in64(form<&M::tan>));
  add<math::SinhOp>(in64(form<&M::sinh>));
  add<math::CoshOp>(in64(form<&M::cosh>));
  add<math::AsinOp>(in64(form<&M::asin>));
  add<math::AcosOp>(in64(form<&M::acos>));
  add<math::AtanOp>(in64(form<&M::atan64>));
  add<math::PowFOp>(in64(form<&M::pow64>));
}

const ScalarOp &scalarOp(Operation *op) {
  static const Table table;
  return table.of(op);
}

} // namespace merak::codegen
