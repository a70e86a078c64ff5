// What the writers of kernels share, whether these run over vectors
// (EmitterState.h) or as a grid of threads (GridEmitter.h): operands and
// scalars at the entry, and the form of a reduction.
#pragma once

#include "codegen/Kernels/KernelGraph.h"
#include "codegen/Kernels/ScalarOps.h"

#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

namespace merak::codegen::emitter {

using namespace mlir;

// A reduction that a pass computes.
struct Reduction {
  OpResult result;
  Operation *combiner;
  Value contribution; // inside the body of the generic
  Type element;
};

class EmitterBase {
protected:
  EmitterBase(ModuleOp module, const KernelGraph &graph,
              const KernelTarget &target)
      : module(module), b(module.getContext()), loc(b.getUnknownLoc()),
        ops(b, target), graph(graph), kernel(graph.function) {}

  // Constants and integer arithmetic on i64.
  Value i64(int64_t value) { return ops.constantInt(b.getI64Type(), value); }
  Value addI(Value a, Value c) { return arith::AddIOp::create(b, loc, a, c); }
  Value mulI(Value a, int64_t c) {
    return c == 1 ? a : Value(arith::MulIOp::create(b, loc, a, i64(c)));
  }
  Value both(Value a, Value c) { // null: true
    if (!a || !c)
      return a ? a : c;
    return arith::AndIOp::create(b, loc, a, c);
  }
  // `offset` plus a number of strides; null: 0.
  Value plusStrides(Value offset, Value count, int64_t stride) {
    if (!count || stride == 0)
      return offset;
    Value part = mulI(count, stride);
    return offset ? addI(offset, part) : part;
  }
  int64_t size(int dim) const { return graph.dims[dim].size; }
  bool variesInReduced(const Access &access) const {
    for (auto [stride, dim] : llvm::zip(access.strides, graph.dims))
      if (dim.reduced && stride != 0)
        return true;
    return false;
  }
  int64_t alignment(Type element) const {
    return std::max<int64_t>(1, element.getIntOrFloatBitWidth() / 8);
  }

  // Addresses and scalars from the two arrays that a CPU kernel is given; or
  // each from a parameter of its own.
  void loadArguments(Value operands, Value scalars);
  void takeArguments(ValueRange arguments);
  // Computes what depends on scalars only.
  void emitEntryOps();
  Value entryValue(Value value);
  // The address so many elements of an access behind `base`; null: none.
  Value advance(Value base, const Access &access, Value offset);
  // What is written where the output accumulates.
  Value added(Value old, Value value, const KernelOperand &operand);
  // Fails with an error if `result` is no reduction that kernels know.
  Reduction describe(OpResult result);

  ModuleOp module;
  OpBuilder b;
  Location loc;
  ScalarOps ops;
  const KernelGraph &graph;
  func::FuncOp kernel;
  bool failed = false;

  llvm::DenseMap<Value, Value> entry; // scalars
  SmallVector<Value> bases;           // by operand

private:
  void bindScalar(BlockArgument argument, Value word);
};

} // namespace merak::codegen::emitter
