// What kernels know of each scalar op, one row an op class: what it costs, what
// it starts from as the combiner of a reduction, and how it is written where it
// is no single instruction. A new op is a new row (ScalarTable.cpp).
#pragma once

#include "mlir/IR/Operation.h"
#include "mlir/IR/ValueRange.h"

namespace merak::codegen {

class VectorMath;

// The value that changes nothing when an op combines it with another one; None:
// the op combines nothing.
enum class Neutral { None, Zero, One, AllOnes, Least, Greatest };

// Writes an op on operands of one type; null: this target lacks it.
using ScalarForm = mlir::Value (*)(VectorMath &, mlir::ValueRange);

struct ScalarOp {
  // Rough work of one evaluation, in simple operations: decides how kernels are
  // cut, and so which bits they give.
  double cost = 1;
  // Instructions of the forms below, a division as long as eight additions:
  // what the cost model predicts with.
  double instructions = 1;
  Neutral neutral = Neutral::None;
  // The same on every width; or in f64, and in f32 where that has one of its
  // own (else it is computed in f64 and rounded). Of arith: none, the op
  // itself.
  ScalarForm any = nullptr, f64 = nullptr, f32 = nullptr;
};

const ScalarOp &scalarOp(mlir::Operation *op);

} // namespace merak::codegen
