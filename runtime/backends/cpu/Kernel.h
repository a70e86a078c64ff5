// What a library kernel of the CPU is: a factory that checks an instruction
// once and returns an object that runs it many times.
#pragma once

#include "runtime/core/Backend.h"
#include "runtime/plan/LibraryKernels.h"

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace merak::cpu {

using runtime::KernelCall;
using runtime::ScalarValue;
using runtime::ThreadPool;
using runtime::View;

class Kernel : public runtime::Prepared {
public:
  virtual Status run(const KernelCall &call, ThreadPool &pool) = 0;
};
using KernelResult = Result<std::unique_ptr<Kernel>>;

// An instruction under examination. The checks collect every problem, so that
// a factory ends with `if (!request.ok()) return request.status();`.
class Request {
public:
  Request(const planpb::Instruction &instruction, std::span<const View> inputs,
          std::span<const View> outputs)
      : instruction(instruction), inputs(inputs), outputs(outputs) {}

  const planpb::Instruction &instruction;
  std::span<const View> inputs, outputs;

  // Records a problem unless `condition`; returns the condition.
  bool expect(bool condition, const std::string &message);
  // Exact numbers of operands; false if they differ.
  bool counts(size_t inputCount, size_t outputCount);
  // All operands of the given positions have this type.
  void type(const View &view, const char *what, planpb::DType dtype);
  void index(const View &view, const char *what); // i64 or i32
  void allF32();
  void sameShape(const View &a, const char *aName, const View &b,
                 const char *bName);
  void shape(const View &view, const char *what,
             const std::vector<int64_t> &expected);

  // Attributes. Without a default the attribute must be there.
  int64_t integer(const char *name, std::optional<int64_t> missing = {});
  double real(const char *name, std::optional<double> missing = {});
  std::string text(const char *name, std::optional<std::string> missing = {});
  bool has(const char *name) const;
  std::vector<int64_t> list(const char *name,
                            std::optional<std::vector<int64_t>> missing = {});
  // Attribute `axis` in [-rank, rank), counted from the front.
  int64_t axis(int64_t rank, const char *name = "axis");

  bool ok() const { return problems_.ok(); }
  const Status &status() const { return problems_; }

private:
  Status problems_;
};

// What a kernel does itself; what it does not is done around it, on dense
// copies of the operands.
struct KernelEntry {
  LibraryKernelName name;
  KernelResult (*create)(Request &);
  bool anyStrides;  // takes operands with any strides
  bool accumulates; // adds to its outputs if asked
  bool updates;     // reads its outputs (optimizers): accumulate is refused
  bool anyTypes = false; // takes every type; else f32 stands for bf16 and f16
};

// All library kernels, by file.
std::span<const KernelEntry> einsumKernels();
std::span<const KernelEntry> copyKernels();
std::span<const KernelEntry> reduceKernels();
std::span<const KernelEntry> gatherKernels();
std::span<const KernelEntry> coalesceKernels();
std::span<const KernelEntry> softmaxKernels();
std::span<const KernelEntry> normKernels();
std::span<const KernelEntry> crossEntropyKernels();
std::span<const KernelEntry> attentionKernels();
std::span<const KernelEntry> rotaryKernels();
std::span<const KernelEntry> dropoutKernels();
std::span<const KernelEntry> convKernels();
std::span<const KernelEntry> poolKernels();
std::span<const KernelEntry> topKKernels();
std::span<const KernelEntry> optimizerKernels();
std::span<const KernelEntry> replayKernels();

std::vector<std::span<const KernelEntry>> allKernels();
const KernelEntry *findKernel(const std::string &name);

// Checks the instruction and prepares the kernel with the adapters it needs.
KernelResult prepareKernel(const planpb::Instruction &instruction,
                           std::span<const View> inputs,
                           std::span<const View> outputs);

// A scalar argument of a call, or `missing` if the instruction has fewer.
inline int64_t scalarInteger(const KernelCall &call, size_t i,
                             int64_t missing = 0) {
  return i < call.scalars.size() ? call.scalars[i].asInteger() : missing;
}

// Wraps a callable `Status(const KernelCall &, ThreadPool &)`.
template <typename Body> KernelResult makeKernel(Body body) {
  struct Wrapper : Kernel {
    explicit Wrapper(Body b) : body(std::move(b)) {}
    Status run(const KernelCall &call, ThreadPool &pool) override {
      return body(call, pool);
    }
    Body body;
  };
  return std::unique_ptr<Kernel>(std::make_unique<Wrapper>(std::move(body)));
}

inline const float *f32(const View &view) {
  return static_cast<const float *>(view.data);
}
inline float *f32Out(const View &view) {
  return static_cast<float *>(view.data);
}

} // namespace merak::cpu
