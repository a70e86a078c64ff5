// Elementary functions on scalars and vectors alike, written as arithmetic: no
// call leaves a kernel. A scalar and a lane of a vector give the same bits.
//
// Errors measured over the whole range (test/unit-compiler/codegen): exp, log,
// tanh, erf of f32 within 2e-7 relative; the other f32 functions are computed
// in f64 and rounded. On GPUs exp of f32, and what is made of it, is within
// 4e-7, and 0 below the normal range.
#pragma once

#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "llvm/ADT/ArrayRef.h"

#include <utility>

namespace merak::codegen {

class VectorMath {
public:
  using Value = mlir::Value;

  // `hasExp2`: an NVIDIA GPU's approximation of 2^x.
  VectorMath(mlir::OpBuilder &builder, mlir::Location loc, bool hasFma,
             bool hasRound, bool hasExp2 = false)
      : b(builder), loc(loc), hasFma(hasFma), hasRound(hasRound),
        hasExp2(hasExp2) {}

  // The value of the `math` op `op` on operands of one type (f32, f64 or
  // vectors of them), written as its row of the table says (ScalarTable.h);
  // null if there is no form of it here.
  Value emit(mlir::Operation *op, mlir::ValueRange operands);

  // A constant of `like`'s type.
  Value constant(mlir::Type type, double value);
  Value constantInt(mlir::Type type, int64_t value);

  // On every width.
  Value abs(Value a);
  Value copySign(Value a, Value sign);
  Value sqrt(Value x);
  Value rsqrt(Value x);
  Value roundEven(Value x);
  Value floor(Value x);
  Value ceil(Value x);
  Value trunc(Value x);
  Value round(Value x);
  // Null where the target has no such instruction: in two steps it would round
  // twice.
  Value fusedOnly(Value a, Value c, Value d);

  Value exp32(Value x);
  Value log32(Value x);
  Value tanh32(Value x);
  Value erf32(Value x);

  // In f64.
  Value exp64(Value x);
  Value log64(Value x);
  Value tanh64(Value x);
  Value atan64(Value x);
  Value pow64(Value x, Value y);
  Value exp2(Value x);
  Value expm1(Value x);
  Value log2(Value x);
  Value log10(Value x);
  Value log1p(Value x);
  Value sin(Value x);
  Value cos(Value x);
  Value tan(Value x);
  Value sinh(Value x);
  Value cosh(Value x);
  Value asin(Value x);
  Value acos(Value x);

private:
  Value sinCos64(Value x, bool cosine);
  struct Layout;
  static Layout layoutOf(mlir::Type type);
  Value clamp(Value x, double low, double high);
  Value expByExp2(Value x);
  Value timesPowerOfTwo(Value y, Value t);
  std::pair<Value, Value> exponentAndMantissa(Value x);
  Value withEdgesOfLog(Value x, Value y);

  Value add(Value a, Value c);
  Value sub(Value a, Value c);
  Value mul(Value a, Value c);
  Value div(Value a, Value c);
  Value fma(Value a, Value c, Value d);
  Value less(Value a, double bound);
  Value select(Value condition, Value a, Value c);
  Value asInt(Value a);
  Value asFloat(Value a);
  Value widen(Value a);
  Value narrow(Value a);
  Value num(Value like, double value) {
    return constant(like.getType(), value);
  }
  // c[0] + c[1] x + ... by Horner's rule.
  Value polynomial(Value x, llvm::ArrayRef<double> coefficients);

  mlir::OpBuilder &b;
  mlir::Location loc;
  bool hasFma, hasRound, hasExp2;
};

} // namespace merak::codegen
