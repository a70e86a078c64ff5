// Who holds which boxes of the tensors of a plan, by device (private to this
// folder).
#pragma once

#include "runtime/migration/Migration.h"

namespace merak::migration {

// A buffer with (a box of) a tensor.
struct Holding {
  int device = 0, buffer = 0;
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape; // local
  std::vector<layout::Box> boxes;

  int64_t bytes() const;
};

struct TensorHoldings {
  const planpb::Tensor *tensor = nullptr;
  std::vector<Holding> values, rounded; // see HeldTensors.h; by rank
};

// `devices`: by rank.
std::vector<TensorHoldings> holdingsOf(const LoadedPlan &plan,
                                       const std::vector<int> &devices);

int64_t elementsOf(const std::vector<int64_t> &extent);

} // namespace merak::migration
