// Units handed out to parts so that the one that takes longest is done first:
// layers to stages, microbatches to pipelines.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace merak::stragglers {

// A part with n units takes base + n * price.
struct Part {
  int64_t price = 1, base = 0; // at least 1; may be negative
  int64_t least = 0, most = std::numeric_limits<int64_t>::max();
};

// The units of each part that make the longest time least; nothing, if `total`
// units are more or fewer than the parts can have. The next unit goes where it
// ends first, of equal ones to the earlier part. That is exact: if another
// solution ended earlier, its longest part would have given up a unit that was
// handed out before, and each other part would take one that ends later.
std::optional<std::vector<int64_t>> allocate(const std::vector<Part> &parts,
                                             int64_t total);

// The longest time; parts without units count with their base.
int64_t longest(const std::vector<Part> &parts,
                const std::vector<int64_t> &units);

} // namespace merak::stragglers
