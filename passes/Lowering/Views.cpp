#include "passes/Lowering/Views.h"

using namespace mlir;

namespace merak::lowering {

View View::dense(StringAttr buffer, ArrayRef<int64_t> shape) {
  View view;
  view.buffer = buffer;
  view.shape.assign(shape.begin(), shape.end());
  view.strides.assign(plan::denseStrides(shape));
  return view;
}

bool View::operator==(const View &other) const {
  if (buffer != other.buffer || offset != other.offset || shape != other.shape)
    return false;
  for (auto [size, own, others] : llvm::zip(shape, strides, other.strides))
    if (size > 1 && own != others)
      return false;
  return true;
}

View View::fromAttr(plan::ViewAttr attr) {
  View view;
  view.buffer = attr.getBuffer().getAttr();
  view.offset = attr.getOffset();
  view.shape.assign(attr.getShape().begin(), attr.getShape().end());
  view.strides.assign(attr.getStrides().begin(), attr.getStrides().end());
  return view;
}

plan::ViewAttr View::toAttr() const {
  return plan::ViewAttr::get(buffer.getContext(),
                             FlatSymbolRefAttr::get(buffer), offset, shape,
                             strides);
}

std::optional<View> reshapeView(const View &view, ArrayRef<int64_t> shape) {
  View result;
  result.buffer = view.buffer;
  result.offset = view.offset;
  result.shape.assign(shape.begin(), shape.end());
  result.strides.assign(shape.size(), 0);

  // Old dimensions without those of size 1.
  SmallVector<int64_t, 4> sizes, strides;
  for (auto [size, stride] : llvm::zip(view.shape, view.strides)) {
    if (size == 0) {
      result.strides.assign(plan::denseStrides(shape));
      return result;
    }
    if (size != 1) {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }
  // Match groups of old and new dimensions with equal products; inside a group
  // the old dimensions must be evenly spaced.
  size_t oldBegin = 0, newBegin = 0;
  while (oldBegin < sizes.size()) {
    size_t oldEnd = oldBegin + 1, newEnd = newBegin;
    int64_t oldCount = sizes[oldBegin], newCount = 1;
    while (newCount != oldCount || newEnd == newBegin) {
      if (newCount < oldCount || newEnd == newBegin) {
        if (newEnd == shape.size())
          return std::nullopt;
        newCount *= shape[newEnd++];
      } else {
        if (oldEnd == sizes.size())
          return std::nullopt;
        oldCount *= sizes[oldEnd++];
      }
    }
    for (size_t i = oldBegin; i + 1 < oldEnd; ++i)
      if (strides[i] != sizes[i + 1] * strides[i + 1])
        return std::nullopt;
    int64_t stride = strides[oldEnd - 1];
    for (size_t i = newEnd; i-- > newBegin;) {
      result.strides[i] = stride;
      stride *= shape[i];
    }
    oldBegin = oldEnd;
    newBegin = newEnd;
  }
  // What is left has size 1; its strides do not matter.
  for (size_t i = newBegin; i < shape.size(); ++i)
    result.strides[i] = 1;
  return result;
}

View permuteView(const View &view, ArrayRef<int64_t> perm) {
  View result = view;
  for (size_t i = 0; i < perm.size(); ++i) {
    result.shape[i] = view.shape[perm[i]];
    result.strides[i] = view.strides[perm[i]];
  }
  return result;
}

View unpermuteView(const View &view, ArrayRef<int64_t> perm) {
  View result = view;
  for (size_t i = 0; i < perm.size(); ++i) {
    result.shape[perm[i]] = view.shape[i];
    result.strides[perm[i]] = view.strides[i];
  }
  return result;
}

View sliceView(const View &view, ArrayRef<int64_t> starts,
               ArrayRef<int64_t> sizes, ArrayRef<int64_t> steps) {
  View result = view;
  for (size_t i = 0; i < sizes.size(); ++i) {
    result.offset += starts[i] * view.strides[i];
    result.shape[i] = sizes[i];
    result.strides[i] = view.strides[i] * steps[i];
  }
  return result;
}

View expandView(const View &view, ArrayRef<int64_t> shape) {
  View result;
  result.buffer = view.buffer;
  result.offset = view.offset;
  result.shape.assign(shape.begin(), shape.end());
  result.strides.assign(shape.size(), 0);
  size_t lead = shape.size() - view.shape.size();
  for (size_t i = 0; i < view.shape.size(); ++i)
    if (view.shape[i] == shape[lead + i])
      result.strides[lead + i] = view.strides[i];
  return result;
}

} // namespace merak::lowering
