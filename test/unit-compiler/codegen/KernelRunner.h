// Compiles a kernel given as text, loads it, runs it on strided buffers, and
// evaluates the same text with a naive interpreter.
#pragma once

#include "codegen/Kernels/KernelCompiler.h"
#include "test/unit-compiler/codegen/GridSimulator.h"
#include "test/unit-compiler/ptx/Ptx.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace merak::codegen::test {

// One number: `f` of floating types, `i` of integers and booleans.
struct Number {
  double f = 0;
  int64_t i = 0;
};

// A tensor in row-major order.
struct Tensor {
  mlir::Type element;
  std::vector<int64_t> shape;
  std::vector<Number> data;
};

// A parsed module, compiled and loaded for one target; "grid": as a GPU would
// run it, in a simulated grid; "ptx": the PTX for GPUs, interpreted, with every
// access watched; "sm_80": only compiled.
class Kernels {
public:
  Kernels(const std::string &text, const std::string &targetName);
  ~Kernels();
  bool ok() const { return handle != nullptr || error.empty(); }

  // Runs function `name` on `inputs` and `initial` outputs with the parallel
  // range cut at `cuts` (fractions). Returns the outputs.
  std::vector<Tensor> run(const std::string &name,
                          const std::vector<Tensor> &inputs,
                          const std::vector<int64_t> &scalars,
                          const std::vector<double> &cuts = {},
                          const std::vector<Tensor> *initial = nullptr);
  mlir::func::FuncOp function(const std::string &name);
  // Whether its bits are the device's choice.
  bool isApproximate(const std::string &name);

  mlir::MLIRContext context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  KernelObject object;
  std::string error; // diagnostics
  void *handle = nullptr;
  bool isGrid = false, isPtx = false;
  ptx::Module ptx;
  int64_t executed = 0; // instructions of "ptx", of all threads and runs
  int runs = 0;
};

// Evaluates the function op by op: every operation rounds once; sums are
// formed in double.
std::vector<Tensor> interpret(mlir::func::FuncOp function,
                              const std::vector<Tensor> &inputs,
                              const std::vector<int64_t> &scalars);

// Tensors of the argument types, filled by `fill` (argument, element).
std::vector<Tensor>
makeInputs(mlir::func::FuncOp function,
           const std::function<Number(unsigned, mlir::Type)> &fill);

// How often a part stands in a text.
int64_t countOf(const std::string &text, const std::string &part);

// A generator that needs no library: the same on every machine.
struct Random {
  uint64_t state;
  explicit Random(uint64_t seed)
      : state(seed * 2654435769u + 88172645463325252u) {}
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % n); }
  double unit() { return (next() >> 11) * 0x1p-53; }
};

} // namespace merak::codegen::test
