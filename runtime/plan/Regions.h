// Which bytes an operand touches, exactly, where a bounding range is too rough.
#pragma once

#include "runtime/plan/Plan.h"

#include <map>
#include <utility>
#include <vector>

namespace merak {

// Bytes of an operand relative to the start of its buffer's copy.
struct Region {
  const planpb::Operand *operand = nullptr;
  uint64_t begin = 0, end = 0; // bounding range; begin == end: empty
  int64_t elementSize = 1;
  bool dense = false; // every byte of the range is touched

  Region() = default;
  Region(const planpb::Operand &operand, int64_t elementSize);
};

// Whether two regions, placed at arena offsets, share a byte. Two operands of
// very many runs that cross each other may be taken as bounding ranges (errs
// towards true).
bool regionsOverlap(const Region &a, uint64_t baseA, const Region &b,
                    uint64_t baseB);
// The same against a plain byte range that is not empty.
bool regionTouches(const Region &a, uint64_t baseA, uint64_t begin,
                   uint64_t end);
// The contiguous runs of a region in ascending order; false if there are more
// than `most`.
struct Run {
  uint64_t begin, end;
};
bool regionRuns(const Region &region, uint64_t base, int64_t most,
                std::vector<Run> &result);
// Same elements in the same order, whatever the shape: an in-place operand.
bool sameView(const Region &a, uint64_t baseA, const Region &b, uint64_t baseB);

// What was written last to the parts of a buffer, by where they begin.
template <typename Part> using PartMap = std::multimap<uint64_t, Part>;
// Those that a write to `region` can end: what begins in it, and of a region
// with holes what begins where it does.
template <typename Part>
auto endedBy(PartMap<Part> &parts, const Region &region) {
  return std::pair(parts.lower_bound(region.begin),
                   region.dense ? parts.lower_bound(region.end)
                                : parts.upper_bound(region.begin));
}

// What an instruction does to a buffer.
struct Access {
  uint32_t buffer = 0;
  Region region;
  bool read = false, write = false;
  bool accumulate = false; // an output that is added to: read and written
  int index = 0;           // among the instruction's inputs, or its outputs
};
// Of each instruction, by procedure: inputs, then outputs, without empty ones.
using AccessTable = std::vector<std::vector<std::vector<Access>>>;
AccessTable accessTable(const planpb::Program &program);
// All bytes of a buffer's copy.
Region wholeRegion(const planpb::Buffer &buffer);

} // namespace merak
