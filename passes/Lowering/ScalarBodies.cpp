#include "passes/Lowering/ScalarBodies.h"
#include "dialects/Train/TrainDialect.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"

#include <cmath>

using namespace mlir;
using namespace merak::train;

namespace merak::lowering {

namespace {

class Body {
public:
  Body(OpBuilder &builder, Location location, ValueRange in)
      : b(builder), loc(location), in(in) {}

  Value emit(Operation *op) {
    bool real = isa<FloatType>(in[0].getType());
    return llvm::TypeSwitch<Operation *, Value>(op)
        .Case([&](NegOp) {
          return real ? make<arith::NegFOp>(in[0])
                      : make<arith::SubIOp>(zero(), in[0]);
        })
        .Case([&](ExpOp) { return make<math::ExpOp>(in[0]); })
        .Case([&](LogOp) { return make<math::LogOp>(in[0]); })
        .Case([&](SqrtOp) { return make<math::SqrtOp>(in[0]); })
        .Case(
            [&](ReciprocalOp) { return make<arith::DivFOp>(number(1), in[0]); })
        .Case([&](AbsOp) {
          return real ? make<math::AbsFOp>(in[0]) : make<math::AbsIOp>(in[0]);
        })
        .Case([&](SinOp) { return make<math::SinOp>(in[0]); })
        .Case([&](CosOp) { return make<math::CosOp>(in[0]); })
        .Case([&](TanhOp) { return make<math::TanhOp>(in[0]); })
        .Case([&](ErfOp) { return make<math::ErfOp>(in[0]); })
        .Case([&](TanOp) { return make<math::TanOp>(in[0]); })
        .Case([&](AsinOp) { return make<math::AsinOp>(in[0]); })
        .Case([&](AcosOp) { return make<math::AcosOp>(in[0]); })
        .Case([&](AtanOp) { return make<math::AtanOp>(in[0]); })
        .Case([&](SinhOp) { return make<math::SinhOp>(in[0]); })
        .Case([&](CoshOp) { return make<math::CoshOp>(in[0]); })
        .Case([&](FloorOp) { return make<math::FloorOp>(in[0]); })
        .Case([&](RoundOp) { return make<math::RoundEvenOp>(in[0]); })
        .Case([&](SigmoidOp) { return sigmoid(in[0]); })
        .Case([&](ReluOp) { return maximum(in[0], zero()); })
        .Case([&](NotOp) { return make<arith::XOrIOp>(in[0], integer(1)); })
        .Case([&](GeluOp gelu) { return emitGelu(gelu.getTanh()); })
        .Case([&](GeluGradOp gelu) {
          return make<arith::MulFOp>(in[0], geluSlope(in[1], gelu.getTanh()));
        })
        .Case([&](CastOp cast) {
          return convert(in[0], getElementTypeOrSelf(cast.getY().getType()),
                         isUnsigned(op->getOperand(0)));
        })
        .Case([&](AddOp) { return binary<arith::AddFOp, arith::AddIOp>(real); })
        .Case([&](SubOp) { return binary<arith::SubFOp, arith::SubIOp>(real); })
        .Case([&](MulOp) { return binary<arith::MulFOp, arith::MulIOp>(real); })
        .Case([&](DivOp) {
          return isUnsigned(op->getOperand(0))
                     ? make<arith::DivUIOp>(in[0], in[1])
                     : binary<arith::DivFOp, arith::DivSIOp>(real);
        })
        .Case([&](PowOp) { return make<math::PowFOp>(in[0], in[1]); })
        .Case([&](MaxOp) {
          return isUnsigned(op->getOperand(0))
                     ? make<arith::MaxUIOp>(in[0], in[1])
                     : maximum(in[0], in[1]);
        })
        .Case([&](MinOp) {
          return isUnsigned(op->getOperand(0))
                     ? make<arith::MinUIOp>(in[0], in[1])
                     : binary<arith::MinimumFOp, arith::MinSIOp>(real);
        })
        .Case([&](AndOp) { return make<arith::AndIOp>(in[0], in[1]); })
        .Case([&](OrOp) { return make<arith::OrIOp>(in[0], in[1]); })
        .Case([&](XorOp) { return make<arith::XOrIOp>(in[0], in[1]); })
        .Case([&](ShiftLeftOp) { return shift<arith::ShLIOp>(); })
        .Case([&](ShiftRightOp) {
          return isUnsigned(op->getOperand(0)) ? shift<arith::ShRUIOp>()
                                               : shift<arith::ShRSIOp>();
        })
        .Case([&](CompareOp compare) {
          return emitCompare(compare.getPredicate(), real,
                             isUnsigned(op->getOperand(0)));
        })
        .Case([&](SelectOp) {
          return make<arith::SelectOp>(in[0], in[1], in[2]);
        })
        .Default([](Operation *) { return Value(); });
  }

private:
  static bool isUnsigned(Value tensor) {
    return getElementTypeOrSelf(tensor.getType()).isUnsignedInteger();
  }
  template <typename Op, typename... Args> Value make(Args... args) {
    return Op::create(b, loc, args...).getResult();
  }
  template <typename Real, typename Integer> Value binary(bool real) {
    return real ? make<Real>(in[0], in[1]) : make<Integer>(in[0], in[1]);
  }
  Value number(double value) {
    return make<arith::ConstantOp>(
        cast<TypedAttr>(b.getFloatAttr(in[0].getType(), value)));
  }
  Value integer(int64_t value) {
    return make<arith::ConstantOp>(
        cast<TypedAttr>(b.getIntegerAttr(in[0].getType(), value)));
  }
  Value zero() {
    return isa<FloatType>(in[0].getType()) ? number(0) : integer(0);
  }
  // An amount of the width or more (a negative one is taken as very large)
  // leaves nothing but the sign; processors do not agree on it.
  template <typename Shift> Value shift() {
    int64_t width = in[0].getType().getIntOrFloatBitWidth();
    Value last = integer(width - 1);
    Value amount = make<arith::MinUIOp>(in[1], last);
    Value shifted = make<Shift>(in[0], amount);
    if (std::is_same_v<Shift, arith::ShRSIOp>)
      return shifted;
    return make<arith::SelectOp>(
        make<arith::CmpIOp>(arith::CmpIPredicate::ule, in[1], last), shifted,
        integer(0));
  }
  Value maximum(Value x, Value y) {
    return isa<FloatType>(x.getType()) ? make<arith::MaximumFOp>(x, y)
                                       : make<arith::MaxSIOp>(x, y);
  }
  Value mul(Value x, Value y) { return make<arith::MulFOp>(x, y); }
  Value add(Value x, Value y) { return make<arith::AddFOp>(x, y); }

