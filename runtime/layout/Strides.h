// Row-major memory: its strides, and what a reshape may see of memory that is
// not row-major.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace merak::layout {

// Steps from one element to the next along each dimension, in elements: of
// [2, 3, 4] 12, 4 and 1.
std::vector<int64_t> denseStrides(std::span<const int64_t> shape);
// Whether a tensor has these strides. Where a dimension has one element its
// stride does not matter: [2, 1, 4] with strides 4, 9 and 1 is dense.
bool isDense(std::span<const int64_t> shape, std::span<const int64_t> strides);

// The strides of the same elements in row-major order with another shape;
// nothing if strides cannot express it. [2, 3, 4] with strides 24, 8, 2 is
// [6, 4] with 8, 2, since 24 = 3 * 8; with strides 30, 8, 2 it is none.
std::optional<std::vector<int64_t>>
reshapedStrides(std::span<const int64_t> from, std::span<const int64_t> strides,
                std::span<const int64_t> to);

} // namespace merak::layout
