// Names of mesh axes with a meaning of their own.
#pragma once

namespace merak {

inline constexpr const char *kPipelineAxis = "pp";
inline constexpr const char *kDataAxis = "dp";
inline constexpr const char *kTensorAxis = "tp";
// A rank has no coordinate on these: the microbatch of a call, and the
// submicrobatch where two run side by side (Merak's sub-pipelines).
inline constexpr const char *kMicrobatchAxis = "mb";
inline constexpr const char *kSubmicrobatchAxis = "sub";

} // namespace merak
