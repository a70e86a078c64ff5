// Which devices take which places of a new plan, so that little state moves.
#pragma once

#include "passes/Stragglers/Plan.h"

namespace merak::stragglers {

// Layers times shares of their tensors that a device of the new plan does not
// have in the old one. A device holds a run of layers, of each the slice of its
// place in its group.
double movedLayers(const Plan &old, const Plan &now);

// The same plan with pipelines in the order of the old ones that they resemble,
// and with equal groups (rate and size) exchanged, so that what they keep is
// most; of equal choices groups on the node of a group of another class that
// holds the same layers, since gradients of a layer are summed over its
// pipelines. Inside a group each device gets the slice of which it has most.
// `spare`: groups that stand by and may take the place of equal ones.
Plan keepPlaces(const Problem &problem, const Plan &old, const Plan &now,
                const std::vector<std::vector<int>> &spare = {});

} // namespace merak::stragglers
