// Which stages to form of devices of several classes: numbers of each kind of
// stage, by the speed that they have together. If layers could be cut anywhere,
// stages of speeds v would take 1 / (sum of v) for a microbatch each, whatever
// their order. Plain numbers; PartsSearch.h gives them a model.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace merak::planning {

// A stage of so many devices of one class; it computes `speed` models a second.
struct StageKind {
  int deviceClass = 0;
  int64_t devices = 1;
  double speed = 0;
};

struct StageMix {
  std::vector<int> counts; // by kind of stage
  double speed = 0;        // of all stages
  bool operator==(const StageMix &) const = default;
};

// By the number of stages, from 0 to `mostStages`: the `keep` fastest mixes of
// so many stages, the fastest first. Class c has devices[c] devices; some may
// be left out.
std::vector<std::vector<StageMix>>
fastestMixes(const std::vector<int64_t> &devices,
             const std::vector<StageKind> &kinds, int mostStages, size_t keep);

// Devices of stages of such sizes, in their order, each in one node or in whole
// ones: the largest first, each where least is left over. `nodes`: the devices
// of each. None: they do not fit so.
std::optional<std::vector<std::vector<int64_t>>>
placeStages(const std::vector<std::vector<int64_t>> &nodes,
            const std::vector<int64_t> &sizes);

} // namespace merak::planning
