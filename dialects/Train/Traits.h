// What kind an op is: facts that planning, fusion and lowering ask for. An op
// declares them in TrainOps.td and nowhere else; a new op needs no list.
#pragma once

#include "mlir/IR/OpDefinition.h"

namespace merak::train {

// Each result element is made from one element of each operand, with NumPy
// broadcasting, and can be computed in a loop with its neighbours.
template <typename Op>
struct Pointwise : mlir::OpTrait::TraitBase<Op, Pointwise> {};

// Two or three operands that broadcast to the result's shape.
template <typename Op>
struct Broadcasts : mlir::OpTrait::TraitBase<Op, Broadcasts> {};

// Only moves elements of its first operand: a view where strides allow it.
template <typename Op>
struct ViewLike : mlir::OpTrait::TraitBase<Op, ViewLike> {};

// Products: their flops are what tensor parallelism divides, and they are too
// dear to be computed again wherever they are needed.
template <typename Op>
struct Contraction : mlir::OpTrait::TraitBase<Op, Contraction> {};

// Its kernel can add to what the output holds.
template <typename Op>
struct AddsInPlace : mlir::OpTrait::TraitBase<Op, AddsInPlace> {};

// Its kernel can leave the result of 16-bit operands in f32.
template <typename Op>
struct WidensResult : mlir::OpTrait::TraitBase<Op, WidensResult> {};

// In mixed precision (docs/Precision.md); ops without one of these need f32.
// Runs on matrix units: operands are converted to 16 bits.
template <typename Op>
struct LowPrecision : mlir::OpTrait::TraitBase<Op, LowPrecision> {};
// Computes in the type that its operands already have.
template <typename Op>
struct FollowsPrecision : mlir::OpTrait::TraitBase<Op, FollowsPrecision> {};
// Takes 16 bits and has f32 results.
template <typename Op>
struct AnyPrecision : mlir::OpTrait::TraitBase<Op, AnyPrecision> {};
// No kernel computes it in f64.
template <typename Op>
struct LacksDouble : mlir::OpTrait::TraitBase<Op, LacksDouble> {};

} // namespace merak::train
