#include "codegen/Kernels/VectorMath.h"

#include "codegen/Kernels/ScalarTable.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/TypeUtilities.h"

#include <cmath>
#include <limits>

using namespace mlir;

namespace merak::codegen {

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
static constexpr double kLog2E = 1.4426950408889634074;
static constexpr double kLn2 = 0.69314718055994530942;

// The type with `element` for elements and the shape of `like`.
static Type withElement(Type like, Type element) {
  if (auto vector = dyn_cast<VectorType>(like))
    return VectorType::get(vector.getShape(), element);
  return element;
}

Value VectorMath::constant(Type type, double value) {
  Attribute attr = b.getFloatAttr(getElementTypeOrSelf(type), value);
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, attr);
  return arith::ConstantOp::create(b, loc, type, cast<TypedAttr>(attr));
}
Value VectorMath::constantInt(Type type, int64_t value) {
  Attribute attr = b.getIntegerAttr(getElementTypeOrSelf(type), value);
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, attr);
  return arith::ConstantOp::create(b, loc, type, cast<TypedAttr>(attr));
}

Value VectorMath::add(Value a, Value c) {
  return arith::AddFOp::create(b, loc, a, c);
}
Value VectorMath::sub(Value a, Value c) {
  return arith::SubFOp::create(b, loc, a, c);
}
Value VectorMath::mul(Value a, Value c) {
  return arith::MulFOp::create(b, loc, a, c);
}
Value VectorMath::div(Value a, Value c) {
  return arith::DivFOp::create(b, loc, a, c);
}
Value VectorMath::fma(Value a, Value c, Value d) {
  if (hasFma)
    return math::FmaOp::create(b, loc, a, c, d);
  return add(mul(a, c), d);
}
Value VectorMath::abs(Value a) { return math::AbsFOp::create(b, loc, a); }
Value VectorMath::copySign(Value a, Value sign) {
  return math::CopySignOp::create(b, loc, a, sign);
}
Value VectorMath::less(Value a, double bound) {
  return arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OLT, a,
                               num(a, bound));
}
Value VectorMath::select(Value condition, Value a, Value c) {
  return arith::SelectOp::create(b, loc, condition, a, c);
}
Value VectorMath::asInt(Value a) {
  unsigned width = getElementTypeOrSelf(a.getType()).getIntOrFloatBitWidth();
  return arith::BitcastOp::create(
      b, loc, withElement(a.getType(), b.getIntegerType(width)), a);
}
Value VectorMath::asFloat(Value a) {
  unsigned width = getElementTypeOrSelf(a.getType()).getIntOrFloatBitWidth();
  Type element = width == 64 ? Type(b.getF64Type()) : b.getF32Type();
  return arith::BitcastOp::create(b, loc, withElement(a.getType(), element), a);
}
Value VectorMath::widen(Value a) {
  return arith::ExtFOp::create(b, loc, withElement(a.getType(), b.getF64Type()),
                               a);
}
Value VectorMath::narrow(Value a) {
  return arith::TruncFOp::create(b, loc,
                                 withElement(a.getType(), b.getF32Type()), a);
}
Value VectorMath::polynomial(Value x, llvm::ArrayRef<double> coefficients) {
  Value sum = num(x, coefficients.back());
  for (double c : llvm::reverse(coefficients.drop_back()))
    sum = fma(sum, x, num(x, c));
  return sum;
}

// How a float's bits are divided, and the bits of 1.5 * 2^mantissa, where
// adding rounds to an integer and leaves it in the low bits.
struct VectorMath::Layout {
  int mantissa;
  int64_t bias, magicBits, rootHalfBits;
  double magic;
};

VectorMath::Layout VectorMath::layoutOf(Type type) {
  if (getElementTypeOrSelf(type).isF32())
    return {23, 127, 0x4b400000, 0x3f3504f3, 12582912.0};
  return {52, 1023, 0x4338000000000000, 0x3fe6a09e667f3bcd, 6755399441055744.0};
}

Value VectorMath::clamp(Value x, double low, double high) {
  x = select(less(x, low), num(x, low), x);
  Value above =
      arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, x, num(x, high));
  return select(above, num(x, high), x);
}

