// Where stages begin, as strategies name it.
#pragma once

#include "passes/Planning/FactorGraph.h"

#include <string>
#include <vector>

namespace merak::planning {

// Of all parts but the first the forward op that each begins with
// (forwardNames). `begin`: the positions of these among the forward ops, of the
// first part too, and their number at the end.
std::vector<std::string> beginNames(const Graph &graph,
                                    const std::vector<int> &begin);

} // namespace merak::planning
