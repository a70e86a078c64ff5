// Procedures of a program that no call of a step names: a run calls them by
// their names, between steps, on one stream.
#pragma once

#include <string_view>

namespace merak {

// After the state was loaded: sets what only this program keeps beside it.
inline constexpr const char *kBeginEntry = "entry:begin";
// Before the state is read by anything else than steps: gives rows of tables
// the steps that they were left out of. The scalar "step" is that of the last
// step.
inline constexpr const char *kFlushEntry = "entry:flush";

inline bool isEntry(std::string_view procedure) {
  return procedure == kBeginEntry || procedure == kFlushEntry;
}

} // namespace merak
