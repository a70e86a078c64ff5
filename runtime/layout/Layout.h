// Layouts and boxes: which part of a global tensor a rank holds.
//
// A dimension is a product of factors, major to minor; a factor may be split
// over mesh axes. With dims {3 x 4@tp x 16} and tp = 2, rank tp=1 of a global
// dimension of 192 holds three intervals: [32,64), [96,128), [160,192). The
// local tensor is the row-major concatenation of these boxes, local size 96.
//
// Plain C++: no protobuf, no LLVM; shared by the compiler (transfers, memory)
// and the runtime (weights, checkpoints, inputs).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace merak::layout {

// Sizes of the mesh axes, or the coordinates of a device, by axis name.
using AxisMap = std::map<std::string, int64_t>;

struct Factor {
  int64_t size = 1;
  std::vector<std::string> axes; // major to minor
  bool operator==(const Factor &) const = default;
};
struct DimLayout {
  std::vector<Factor> factors; // major to minor; empty: size 1
  bool operator==(const DimLayout &) const = default;
};
struct Layout {
  std::vector<DimLayout> dims;
  std::vector<std::string> partial; // axes over which values are summands
  bool operator==(const Layout &) const = default;

  // Every dimension one whole factor.
  static Layout replicated(const std::vector<int64_t> &shape);
  std::vector<int64_t> globalShape() const;
  // Requires the product of a factor's axes to divide its size.
  std::vector<int64_t> localShape(const AxisMap &mesh) const;
  // Of the device at `coords`, also where it does not.
  std::vector<int64_t> localShape(const AxisMap &mesh,
                                  const AxisMap &coords) const;
  // "[8@(mb,dp) x 32, 64] partial(tp)": prints and diffs.
  std::string str() const;
};

// A run of one dimension: where it starts in the global and in the local one,
// and how long it is.
struct Interval {
  int64_t global = 0, local = 0, length = 0;
  auto operator<=>(const Interval &) const = default;
};
// What the device at `coords` holds of a dimension, ascending and merged where
// it is contiguous in both. Axes that `coords` lacks count as coordinate 0 of
// size 1. Where n parts do not divide a factor of size s, part i holds
// [i * s / n, (i + 1) * s / n), rounded down: 7@tp over 3 is 2, 2 and 3.
std::vector<Interval> intervals(const DimLayout &dim, const AxisMap &mesh,
                                const AxisMap &coords);

// A box of the global tensor and where it lies in the local one: both are
// given by origin and extent per dimension.
struct Box {
  std::vector<int64_t> globalOrigin, localOrigin, extent;
  bool operator==(const Box &) const = default;
  int64_t elements() const;
};

// The boxes of the device at `coords`, merged where they are contiguous in
// both tensors. Axes that `coords` lacks count as coordinate 0 of size 1.
// Their extents tile the local tensor.
std::vector<Box> boxes(const Layout &layout, const AxisMap &mesh,
                       const AxisMap &coords);

// Intersection of two boxes of one global tensor: origin in each local tensor.
struct Overlap {
  std::vector<int64_t> originA, originB, extent;
};
// All non-empty intersections: what device B can take from device A.
std::vector<Overlap> overlaps(const std::vector<Box> &a,
                              const std::vector<Box> &b);

// Copies a box between two row-major tensors (any element size). Shapes are
// those of the whole source and target tensors.
void copyBox(const void *src, const std::vector<int64_t> &srcShape,
             const std::vector<int64_t> &srcOrigin, void *dst,
             const std::vector<int64_t> &dstShape,
             const std::vector<int64_t> &dstOrigin,
             const std::vector<int64_t> &extent, int64_t elementSize);

} // namespace merak::layout
