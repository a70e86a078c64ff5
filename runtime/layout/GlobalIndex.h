// Which element of the global tensor a local element is, as a loop nest: what a
// kernel needs whose result depends on the position (random masks).
#pragma once

#include "runtime/layout/Layout.h"

#include <utility>

namespace merak::layout {

// Local elements in row-major order are a nest of loops, outer to inner, with
// `extents` iterations each; element (i, j, ...) of the nest has the row-major
// index  i * strides[0] + j * strides[1] + ... + origin  in the global tensor.
// The origin is the sum of coordinate * scale over `offsets`.
struct GlobalIndex {
  std::vector<int64_t> extents, strides;
  std::vector<std::pair<std::string, int64_t>> offsets; // axis, scale
};

// At least one loop, as few as possible; axes of size 1 have no offset.
// Requires the product of a factor's axes to divide its size.
GlobalIndex globalIndex(const Layout &layout, const AxisMap &mesh);

} // namespace merak::layout
