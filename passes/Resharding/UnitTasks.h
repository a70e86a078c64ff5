// What has to go from one mesh to another so that a tensor changes owners and
// layout: for every two tiles that share elements one unit task, which any
// holder of the one can send and all holders of the other receive.
// (Zhuang et al., 2023, On Optimizing the Communication of Model Parallelism,
// arXiv 2211.05322, section 2)
#pragma once

#include "runtime/core/Status.h"
#include "runtime/layout/Layout.h"

namespace merak::resharding {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis &) const = default;
};

// A tensor in a layout on devices of its own.
struct Placement {
  layout::Layout layout;
  std::vector<MeshAxis> axes;   // major to minor
  std::vector<int64_t> devices; // row major over the axes
  bool operator==(const Placement &) const = default;

  layout::AxisMap mesh() const;
  layout::AxisMap coords(size_t index) const; // of devices[index]
  // Of the local tensor of devices[index].
  std::vector<int64_t> localShape(size_t index) const;
  // "[8@tp, 4] on tp=2 of 4-5".
  std::string str() const;
};
// All problems at once: a number of devices that is not that of the mesh,
// devices or axes that stand twice, axes that the mesh lacks or that are used
// twice, partial values (which are reduced before they are sent).
Status check(const Placement &placement);

// "0-3,7": ascending runs of devices.
std::string deviceStr(const std::vector<int64_t> &devices);

// A distinct piece of a tensor, and the devices that hold a copy, as they stand
// in the placement. Devices that hold nothing are in no tile.
struct Tile {
  std::vector<std::vector<layout::Interval>> runs; // by dimension
  std::vector<int64_t> shape;                      // local
  std::vector<int64_t> holders;
};
// In row-major order of where they begin.
std::vector<Tile> tiles(const Placement &placement);

// A run of a dimension that both tiles hold: where it starts in the global
// tensor, in both local ones and in the message.
struct SharedRun {
  int64_t global = 0, source = 0, target = 0, message = 0, length = 0;
  bool operator==(const SharedRun &) const = default;
};
// A box of a unit task by its origins in these four tensors.
struct SharedBox {
  std::vector<int64_t> global, source, target, message, extent;
};

// The message of a unit task is a tensor too: what both tiles hold, row major.
struct UnitTask {
  int sourceTile = 0, targetTile = 0;
  std::vector<std::vector<SharedRun>> runs;      // by dimension
  std::vector<int64_t> shape;                    // of the message
  std::vector<int64_t> sourceShape, targetShape; // of the local tensors
  std::vector<int64_t> senders, receivers;
  // Those of the target that hold it already: a copy, and no message.
  std::vector<int64_t> keepers;

  int64_t elements() const;
  std::vector<SharedBox> boxes() const;
  // Whether the message lies in the local tensor as it is, so that nothing has
  // to be packed (unpacked).
  bool contiguousInSource() const;
  bool contiguousInTarget() const;
  // Where it starts there, in elements; requires that it is contiguous.
  int64_t sourceOffset() const;
  int64_t targetOffset() const;
};

// Ordered by target tile, then source tile. For every device of the target the
// boxes of its tasks are disjoint and fill its tensor. Errors: those of
// `check`, global shapes that differ.
Result<std::vector<UnitTask>> unitTasks(const Placement &source,
                                        const Placement &target);

} // namespace merak::resharding
