// How many microbatches searches try.
#pragma once

#include <cstdint>

namespace merak::planning {

// More than this many per stage bring nothing but launches.
inline constexpr int64_t kMicrobatchesPerStage = 64;

} // namespace merak::planning
