// Reshardings as a user describes them, in JSON (docs/Resharding.md):
//   {"cluster": "FILE" or {...}, "boundaries": [
//     {"name": "case 1", "dtype": "i32",
//      "source": {"layout": "[8@h, 4]", "mesh": "h=2,d=4", "devices": "0-7"},
//      "target": {...}}],
//    "reshard": "broadcast"}
#pragma once

#include "passes/CostModel/Cluster.h"
#include "passes/Resharding/UnitTasks.h"

#include <optional>

namespace merak::resharding {

struct Boundary {
  std::string name;
  std::string dtype = "f32";
  int64_t elementBytes = 4;
  Placement source, target;
};
struct Description {
  costmodel::Cluster cluster;
  std::vector<Boundary> boundaries; // at least one
  // Of all of them, as a plan has it (optionsOfPlan); absent: nothing is said.
  std::optional<std::string> strategy;
};
// Without the cluster: what a plan between unlike meshes keeps in a file of
// this name. A boundary is called "stage 0 to 1, t0" there.
inline constexpr const char *kBoundariesFile = "boundaries.json";
std::string toJson(const std::vector<Boundary> &boundaries,
                   const std::string &strategy);

// `fileName` opens each message; a cluster's file is looked for in `folder`.
// `cluster` replaces that of the text, which then may have none. All missing,
// unknown and contradictory fields at once, each with its path.
Result<Description> parseDescription(const std::string &json,
                                     const std::string &fileName,
                                     const std::string &folder,
                                     const costmodel::Cluster *cluster);

// "h=2,d=4"; "" is a mesh of one device.
Result<std::vector<MeshAxis>> parseMesh(const std::string &text);
// "0-3,7", in this order.
Result<std::vector<int64_t>> parseDevices(const std::string &text);

} // namespace merak::resharding
