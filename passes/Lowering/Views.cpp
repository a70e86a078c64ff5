#include "passes/Lowering/Views.h"

#include "runtime/layout/Strides.h"

using namespace mlir;

namespace merak::lowering {

View View::dense(StringAttr buffer, ArrayRef<int64_t> shape) {
  View view;
  view.buffer = buffer;
  view.shape.assign(shape.begin(), shape.end());
  llvm::append_range(view.strides, layout::denseStrides(shape));
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
  auto strides = layout::reshapedStrides(view.shape, view.strides, shape);
  if (!strides)
    return std::nullopt;
  View result;
  result.buffer = view.buffer;
  result.offset = view.offset;
  result.shape.assign(shape.begin(), shape.end());
  result.strides.assign(strides->begin(), strides->end());
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
