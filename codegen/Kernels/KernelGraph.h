// What a kernel function computes, read off its linalg ops: one iteration
// domain shared by all of them, how each operand lies in memory along the
// dimensions of the domain, and which values are reductions.
//
// Each loop of each linalg.generic belongs to one *dimension* of the domain:
// loops are unified through the tensors they share. Loops of size 1 belong to
// none (-1): their index is always 0.
#pragma once

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>

namespace merak::codegen {

// Attributes of kernel functions, see docs/Kernels.md.
inline constexpr const char *kKernelAttr = "merak.kernel";
inline constexpr const char *kScalarAttr = "merak.scalar";
inline constexpr const char *kStridesAttr = "merak.strides";
inline constexpr const char *kAccumulateAttr = "merak.accumulate";

// A tensor in memory: an argument or a result of the function.
struct KernelOperand {
  mlir::Value value; // the argument, or the value that is returned
  mlir::Type element;
  llvm::SmallVector<int64_t> shape, strides;
  bool isOutput = false;
  bool accumulate = false;
};

// One way in which an operand is indexed: elements to advance per dimension.
struct Access {
  unsigned operand;
  llvm::SmallVector<int64_t> strides; // by dimension
};

struct Dimension {
  int64_t size;
  bool reduced = false;
};

class KernelGraph {
public:
  // Emits an error at the offending op and fails if `function` is not a kernel
  // of the supported form.
  static mlir::FailureOr<KernelGraph> build(mlir::func::FuncOp function);

  mlir::func::FuncOp function;
  llvm::SmallVector<KernelOperand> operands;      // inputs, then outputs
  llvm::SmallVector<mlir::BlockArgument> scalars; // in order
  llvm::SmallVector<Dimension> dims;              // outer to inner
  llvm::SmallVector<Access> accesses;
  unsigned firstOutput = 0;

  // By operand of a linalg.generic that is a tensor argument; by output.
  llvm::DenseMap<mlir::OpOperand *, unsigned> readAccess;
  llvm::SmallVector<unsigned> outputAccess;
  // Loops of a generic by dimension; -1: size 1.
  llvm::DenseMap<mlir::Operation *, llvm::SmallVector<int>> loops;

  bool hasReduction() const;
  // Whether `value` is a reduction over the reduced dimensions.
  bool isReduction(mlir::OpResult value) const;
  // Whether `value`, a result of a generic, varies along a reduced dimension.
  bool variesInReduction(mlir::Value value) const;
  // The pass over the reduced dimensions that computes a reduction; and the
  // first pass in which a value is known.
  int passOf(mlir::OpResult reduction) const;
  int knownIn(mlir::Value value) const;

private:
  friend class GraphBuilder;
  llvm::DenseMap<mlir::Value, int> known;
  llvm::DenseMap<mlir::Value, bool> reductions;
};

} // namespace merak::codegen
