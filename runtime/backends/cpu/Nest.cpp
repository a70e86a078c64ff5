#include "runtime/backends/cpu/Nest.h"

#include <numeric>

namespace merak::cpu {

Nest::Nest(std::span<const int64_t> shape,
           std::vector<std::vector<int64_t>> operandStrides)
    : sizes(shape.begin(), shape.end()), strides(std::move(operandStrides)) {
  merge();
}

void Nest::merge() {
  std::vector<int64_t> newSizes;
  std::vector<std::vector<int64_t>> newStrides(strides.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1)
      continue;
    bool joins = !newSizes.empty();
    for (size_t i = 0; i < strides.size(); ++i)
      joins = joins && newStrides[i].back() == strides[i][d] * sizes[d];
    if (joins)
      newSizes.back() *= sizes[d];
    else
      newSizes.push_back(sizes[d]);
    for (size_t i = 0; i < strides.size(); ++i)
      if (joins)
        newStrides[i].back() = strides[i][d];
      else
        newStrides[i].push_back(strides[i][d]);
  }
  sizes = std::move(newSizes);
  strides = std::move(newStrides);
}

int64_t Nest::count() const {
  int64_t n = 1;
  for (int64_t size : sizes)
    n *= size;
  return n;
}

// Position 4 of [2, 3] is (4 / 3, 4 % 3) = (1, 1).
void Nest::offsets(int64_t index, int64_t *out) const {
  for (size_t i = 0; i < strides.size(); ++i)
    out[i] = 0;
  for (size_t d = sizes.size(); d-- > 0;) {
    int64_t at = d == 0 ? index : index % sizes[d];
    index /= sizes[d];
    for (size_t i = 0; i < strides.size(); ++i)
      out[i] += at * strides[i][d];
  }
}

Nest::Inner Nest::splitInner() {
  Inner inner;
  inner.strides.assign(strides.size(), 0);
  if (sizes.empty())
    return inner;
  inner.size = sizes.back();
  sizes.pop_back();
  for (size_t i = 0; i < strides.size(); ++i) {
    inner.strides[i] = strides[i].back();
    strides[i].pop_back();
  }
  return inner;
}

void Nest::sortBy(size_t operand) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return strides[operand][a] > strides[operand][b];
  });
  Nest sorted;
  sorted.strides.resize(strides.size());
  for (size_t d : order) {
    sorted.sizes.push_back(sizes[d]);
    for (size_t i = 0; i < strides.size(); ++i)
      sorted.strides[i].push_back(strides[i][d]);
  }
  *this = std::move(sorted);
  merge();
}

RowAccess::RowAccess(std::span<const int64_t> shape,
                     std::span<const int64_t> strides)
    : nest_(shape, {std::vector<int64_t>(strides.begin(), strides.end())}) {
  size_ = nest_.count();
  contiguous_ =
      nest_.rank() == 0 || (nest_.rank() == 1 && nest_.strides[0][0] == 1);
}

const float *RowAccess::read(const float *row, float *copy) const {
  if (contiguous_)
    return row;
  if (nest_.rank() == 1) {
    const int64_t stride = nest_.strides[0][0];
    for (int64_t i = 0; i < size_; ++i)
      copy[i] = row[i * stride];
    return copy;
  }
  for (int64_t i = 0; i < size_; ++i) {
    int64_t offset = 0;
    nest_.offsets(i, &offset);
    copy[i] = row[offset];
  }
  return copy;
}

void RowAccess::finish(float *row, const float *copy) const {
  if (contiguous_)
    return;
  for (int64_t i = 0; i < size_; ++i) {
    int64_t offset = 0;
    nest_.offsets(i, &offset);
    row[offset] = copy[i];
  }
}

bool broadcastStrides(const runtime::View &view, std::span<const int64_t> shape,
                      std::vector<int64_t> &strides) {
  strides.assign(shape.size(), 0);
  if (view.shape.size() > shape.size())
    return false;
  size_t lead = shape.size() - view.shape.size();
  for (size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 1)
      continue;
    if (view.shape[d] != shape[lead + d])
      return false;
    strides[lead + d] = view.strides[d];
  }
  return true;
}

} // namespace merak::cpu
