// Where LOAD_INPUT instructions get their data from.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/layout/Layout.h"

#include <cstdint>
#include <string>
#include <vector>

namespace merak::runtime {

class InputReader {
public:
  virtual ~InputReader() = default;
  // Copies boxes of the global batch of `step` (from 0) into a dense host
  // tensor. Called by several threads at once. Errors say file, sample and
  // value.
  virtual Status read(const std::string &input, int64_t step,
                      const std::vector<layout::Box> &boxes, void *data,
                      const std::vector<int64_t> &shape) = 0;
};

} // namespace merak::runtime
