// Generations whose shards lie in folders of several hosts, made whole.
#pragma once

#include "runtime/checkpoint/Files.h"

#include <cstdint>

namespace merak::runtime {

struct Gathered {
  std::string folder; // of the generation
  int64_t step = 0;
  size_t shards = 0;
  uint64_t bytes = 0;
};

// Of the generations that lie in `parts` (folders of generations, or single
// ones), puts together the newest of which all shards are there and undamaged,
// in `output`, as a run that saves there would. The error says what the newest
// lacks.
Result<Gathered> gatherCheckpoint(const std::vector<std::string> &parts,
                                  const std::string &output,
                                  Files &files = Files::system());

} // namespace merak::runtime
