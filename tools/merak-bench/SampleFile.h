// Measured samples on disk, one JSON object a line, written as they come: a
// calibration that was interrupted goes on where it stopped.
#pragma once

#include "passes/CostModel/Calibrate.h"

namespace merak::bench {

class SampleFile {
public:
  // Reads what is there. `settings` (one line) is what the samples depend on;
  // a file of other settings is an error.
  static Result<SampleFile> open(const std::string &path,
                                 const std::string &settings);
  // Null: not measured yet.
  const costmodel::Sample *find(const std::string &key) const;
  Status add(const costmodel::Sample &sample);
  const std::vector<costmodel::Sample> &samples() const { return samples_; }
  void remove() const;

private:
  std::string path_;
  std::vector<costmodel::Sample> samples_;
};

} // namespace merak::bench
