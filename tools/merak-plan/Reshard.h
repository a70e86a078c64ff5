// merak-plan reshard: transfers of a plan's boundaries, or of boundaries that a
// user describes.
#pragma once

#include "passes/Resharding/Resharding.h"
#include "runtime/plan/Plan.h"

namespace CLI {
class App;
}

namespace merak {

struct ReshardRequest {
  std::string what;     // a plan, a file with a description, or its text
  std::string cluster;  // file; empty: the plan's, or the description's
  std::string boundary; // of this name alone; empty: all
  std::string strategy, order;
  std::string svg;  // file to draw into
  std::string plan; // folder for a plan that does one boundary and nothing else
  bool json = false, compare = false;
};
void addReshardOptions(CLI::App &command, ReshardRequest &request);

// What is printed; draws the picture.
Result<std::string> reshardReport(const ReshardRequest &request);

// Loads a plan of which at least structure and matching are sound.
Result<LoadedPlan> loadSound(const std::string &dir);
Status writeText(const std::string &path, const std::string &text);

} // namespace merak
