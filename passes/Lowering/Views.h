// Strided views of buffers, and the tensor ops that only change the view:
// reshape, transpose, slice, expand. Nothing is copied where strides can say
// it.
#pragma once

#include "dialects/Plan/PlanDialect.h"

#include <optional>

namespace merak::lowering {

struct View {
  mlir::StringAttr buffer;
  int64_t offset = 0;
  llvm::SmallVector<int64_t, 4> shape, strides;

  static View dense(mlir::StringAttr buffer, llvm::ArrayRef<int64_t> shape);
  static View fromAttr(plan::ViewAttr attr);
  plan::ViewAttr toAttr() const;
  // The same elements in the same order: strides of dimensions of size 1, of
  // which a reshape makes any, do not count.
  bool operator==(const View &other) const;
};

// The same elements in row-major order with another shape; nothing if the
// strides of `view` cannot express it.
std::optional<View> reshapeView(const View &view,
                                llvm::ArrayRef<int64_t> shape);
// Result dimension i is dimension perm[i].
View permuteView(const View &view, llvm::ArrayRef<int64_t> perm);
// The view whose permutation by `perm` is `view`.
View unpermuteView(const View &view, llvm::ArrayRef<int64_t> perm);
View sliceView(const View &view, llvm::ArrayRef<int64_t> starts,
               llvm::ArrayRef<int64_t> sizes, llvm::ArrayRef<int64_t> steps);
// NumPy broadcast to a larger shape: stride 0 where a dimension grows.
View expandView(const View &view, llvm::ArrayRef<int64_t> shape);

} // namespace merak::lowering
