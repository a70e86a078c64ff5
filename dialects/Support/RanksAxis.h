// Groups of ranks of a plan whose stages lie on meshes of their own.
#pragma once

#include "dialects/Support/MeshAxes.h"

namespace merak {

// All ranks of such a plan, by their numbers: what collectives over every stage
// go over there, as over "pp" where the stages have one mesh. No layout has it.
inline constexpr const char *kRanksAxis = "ranks";

// "holders.N": of several pipelines, the ranks that hold the same part of some
// parameters, whose gradients they sum.
inline constexpr const char *kHoldersAxis = "holders.";
inline bool isOfHolders(std::string_view axis) {
  return axis.starts_with(kHoldersAxis);
}

// Axes whose ranks are listed, not those that differ in a coordinate.
inline bool isListed(std::string_view axis) {
  return axis == kRanksAxis || isOfHolders(axis);
}

// Whether a collective over the axis has members on several stages.
inline bool isAcrossStages(std::string_view axis) {
  return axis == kPipelineAxis || isListed(axis);
}

} // namespace merak
