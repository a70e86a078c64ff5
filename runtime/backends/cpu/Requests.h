// Instructions that several backends run, read in one place: attributes and
// shapes. Types of operands are each backend's own matter.
#pragma once

#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Window.h"

namespace merak::cpu {

// All readers return false, with problems in the request, if it does not fit.

struct DropoutRequest {
  double ratio = 0;
  uint32_t id = 0;
  // Of the local elements in the global tensor; they multiply to x's.
  std::vector<int64_t> extents, strides;
};
// One input and one output of one shape.
bool readDropout(Request &request, DropoutRequest &dropout);

struct ConvRequest {
  Window window;
  int64_t samples = 0, groups = 1;
  int64_t inChannels = 0, outChannels = 0; // of one group
};
// x [n, c, spatial], w [k, c / groups, spatial], y [n, k, spatial].
bool readConv(Request &request, const View &x, const View &w, const View &y,
              ConvRequest &conv);

struct PoolRequest {
  Window window;
  int64_t planes = 0; // samples x channels
  bool countPad = false;
  std::array<int64_t, Window::kDims> padEnd{0, 0, 0};
};
bool readPool(Request &request, const View &in, const View &out,
              PoolRequest &pool);

struct ReduceRequest {
  Nest kept;    // of x and y
  Nest reduced; // of x, in the order of its memory
  // Neighbouring summands lie together; or else neighbouring results do.
  bool runs() const {
    return reduced.rank() > 0 && reduced.strides[0].back() == 1;
  }
  bool columns() const {
    return !runs() && kept.rank() > 0 && kept.strides[0].back() == 1 &&
           kept.sizes.back() >= 8;
  }
};
// y has the reduced dimensions of x as size 1, or lacks them.
bool readReduce(Request &request, ReduceRequest &reduce);

} // namespace merak::cpu