// y 2^n for t = n + 1.5 * 2^mantissa. The scale goes on in two factors, so that
// results below the normal range come out right.
Value VectorMath::timesPowerOfTwo(Value y, Value t) {
  Layout layout = layoutOf(y.getType());
  Value bits = asInt(t);
  Type type = bits.getType();
  Value whole =
      arith::SubIOp::create(b, loc, bits, constantInt(type, layout.magicBits));
  Value half = arith::ShRSIOp::create(b, loc, whole, constantInt(type, 1));
  Value rest = arith::SubIOp::create(b, loc, whole, half);
  for (Value e : {half, rest}) {
    Value biased =
        arith::AddIOp::create(b, loc, e, constantInt(type, layout.bias));
    y = mul(y, asFloat(arith::ShLIOp::create(
                   b, loc, biased, constantInt(type, layout.mantissa))));
  }
  return y;
}

// (e as an integer, m) of x = 2^e m, sqrt(1/2) <= m < sqrt(2).
std::pair<Value, Value> VectorMath::exponentAndMantissa(Value x) {
  Layout layout = layoutOf(x.getType());
  Value bits = asInt(x);
  Type type = bits.getType();
  Value shift = constantInt(type, layout.mantissa);
  Value e = arith::ShRSIOp::create(
      b, loc,
      arith::SubIOp::create(b, loc, bits,
                            constantInt(type, layout.rootHalfBits)),
      shift);
  Value mantissa = asFloat(arith::SubIOp::create(
      b, loc, bits, arith::ShLIOp::create(b, loc, e, shift)));
  return {e, mantissa};
}

// The logarithms of infinity, zero and what is negative or NaN.
Value VectorMath::withEdgesOfLog(Value x, Value y) {
  auto is = [&](arith::CmpFPredicate predicate, double bound) {
    return arith::CmpFOp::create(b, loc, predicate, x, num(x, bound));
  };
  y = select(is(arith::CmpFPredicate::OEQ, kInfinity), num(x, kInfinity), y);
  y = select(is(arith::CmpFPredicate::OEQ, 0.0), num(x, -kInfinity), y);
  return select(is(arith::CmpFPredicate::ULT, 0.0), num(x, kNaN), y);
}

// exp(x) = 2^p (1 + e ln 2): p = x / ln 2 as it was rounded, e what was lost.
// The GPU's 2^p is within 2^-22 ("PTX ISA", ex2.approx) and costs one
// instruction of eight here, where a polynomial and its scale take twenty.
Value VectorMath::expByExp2(Value x) {
  Value p = mul(x, num(x, kLog2E));
  Value lost =
      fma(x, num(x, kLog2E), arith::NegFOp::create(b, loc, p).getResult());
  lost =
      fma(x, num(x, kLog2E - static_cast<double>(static_cast<float>(kLog2E))),
          lost);
  Value power =
      LLVM::CallIntrinsicOp::create(
          b, loc, x.getType(), b.getStringAttr("llvm.nvvm.ex2.approx.ftz.f32"),
          ValueRange{p})
          .getResult(0);
  return mul(power, fma(lost, num(x, kLn2), num(x, 1.0)));
}

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. The polynomial
// (minimax, 3e-9) is of (exp(r) - 1 - r) / r^2.
Value VectorMath::exp32(Value x) {
  // Beyond these bounds the result is 0 or infinity; NaN passes both tests.
  x = clamp(x, -104.0, 89.0);
  if (hasExp2)
    return expByExp2(x);
  Value magic = num(x, layoutOf(x.getType()).magic);
  Value t = fma(x, num(x, kLog2E), magic);
  Value n = sub(t, magic);
  // ln 2 as a short high part (n times it is exact) and the rest.
  Value r = fma(n, num(x, -0.693359375), x);
  r = fma(n, num(x, 2.12194440054690583e-4), r);
  Value p = polynomial(r, {5.000000000e-01, 1.666651666e-01, 4.166619852e-02,
                           8.369072340e-03, 1.395086292e-03});
  return timesPowerOfTwo(add(fma(mul(r, r), p, r), num(x, 1.0)), t);
}

// log(x) = e ln 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); the polynomial
// (minimax, 6e-9) is of (log(1 + f) - f + f^2 / 2) / f^3.
Value VectorMath::log32(Value x) {
  Value tiny = less(x, 1.17549435e-38);
  Value scaled = select(tiny, mul(x, num(x, 8388608.0)), x);
  Value adjust = select(tiny, num(x, -23.0), num(x, 0.0));
  auto [e, mantissa] = exponentAndMantissa(scaled);
  Value n = add(arith::SIToFPOp::create(b, loc, x.getType(), e), adjust);
  Value f = sub(mantissa, num(x, 1.0));
  Value f2 = mul(f, f);
  Value p = polynomial(f, {3.333331645e-01, -2.500080764e-01, 2.000228614e-01,
                           -1.662459522e-01, 1.418121606e-01, -1.312841028e-01,
                           1.288139373e-01, -7.860179245e-02});
  Value y = mul(mul(f, f2), p);
  y = fma(n, num(x, -2.12194440054690583e-4), y);
  y = fma(f2, num(x, -0.5), y);
  y = fma(n, num(x, 0.693359375), add(f, y));
  return withEdgesOfLog(x, y);
}

