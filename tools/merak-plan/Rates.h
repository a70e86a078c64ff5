// merak-plan rates: plans around devices that are slow or gone.
#pragma once

#include "passes/Stragglers/Report.h"

namespace CLI {
class App;
}

namespace merak {

struct RatesRequest {
  std::string what;      // a file with a description, or its text
  std::string situation; // of this name alone; empty: all
  std::string rates;     // of devices, in place of the description's
  std::string from;      // file with the plan that runs
  std::string reaction, objective;
  std::string output, strategy; // JSON files to write
  int threads = 0;
  uint64_t seed = 1;
  bool json = false, compare = false;
};
void addRatesOptions(CLI::App &command, RatesRequest &request);

// What is printed; writes the files.
Result<std::string> ratesReport(const RatesRequest &request);

} // namespace merak
