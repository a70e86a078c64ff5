// Tables whose rows take the steps of an optimizer that they were left out of
// before they are looked up (docs/Sparse.md).
#pragma once

#include <cstdint>

namespace merak::planning {

// The last so many steps are remembered. Behind each update one of as many
// stripes of the table takes what its rows are owed: none is further behind.
inline constexpr int64_t kReplaySteps = 128;

// GraphOp::kernel of such a table's update.
inline constexpr const char *kReplayedUpdate = "update:replayed";

} // namespace merak::planning
