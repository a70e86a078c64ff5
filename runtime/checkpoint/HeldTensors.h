// What of a plan's memory outlives a run: the tensors that a checkpoint saves,
// and which buffers of which ranks have them. Who saves, loads or moves the
// state of training asks here what it is.
#pragma once

#include "runtime/plan/Plan.h"

namespace merak::runtime {

// A buffer of a rank, by its index in the rank's program.
struct HeldBuffer {
  int rank = 0, buffer = 0;
  bool operator==(const HeldBuffer &) const = default;
};

struct HeldTensor {
  const planpb::Tensor *tensor = nullptr;
  // Of the tensor's type, by rank. Equal boxes have equal values.
  std::vector<HeldBuffer> values;
  // Copies in another float type, which are made of the values.
  std::vector<HeldBuffer> rounded;
};

// In the order of the plan, all but what the compiler folded into it: that
// comes with the plan. `plan` must outlive the result.
std::vector<HeldTensor> heldTensors(const LoadedPlan &plan);

// Those of the mesh of the first one: a whole tensor, in boxes that are equal
// or disjoint. On another mesh it may be cut elsewhere.
std::vector<HeldBuffer> ofOneMesh(const LoadedPlan &plan,
                                  const std::vector<HeldBuffer> &held);

// Whether the buffer holds (a box of) a tensor of the plan itself.
bool holdsTensor(const planpb::Buffer &buffer);
// "w" if the buffer holds the gradient of w ("grad:w"), else empty.
std::string gradientOf(const planpb::Buffer &buffer);

} // namespace merak::runtime