// Near zero an odd polynomial (minimax, 5e-9), else 1 - 2 / (exp(2|x|) + 1).
Value VectorMath::tanh32(Value x) {
  Value a = abs(x);
  Value z = mul(x, x);
  Value p = polynomial(z, {-3.333328068e-01, 1.333135366e-01, -5.373094231e-02,
                           2.060670592e-02, -5.665330682e-03});
  Value small = fma(mul(a, z), p, a);
  Value e = exp32(add(a, a));
  Value large = sub(num(x, 1.0), div(num(x, 2.0), add(e, num(x, 1.0))));
  return copySign(select(less(a, 0.625), small, large), x);
}

// Near zero an odd polynomial (minimax, 4e-10), else 1 - exp(log(erfc(|x|)))
// with a polynomial for the logarithm; at 4 the result is 1 in f32.
Value VectorMath::erf32(Value x) {
  Value a = abs(x);
  Value z = mul(x, x);
  Value small =
      mul(a, polynomial(z, {1.128379226e+00, -3.761263490e-01, 1.128370166e-01,
                            -2.685969695e-02, 5.201704800e-03, -8.149676141e-04,
                            8.397245256e-05}));
  Value t = select(
      arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, a, num(x, 4.0)),
      num(x, 4.0), a);
  Value logarithm =
      polynomial(t, {1.613860222e-04, -1.129450321e+00, -6.334786415e-01,
                     -1.081340015e-01, 2.502436005e-02, -4.134782124e-03,
                     4.269477213e-04, -2.044360190e-05});
  Value large = sub(num(x, 1.0), exp32(logarithm));
  return copySign(select(less(a, 0.9), small, large), x);
}

// As exp32, with the Taylor series (remainder 4e-18).
Value VectorMath::exp64(Value x) {
  x = clamp(x, -746.0, 710.0);
  Value magic = num(x, layoutOf(x.getType()).magic);
  Value t = fma(x, num(x, kLog2E), magic);
  Value n = sub(t, magic);
  Value r = fma(n, num(x, -6.93147180369123816490e-01), x);
  r = fma(n, num(x, -1.90821492927058770002e-10), r);
  double coefficients[12];
  double factorial = 1;
  for (int i = 0; i < 12; ++i)
    coefficients[i] = 1.0 / (factorial *= i + 2);
  Value p = polynomial(r, llvm::ArrayRef<double>(coefficients));
  // coefficients[i] = 1 / (i + 2)!
  return timesPowerOfTwo(add(fma(mul(r, r), p, r), num(x, 1.0)), t);
}

// As log32, with log(1 + f) = 2 atanh(s), s = f / (2 + f): s^2 <= 0.0295, so
// eleven terms of the series reach 1e-17.
Value VectorMath::log64(Value x) {
  Value tiny = less(x, 2.2250738585072014e-308);
  Value scaled = select(tiny, mul(x, num(x, 18014398509481984.0)), x);
  Value adjust = select(tiny, num(x, -54.0), num(x, 0.0));
  auto [e, mantissa] = exponentAndMantissa(scaled);
  // e as a double: its bits in the low end of 1.5 * 2^52.
  Layout layout = layoutOf(x.getType());
  Value n = sub(asFloat(arith::AddIOp::create(
                    b, loc, e, constantInt(e.getType(), layout.magicBits))),
                num(x, layout.magic));
  n = add(n, adjust);
  Value f = sub(mantissa, num(x, 1.0));
  Value s = div(f, add(f, num(x, 2.0)));
  Value z = mul(s, s);
  double coefficients[11];
  for (int i = 0; i < 11; ++i)
    coefficients[i] = 2.0 / (2 * i + 3);
  Value y = mul(mul(s, z), polynomial(z, llvm::ArrayRef<double>(coefficients)));
  y = fma(n, num(x, 1.90821492927058770002e-10), y);
  y = add(y, add(s, s));
  y = fma(n, num(x, 6.93147180369123816490e-01), y);
  return withEdgesOfLog(x, y);
}

