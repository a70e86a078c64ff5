// Names of mesh axes with a meaning of their own.
#pragma once

#include <string>
#include <string_view>

namespace merak {

inline constexpr const char *kPipelineAxis = "pp";
inline constexpr const char *kDataAxis = "dp";
inline constexpr const char *kTensorAxis = "tp";
// A rank has no coordinate on these: the microbatch of a call, and the
// submicrobatch where two run side by side (Merak's sub-pipelines).
inline constexpr const char *kMicrobatchAxis = "mb";
inline constexpr const char *kSubmicrobatchAxis = "sub";

// An axis of composite size may be used in parts, major to minor, so that one
// tensor is split over all of it and another over a part: tp = 8 as tp.0 = 2
// and tp.1 = 4. The mesh then has the parts in place of the axis.
inline std::string partOf(std::string_view axis, size_t part) {
  return std::string(axis) + "." + std::to_string(part);
}

// Whether `name` is the axis or a part of it.
inline bool isOn(std::string_view name, std::string_view axis) {
  return name.starts_with(axis) &&
         (name.size() == axis.size() || name[axis.size()] == '.');
}

} // namespace merak
