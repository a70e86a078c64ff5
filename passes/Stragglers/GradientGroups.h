// Which devices sum the gradients of a layer whose copies lie in groups of
// different sizes.
#pragma once

#include <vector>

namespace merak::stragglers {

// The devices of each group are in the order of their slices, sizes are powers
// of two. The tensors are cut into as many slices as the largest group has
// devices; group q of the result has the device of each group whose slice
// contains slice q, in the order of the groups. All devices issue their groups
// in this order, or they would wait for each other. (Malleus, arXiv 2410.13333,
// section 5)
std::vector<std::vector<int>>
gradientGroups(const std::vector<std::vector<int>> &groups);

} // namespace merak::stragglers
