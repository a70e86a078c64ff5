// What calibration measures: library kernels on a grid of shapes, as the
// instructions a plan would hold, so that the cost model sees both alike.
#pragma once

#include "runtime/plan/Plan.h"

#include <string>
#include <vector>

namespace merak::bench {

// An instruction to measure and the program whose buffers it names.
struct Case {
  const planpb::Program *program;
  const planpb::Instruction *instruction;
  std::string key; // names it in files and on the terminal
};

// The grid, small with `quick`. Procedure 0 of the program holds one
// instruction a case.
planpb::Program libraryProgram(bool quick);
std::vector<Case> casesOf(const planpb::Program &program);

// The different generated kernels of a plan, small ones left out.
std::vector<Case> generatedCases(const LoadedPlan &plan);

} // namespace merak::bench
