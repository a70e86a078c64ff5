// Rows to columns, one each, so that the sum of what they are worth together is
// largest: stages to positions, groups to places of a plan, devices to slices.
#pragma once

#include <cstdint>
#include <vector>

namespace merak::stragglers {

// The column of each row; there are at least as many columns as rows, and every
// row has a value for each. (Kuhn, 1955; in the form of Jonker and Volgenant,
// rows by columns operations for each row)
std::vector<int>
bestAssignment(const std::vector<std::vector<int64_t>> &values);

int64_t valueOf(const std::vector<std::vector<int64_t>> &values,
                const std::vector<int> &columns);

} // namespace merak::stragglers