// Near zero sinh / cosh by their series, else 1 - 2 / (exp(2|x|) + 1).
Value VectorMath::tanh64(Value x) {
  Value a = abs(x);
  Value z = mul(x, x);
  double odd[8], even[8];
  double factorial = 1;
  for (int i = 0; i < 8; ++i) {
    factorial *= i ? 2 * i : 1;
    even[i] = 1 / factorial;
    factorial *= 2 * i + 1;
    odd[i] = 1 / factorial;
  }
  Value small = div(mul(a, polynomial(z, llvm::ArrayRef<double>(odd))),
                    polynomial(z, llvm::ArrayRef<double>(even)));
  Value e = exp64(add(a, a));
  Value large = sub(num(x, 1.0), div(num(x, 2.0), add(e, num(x, 1.0))));
  return copySign(select(less(a, 0.5), small, large), x);
}

// exp(x) - 1 = tanh(x/2) (exp(x) + 1), without cancellation.
Value VectorMath::expm1(Value x) {
  Value e = exp64(x);
  Value near = mul(tanh64(mul(x, num(x, 0.5))), add(e, num(x, 1.0)));
  return select(less(abs(x), 1.0), near, sub(e, num(x, 1.0)));
}

// log(1 + x) with the rounding of u = 1 + x made up for to first order.
Value VectorMath::log1p(Value x) {
  Value u = add(x, num(x, 1.0));
  Value lost = sub(sub(u, num(x, 1.0)), x);
  Value near = sub(log64(u), div(lost, u));
  return select(less(abs(x), 1.0), near, log64(u));
}

// x = n pi/2 + r with pi/2 in three parts; good for |x| < 1e8.
Value VectorMath::sinCos64(Value x, bool cosine) {
  constexpr double kMagic = 6755399441055744.0;
  Value t = fma(x, num(x, 0.63661977236758134308), num(x, kMagic));
  Value n = sub(t, num(x, kMagic));
  Value r = fma(n, num(x, -1.57079632673412561417e+00), x);
  r = fma(n, num(x, -6.07710050630396597660e-11), r);
  r = fma(n, num(x, -2.02226624879595063154e-21), r);
  Value z = mul(r, r);
  double odd[9], even[9];
  double factorial = 1;
  for (int i = 0; i < 9; ++i) {
    factorial *= i ? 2 * i : 1;
    even[i] = (i % 2 ? -1 : 1) / factorial;
    factorial *= 2 * i + 1;
    odd[i] = (i % 2 ? -1 : 1) / factorial;
  }
  Value sine = mul(r, polynomial(z, llvm::ArrayRef<double>(odd)));
  Value cosineOfR = polynomial(z, llvm::ArrayRef<double>(even));
  Value quadrant = asInt(t);
  Type type = quadrant.getType();
  if (cosine)
    quadrant = arith::AddIOp::create(b, loc, quadrant, constantInt(type, 1));
  auto bitSet = [&](int64_t bit) -> Value {
    Value masked =
        arith::AndIOp::create(b, loc, quadrant, constantInt(type, bit));
    return arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ne, masked,
                                 constantInt(type, 0));
  };
  Value y = select(bitSet(1), cosineOfR, sine);
  return select(bitSet(2), arith::NegFOp::create(b, loc, y), y);
}

// |x|^y = exp(y log|x|); a negative x needs an integer y.
Value VectorMath::pow64(Value x, Value y) {
  Value r = exp64(mul(y, log64(abs(x))));
  auto isWhole = [&](Value v) -> Value {
    return arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OEQ,
                                 roundEven(v), v);
  };
  Value halfWhole = isWhole(mul(y, num(y, 0.5)));
  Value signedR = select(halfWhole, r, arith::NegFOp::create(b, loc, r));
  Value ofNegative = select(isWhole(y), signedR, num(x, kNaN));
  r = select(less(x, 0.0), ofNegative, r);
  auto equals = [&](Value v, double bound) {
    return arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OEQ, v,
                                 num(v, bound));
  };
  r = select(equals(y, 0.0), num(x, 1.0), r);
  return select(equals(x, 1.0), num(x, 1.0), r);
}

