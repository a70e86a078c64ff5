// Executes reshardings on arrays: every element of the global tensor is its own
// number, so that a wrong element shows.
#pragma once

#include "passes/Resharding/Resharding.h"

#include <map>

namespace merak::resharding {

// By device: the local tensor, row major; -1 where nothing was written.
using Locals = std::map<int64_t, std::vector<int64_t>>;

// On the devices from `first` on.
Placement placed(const layout::Layout &layout,
                 const std::vector<MeshAxis> &axes, int64_t first);
Placement placed(const std::string &layout, const std::vector<MeshAxis> &axes,
                 int64_t first);
// Of 1 to 4 devices.
std::vector<std::vector<MeshAxis>> smallMeshes();

// What every device should hold, element by element from the definition of
// factors (not by boxes).
Locals reference(const Placement &placement);

// Runs the transfers of a leg in their order. `problem` gets what is wrong: an
// element that was written twice, one sent before it was there.
Locals execute(const Leg &leg, const Locals &source, std::string &problem);
// Of all legs.
Locals execute(const Resharding &resharding, const Locals &source,
               std::string &problem);

// Devices that execute their lists, each blocked until all participants of its
// next transfer are there. Returns how many transfers could not run.
int stuck(const std::map<int64_t, std::vector<OrderedTransfer>> &lists,
          const std::vector<const Resharding *> &reshardings);

} // namespace merak::resharding
