// Devices that are alike, of which stages and pipelines are formed: of one kind
// and one rate (docs/Parts.md). A stage of unlike devices is as slow as its
// slowest.
#pragma once

#include "passes/Planning/StageMeshes.h"

#include <optional>
#include <vector>

namespace merak::planning {

// Devices that take less than this many times as long count as normal, as in
// passes/Stragglers: noise of a measurement makes no stage of its own.
inline constexpr double kSlow = 1.2;

struct DeviceClass {
  double slowness = 1;
  std::vector<std::vector<int64_t>> nodes;
  int64_t devices = 0, largest = 0; // of all, of the largest node
};

class DeviceClasses {
public:
  // Classes by kind, then by slowness. `meshes` prices stages of `input`, whose
  // cluster has the devices.
  DeviceClasses(const SearchInput &input, StageMeshes &meshes);

  const std::vector<DeviceClass> &all() const { return classes; }
  const DeviceClass &at(int number) const { return classes[size_t(number)]; }

  // Of the whole model on a stage of these degrees.
  struct Price {
    double seconds = 0; // of a microbatch, with the slowness of the class
    double share = 1;   // of the model's parameters that fit into its devices
  };
  // Nothing: the class has no place for it, or no layout has these degrees.
  std::optional<Price> price(int number, int64_t dp, int64_t tp,
                             int64_t microbatches);
  // The degrees of tp that make a stage faster, on any class; 1 among them.
  std::vector<int64_t> tensorDegrees();
  // Whether an axis is given: it is 1 then.
  bool isGiven(const char *axis) const {
    return input.pinned.mesh.contains(axis);
  }

private:
  const SearchInput &input;
  StageMeshes &meshes;
  std::vector<DeviceClass> classes;
};

} // namespace merak::planning