// Argument halved twice by atan(x) = 2 atan(x / (1 + sqrt(1 + x^2))) after the
// reciprocal for |x| > 1; then a series in at most tan(pi/16)^2.
Value VectorMath::atan64(Value x) {
  Value a = abs(x);
  Value big =
      arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, a, num(x, 1.0));
  Value u = select(big, div(num(x, 1.0), a), a);
  for (int i = 0; i < 2; ++i) {
    Value root =
        math::SqrtOp::create(b, loc, fma(u, u, num(x, 1.0))).getResult();
    u = div(u, add(root, num(x, 1.0)));
  }
  Value z = mul(u, u);
  double series[12];
  for (int i = 0; i < 12; ++i)
    series[i] = (i % 2 ? -4.0 : 4.0) / (2 * i + 1);
  Value y = mul(u, polynomial(z, llvm::ArrayRef<double>(series)));
  y = select(big, sub(num(x, 1.57079632679489661923), y), y);
  return copySign(y, x);
}

// Adding and taking off 2^mantissa rounds to an integer.
Value VectorMath::roundEven(Value x) {
  if (hasRound)
    return math::RoundEvenOp::create(b, loc, x);
  bool wide = getElementTypeOrSelf(x.getType()).isF64();
  double magic = wide ? 4503599627370496.0 : 8388608.0;
  Value a = abs(x);
  Value r = sub(add(a, num(x, magic)), num(x, magic));
  return select(less(a, magic), copySign(r, x), x);
}
Value VectorMath::floor(Value x) {
  if (hasRound)
    return math::FloorOp::create(b, loc, x);
  Value r = roundEven(x);
  Value above = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGT, r, x);
  return copySign(select(above, sub(r, num(x, 1.0)), r), x);
}

Value VectorMath::ceil(Value x) {
  return arith::NegFOp::create(b, loc, floor(arith::NegFOp::create(b, loc, x)));
}
Value VectorMath::trunc(Value x) { return copySign(floor(abs(x)), x); }
// Halves away from zero.
Value VectorMath::round(Value x) {
  Value a = abs(x);
  Value whole = floor(a);
  Value up = arith::CmpFOp::create(b, loc, arith::CmpFPredicate::OGE,
                                   sub(a, whole), num(x, 0.5));
  return copySign(select(up, add(whole, num(x, 1.0)), whole), x);
}

Value VectorMath::sqrt(Value x) { return math::SqrtOp::create(b, loc, x); }
Value VectorMath::rsqrt(Value x) {
  return div(num(x, 1.0), math::SqrtOp::create(b, loc, x));
}
Value VectorMath::fusedOnly(Value a, Value c, Value d) {
  return hasFma ? Value(math::FmaOp::create(b, loc, a, c, d)) : Value();
}

Value VectorMath::exp2(Value x) { return exp64(mul(x, num(x, kLn2))); }
Value VectorMath::log2(Value x) { return mul(log64(x), num(x, kLog2E)); }
Value VectorMath::log10(Value x) {
  return mul(log64(x), num(x, 0.43429448190325182765));
}
Value VectorMath::sin(Value x) { return sinCos64(x, false); }
Value VectorMath::cos(Value x) { return sinCos64(x, true); }
Value VectorMath::tan(Value x) {
  return div(sinCos64(x, false), sinCos64(x, true));
}

Value VectorMath::cosh(Value x) {
  Value e = exp64(x);
  Value inverse = div(num(x, 1.0), e);
  return mul(add(e, inverse), num(x, 0.5));
}
// (m + m / (m + 1)) / 2 with m = exp(x) - 1 is exact near zero.
Value VectorMath::sinh(Value x) {
  Value e = exp64(x);
  Value inverse = div(num(x, 1.0), e);
  Value m = expm1(x);
  Value near = mul(add(m, div(m, add(m, num(x, 1.0)))), num(x, 0.5));
  return select(less(abs(x), 1.0), near, mul(sub(e, inverse), num(x, 0.5)));
}

Value VectorMath::asin(Value x) {
  Value root = math::SqrtOp::create(
      b, loc, mul(sub(num(x, 1.0), x), add(num(x, 1.0), x)));
  return atan64(div(x, root));
}
Value VectorMath::acos(Value x) {
  Value arc = asin(x);
  return sub(num(x, 1.57079632679489661923), arc);
}

Value VectorMath::emit(Operation *op, ValueRange operands) {
  const ScalarOp &row = scalarOp(op);
  if (row.any)
    return row.any(*this, operands);
  bool isF32 = getElementTypeOrSelf(operands[0].getType()).isF32();
  if (ScalarForm own = isF32 ? row.f32 : row.f64)
    return own(*this, operands);
  if (!isF32 || !row.f64)
    return nullptr;
  llvm::SmallVector<Value> wide;
  for (Value operand : operands)
    wide.push_back(widen(operand));
  return narrow(row.f64(*this, wide));
}

} // namespace merak::codegen
