// What import decided, for people: printed by the driver.
#pragma once

#include "llvm/Support/raw_ostream.h"

#include <string>
#include <vector>

namespace merak {

struct ImportReport {
  struct Decision {
    std::string name, type, reason;
  };
  int64_t opset = 0, globalBatch = 0;
  size_t nodes = 0, folded = 0, unreached = 0;
  std::vector<Decision> trained, frozen;
  // One sentence each, in the order they were found.
  std::vector<std::string> tied, unmerged, warnings, unusedOutputs, absentFiles;
  std::vector<std::string> advice; // what to ask the exporter for

  void print(llvm::raw_ostream &out) const;
};

} // namespace merak
