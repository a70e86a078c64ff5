// merak-plan migrate: what goes where if the state of one plan becomes that of
// another, and how long that takes.
#pragma once

#include "passes/Resharding/Rounds.h"
#include "runtime/migration/Migration.h"

namespace CLI {
class App;
}

namespace merak {

struct MigrateRequest {
  std::string source, target; // plans
  std::string cluster;        // file; empty: that of one of the plans
  // Devices of the ranks, "0-3,8"; empty: rank r on device r.
  std::string sourceDevices, targetDevices;
  int64_t bucketBytes = migration::kBucketBytes;
  bool json = false;
};
void addMigrateOptions(CLI::App &command, MigrateRequest &request);

// What is printed.
Result<std::string> migrateReport(const MigrateRequest &request);

} // namespace merak
