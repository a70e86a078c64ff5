// The group of all ranks of a plan whose stages lie on meshes of their own.
#pragma once

#include "dialects/Support/MeshAxes.h"

namespace merak {

// All ranks of such a plan, by their numbers: what collectives over every stage
// go over there, as over "pp" where the stages have one mesh. No layout has it.
inline constexpr const char *kRanksAxis = "ranks";

// Whether a collective over the axis has members on several stages.
inline bool isAcrossStages(std::string_view axis) {
  return axis == kPipelineAxis || axis == kRanksAxis;
}

} // namespace merak
