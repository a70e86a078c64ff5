// What a run is beside its tensors, so that it can be continued.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace merak::runtime {

struct CheckpointState {
  int64_t step = 0;    // steps done
  int64_t samples = 0; // samples consumed: the position in the data
  int64_t skipped = 0; // of the steps, those that changed nothing
  std::optional<uint64_t> seed = {};
  // What the samples were, as their source says; empty: not known.
  std::string data = {};
  // How the learning rate depends on the step, and what it was.
  std::string schedule = {};
  double lr = 0;
  // Of a run that scales the loss: by what in the next step, and how many steps
  // in a row were finite since that changed. What is saved is not scaled: any
  // plan of the model goes on with it.
  double lossScale = 1;
  std::optional<int64_t> lossScaleSteps = {};
  // Of the run that wrote it: 16 hexadecimal digits.
  std::string run = {};
  // Note for the user, e.g. that there was no optimizer state; may be empty.
  std::string note = {};
};

} // namespace merak::runtime
