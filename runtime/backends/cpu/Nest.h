// Loops over the same index space in several strided operands.
#pragma once

#include "runtime/core/Backend.h"
#include "runtime/core/ThreadPool.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace merak::cpu {

// Dimensions with a stride in each operand. Built from views, dimensions of
// size 1 are dropped, and neighbours that every operand walks as one are
// merged: x [2, 3, 4] dense with y [2, 3, 4] dense become one loop of 24.
struct Nest {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> strides; // [operand][dimension]

  Nest() = default;
  // strides[i] has as many entries as `shape`.
  Nest(std::span<const int64_t> shape,
       std::vector<std::vector<int64_t>> operandStrides);

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  int64_t count() const;
  // Offsets in elements of the index-th point (row-major), one per operand.
  void offsets(int64_t index, int64_t *out) const;
  // Takes the innermost dimension away (size 1 and stride 0 if there is none).
  struct Inner {
    int64_t size = 1;
    std::vector<int64_t> strides;
  };
  Inner splitInner();
  // Orders dimensions by falling stride in one operand, then merges again.
  void sortBy(size_t operand);

private:
  void merge();
};

// Calls body(offsets, column, length) for pieces of rows of the nest with an
// inner loop of `inner` elements, split over the threads by elements.
template <typename Body>
void forRowPieces(runtime::ThreadPool &pool, const Nest &outer, int64_t inner,
                  int64_t grain, const Body &body) {
  pool.parallelFor(
      outer.count() * inner, grain, [&](int64_t begin, int64_t end) {
        int64_t offsets[8];
        for (int64_t at = begin; at < end;) {
          int64_t row = at / inner, column = at % inner;
          int64_t length = std::min(inner - column, end - at);
          outer.offsets(row, offsets);
          body(static_cast<const int64_t *>(offsets), column, length);
          at += length;
        }
      });
}

// One row of an operand: the dimensions of a reduction or normalisation.
// Dense rows are used in place; others pass through a contiguous copy.
class RowAccess {
public:
  RowAccess() = default;
  RowAccess(std::span<const int64_t> shape, std::span<const int64_t> strides);

  int64_t size() const { return size_; }
  bool contiguous() const { return contiguous_; }
  // The row's elements in order: in place, or gathered into `copy`.
  const float *read(const float *row, float *copy) const;
  // Where to write the row; `finish` brings a copy to its place.
  float *target(float *row, float *copy) const {
    return contiguous_ ? row : copy;
  }
  void finish(float *row, const float *copy) const;

private:
  Nest nest_;
  int64_t size_ = 1;
  bool contiguous_ = true;
};

// Rows a thread should take at least, for rows of n elements.
inline int64_t rowGrain(int64_t n, int64_t work = 8192) {
  return std::max<int64_t>(1, work / std::max<int64_t>(1, n));
}

// Strides of `view` seen with the larger shape `shape`, NumPy broadcasting;
// empty optional if it does not broadcast.
bool broadcastStrides(const runtime::View &view, std::span<const int64_t> shape,
                      std::vector<int64_t> &strides);

} // namespace merak::cpu
