// Strided copies between views, for the copy kernel and for kernels that need
// a dense operand.
#pragma once

#include "runtime/backends/cpu/Nest.h"
#include "runtime/core/Backend.h"

namespace merak::cpu {

// Decided once from shapes, strides and types; runs on any addresses.
class CopyPlan {
public:
  CopyPlan() = default;
  // `accumulate`: adds instead of overwriting.
  CopyPlan(const runtime::View &from, const runtime::View &to, bool accumulate);
  void run(const void *from, void *to, runtime::ThreadPool &pool) const;

private:
  using Line = void (*)(const void *from, int64_t fromStride, void *to,
                        int64_t toStride, int64_t n);
  void runTransposed(const char *from, char *to,
                     runtime::ThreadPool &pool) const;

  Nest outer_;        // operand 0: from, 1: to
  Nest::Inner inner_; // along the smallest stride of `to`
  // Transposed: the innermost dimension of `outer_` has stride 1 in `from`.
  bool transposed_ = false;
  int64_t transposedSize_ = 1, transposedToStride_ = 0;
  int64_t fromSize_ = 0, toSize_ = 0; // bytes of an element
  Line line_ = nullptr;
};

// A view of the same shape with row-major strides and other data.
runtime::View denseView(const runtime::View &view, void *data);

} // namespace merak::cpu
