// What the loss is multiplied by before gradients are made of it, so that those
// of f16 do not end below its range (docs/Precision.md). It is a state of the
// run, as the number of its steps is: each process has it, and changes it by
// whether the norm of all gradients is finite, which is the same for all of
// them.
#pragma once

#include "runtime/core/Status.h"

#include <cstdint>
#include <string>

namespace merak::runtime {

struct LossScaleOptions {
  bool moves = true; // else it is `start` in all steps
  double start = 65536;
  int64_t every = 2000; // steps in a row that are finite, until it doubles
  double least = 1, most = 16777216;

  // "1024", "auto", "auto:start=1024,every=100,least=1,most=65536".
  static Result<LossScaleOptions> parse(const std::string &text);
};

class LossScale {
public:
  explicit LossScale(const LossScaleOptions &options)
      : options_(options), value_(options.start) {}

  double value() const { return value_; }
  // Steps with finite gradients since it last changed.
  int64_t steps() const { return steps_; }
  // Whether gradients that are not finite are no error yet: smaller ones come.
  bool canFall() const { return options_.moves && value_ > options_.least; }

  // After a step.
  void learn(bool finite);
  // Goes on where a checkpoint was; a scale that does not move stays.
  void resume(double value, int64_t steps);

private:
  LossScaleOptions options_;
  double value_;
  int64_t steps_ = 0;
};

} // namespace merak::runtime
