// Runs library kernels on dense operands of given shapes, for benchmarks.
#pragma once

#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/core/DType.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace merak::bench {

using runtime::ScalarValue;
using runtime::View;
using Shape = std::vector<int64_t>;
using Attrs = std::map<std::string, std::string>;

// Memory with small values that no kernel overflows on.
class Buffer {
public:
  explicit Buffer(Shape shape, planpb::DType dtype = planpb::F32) {
    view.dtype = dtype;
    view.shape = std::move(shape);
    view.strides.assign(view.shape.size(), 1);
    for (size_t d = view.shape.size(); d-- > 1;)
      view.strides[d - 1] = view.strides[d] * view.shape[d];
    int64_t bytes = view.elements() * runtime::dtypeSize(dtype);
    bytes = (bytes + 63) / 64 * 64;
    view.data = std::aligned_alloc(64, static_cast<size_t>(bytes));
    for (int64_t i = 0; i < view.elements(); ++i)
      if (dtype == planpb::F32)
        static_cast<float *>(view.data)[i] =
            static_cast<float>((i * 7919) % 1000) / 1000.0f - 0.5f;
      else if (dtype == planpb::I64)
        static_cast<int64_t *>(view.data)[i] = i % 50;
  }
  ~Buffer() { std::free(view.data); }
  Buffer(const Buffer &) = delete;
  Buffer &operator=(const Buffer &) = delete;

  View view;
};

inline View permuted(const View &view, const std::vector<size_t> &order) {
  View result = view;
  for (size_t i = 0; i < order.size(); ++i) {
    result.shape[i] = view.shape[order[i]];
    result.strides[i] = view.strides[order[i]];
  }
  return result;
}

// A prepared instruction with its operands.
class Launch {
public:
  Launch(cpu::CpuBackend &backend, const std::string &op, const Attrs &attrs,
         std::vector<View> inputs, std::vector<View> outputs,
         std::vector<ScalarValue> scalars = {}, bool accumulate = false)
      : backend_(&backend), inputs_(std::move(inputs)),
        outputs_(std::move(outputs)), scalars_(std::move(scalars)),
        accumulate_(accumulate) {
    instruction_.set_kind(planpb::Instruction::LIBRARY);
    instruction_.set_op(op);
    instruction_.set_accumulate(accumulate);
    for (const auto &[key, value] : attrs)
      (*instruction_.mutable_attrs())[key] = value;
    auto prepared = backend.prepare(instruction_, inputs_, outputs_);
    check(prepared.status());
    prepared_ = std::move(*prepared);
  }
  const std::string &op() const { return instruction_.op(); }
  void operator()() {
    runtime::KernelCall call;
    call.instruction = &instruction_;
    call.prepared = prepared_.get();
    call.inputs = inputs_;
    call.outputs = outputs_;
    call.scalars = scalars_;
    call.accumulate = accumulate_;
    check(backend_->run(call));
  }

private:
  static void check(const Status &status) {
    if (status.ok())
      return;
    std::fprintf(stderr, "%s\n", status.str().c_str());
    std::abort();
  }

  cpu::CpuBackend *backend_;
  planpb::Instruction instruction_;
  std::vector<View> inputs_, outputs_;
  std::vector<ScalarValue> scalars_;
  bool accumulate_;
  std::unique_ptr<runtime::Prepared> prepared_;
};

} // namespace merak::bench
