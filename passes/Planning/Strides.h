// Strides of views: what a reshape may see of memory that is not row-major.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace merak::planning {

std::vector<int64_t> denseStrides(const std::vector<int64_t> &shape);

// The strides of the same elements in row-major order with another shape;
// nothing if strides cannot express it.
std::optional<std::vector<int64_t>>
reshapedStrides(const std::vector<int64_t> &from,
                const std::vector<int64_t> &strides,
                const std::vector<int64_t> &to);

} // namespace merak::planning
