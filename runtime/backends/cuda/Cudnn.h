// Attention and convolution through cuDNN's graph API, in the form of its
// header-only frontend; the library is opened at run time. Built without the
// frontend's headers, it has no plans.
#pragma once

#include "runtime/backends/cuda/Fused.h"

#include <memory>
#include <string>

namespace merak::cuda {

class Cudnn {
public:
  Cudnn();
  ~Cudnn();
  // Null where the library, or a kernel of it for this, is missing. Needs a
  // current context of a device of compute capability major.minor.
  std::shared_ptr<FusedPlan> plan(const FusedAttention &attention, int major,
                                  int minor);
  std::shared_ptr<FusedPlan> plan(const FusedConvolution &convolution,
                                  int major, int minor);
  // "cuDNN 9.19.0", or why it is not used.
  std::string describe();
  struct State;

private:
  std::shared_ptr<State> state_; // shared with the plans
};

} // namespace merak::cuda
