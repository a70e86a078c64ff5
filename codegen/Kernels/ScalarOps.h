// Writes one scalar operation of a kernel's body on scalars or on vectors of
// sixteen lanes.
//
// Element types in registers: bf16 is held as an f32 that is rounded to bf16
// after every operation, index is i64, all others are themselves.
#pragma once

#include "codegen/Kernels/KernelTarget.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"
#include "llvm/ADT/DenseMap.h"

namespace merak::codegen {

class ScalarOps {
public:
  ScalarOps(mlir::OpBuilder &builder, const KernelTarget &target)
      : b(builder), target(target) {}

  // The type in registers of one element, and of sixteen.
  mlir::Type scalarType(mlir::Type element) const;
  mlir::Type vectorType(mlir::Type element) const;
  // The type in memory.
  mlir::Type memoryType(mlir::Type element) const;
  mlir::Value fromMemory(mlir::Value value, mlir::Type element);
  mlir::Value toMemory(mlir::Value value, mlir::Type element);

  // Two neighbouring elements of 16 bits of memory in one word of 32 bits, the
  // first one low.
  static bool isHalf(mlir::Type element) {
    return element.isBF16() || element.isF16();
  }
  mlir::Value fromWord(mlir::Value word, bool isHigh, mlir::Type element);
  mlir::Value toWord(mlir::Value low, mlir::Value high, mlir::Type element);

  // Ends the use of numbers as they were before they were rounded: who holds
  // both of them for long needs more registers.
  void forgetUnrounded() { unrounded.clear(); }

  // `op` applied to `operands` (all vectors if one is). Null after an error at
  // `op` if the operation is not available.
  mlir::Value emit(mlir::Operation *op, mlir::ValueRange operands);
  mlir::Value splat(mlir::Value value);
  // An f32 to the nearest bf16, held as f32.
  mlir::Value roundToBf16(mlir::Value value);
  // An f64 to the f32 towards it whose last bit is set, or itself if an f32
  // holds it: rounding that again to f16 or bf16 gives the nearest one, ties
  // decided by all bits (Boldo and Melquiond, 2008, "Emulation of FMA and
  // correctly rounded sums: proved algorithms using rounding to odd").
  mlir::Value roundToOdd(mlir::Value value);
  mlir::Value constant(mlir::Type type, mlir::Attribute value);
  mlir::Value constantInt(mlir::Type type, int64_t value);

  // If `op` combines (a, b) -> c associatively: the attribute of its neutral
  // element, of type `element`; else null.
  static mlir::TypedAttr neutral(mlir::Operation *op, mlir::Type element);

private:
  mlir::Value divide(mlir::Operation *op, mlir::Value a, mlir::Value d);
  mlir::Value castInt(mlir::Value value, mlir::Type element, bool isSigned);
  mlir::Type like(mlir::Type shape, mlir::Type element) const;

  // Upper bits `high`, lower ones `low`, both rounded to the type (GPUs).
  mlir::Value convertedPair(mlir::Value high, mlir::Value low,
                            mlir::Type element);

  mlir::OpBuilder &b;
  const KernelTarget &target;
  // What a number was before it was rounded to 16 bits (GPUs): two of them are
  // rounded and joined in one instruction.
  llvm::DenseMap<mlir::Value, mlir::Value> unrounded;
};

} // namespace merak::codegen