  Value sigmoid(Value x) {
    return make<arith::DivFOp>(
        number(1), add(number(1), make<math::ExpOp>(make<arith::NegFOp>(x))));
  }

  // sqrt(2/pi) (x + 0.044715 x^3), the argument of the tanh form.
  Value inner(Value x) {
    Value cube = mul(mul(x, x), x);
    return mul(number(std::sqrt(2 / M_PI)),
               add(x, mul(number(0.044715), cube)));
  }
  Value normalCdf(Value x) {
    return mul(number(0.5),
               add(number(1), make<math::ErfOp>(mul(x, number(M_SQRT1_2)))));
  }
  Value emitGelu(bool tanh) {
    Value x = in[0];
    if (!tanh)
      return mul(x, normalCdf(x));
    return mul(mul(number(0.5), x),
               add(number(1), make<math::TanhOp>(inner(x))));
  }
  Value geluSlope(Value x, bool tanh) {
    if (!tanh) {
      Value density = mul(number(1 / std::sqrt(2 * M_PI)),
                          make<math::ExpOp>(mul(number(-0.5), mul(x, x))));
      return add(normalCdf(x), mul(x, density));
    }
    Value t = make<math::TanhOp>(inner(x));
    Value slope = mul(number(std::sqrt(2 / M_PI)),
                      add(number(1), mul(number(3 * 0.044715), mul(x, x))));
    Value sech = make<arith::SubFOp>(number(1), mul(t, t));
    return add(mul(number(0.5), add(number(1), t)),
               mul(mul(mul(number(0.5), x), sech), slope));
  }

  Value emitCompare(ComparePredicate predicate, bool real, bool isUnsigned) {
    using F = arith::CmpFPredicate;
    using I = arith::CmpIPredicate;
    static constexpr F reals[] = {F::OEQ, F::UNE, F::OLT,
                                  F::OLE, F::OGT, F::OGE};
    static constexpr I integers[] = {I::eq,  I::ne,  I::slt,
                                     I::sle, I::sgt, I::sge};
    static constexpr I naturals[] = {I::eq,  I::ne,  I::ult,
                                     I::ule, I::ugt, I::uge};
    int index = static_cast<int>(predicate);
    return real ? make<arith::CmpFOp>(reals[index], in[0], in[1])
                : make<arith::CmpIOp>((isUnsigned ? naturals : integers)[index],
                                      in[0], in[1]);
  }

  // `to` may be unsigned: the bits that come out are those of its values.
  Value convert(Value x, Type to, bool fromUnsigned) {
    bool toUnsigned = to.isUnsignedInteger();
    if (toUnsigned)
      to = b.getIntegerType(to.getIntOrFloatBitWidth());
    Type from = x.getType();
    if (from == to)
      return x;
    auto toReal = dyn_cast<FloatType>(to);
    if (auto fromReal = dyn_cast<FloatType>(from)) {
      if (to.isInteger(1))
        return make<arith::CmpFOp>(arith::CmpFPredicate::UNE, x, number(0));
      if (!toReal)
        return toUnsigned ? make<arith::FPToUIOp>(to, x)
                          : make<arith::FPToSIOp>(to, x);
      if (fromReal.getWidth() < toReal.getWidth())
        return make<arith::ExtFOp>(to, x);
      if (fromReal.getWidth() > toReal.getWidth())
        return make<arith::TruncFOp>(to, x);
      // bf16 <-> f16: through f32.
      return make<arith::TruncFOp>(to, make<arith::ExtFOp>(b.getF32Type(), x));
    }
    if (to.isInteger(1))
      return make<arith::CmpIOp>(arith::CmpIPredicate::ne, x, integer(0));
    bool isBool = from.isInteger(1) || fromUnsigned;
    if (toReal)
      return isBool ? make<arith::UIToFPOp>(to, x)
                    : make<arith::SIToFPOp>(to, x);
    if (from.getIntOrFloatBitWidth() > to.getIntOrFloatBitWidth())
      return make<arith::TruncIOp>(to, x);
    if (from.getIntOrFloatBitWidth() == to.getIntOrFloatBitWidth())
      return x;
    return isBool ? make<arith::ExtUIOp>(to, x) : make<arith::ExtSIOp>(to, x);
  }

  OpBuilder &b;
  Location loc;
  ValueRange in;
};

} // namespace

Value emitScalarBody(OpBuilder &builder, Operation *op, ValueRange scalars) {
  return Body(builder, op->getLoc(), scalars).emit(op);
}

} // namespace merak::lowering
