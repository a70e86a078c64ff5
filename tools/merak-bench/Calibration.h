// What `merak-bench calibrate` does: measures kernels, then communication, and
// writes a cluster file.
#pragma once

#include "runtime/comm/World.h"
#include "tools/merak-bench/Cases.h"

#include <memory>
#include <string>
#include <vector>

namespace merak::bench {

struct CalibrationOptions {
  std::string output, backend = "cpu";
  std::vector<std::string> plans;
  std::string rates; // a cluster file: its rates, only links are measured
  int ranks = 0, threads = 1; // 0 ranks: two of a host, one of a device
  bool quick = false, quiet = false, trustPlan = false;
};

// `device`: null on a host, which makes a backend for each rank. `world`: of
// processes with a rank each, all of which call this; rank 0 measures kernels
// and writes the file. Without one ranks are threads.
Status calibrate(const CalibrationOptions &options,
                 std::unique_ptr<runtime::Backend> device,
                 runtime::World *world, const GridSizes &sizes);

} // namespace merak::bench
