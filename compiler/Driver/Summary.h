// What merakc prints by itself: one screen, for any model. The rest is printed
// with -v and stands in the plan's report.
#pragma once

#include "compiler/Pipeline/Pipelines.h"
#include "mlir/IR/BuiltinOps.h"

namespace merak {

inline constexpr size_t kSummaryLines = 25;

// The plan chosen and why, predicted step, rate and share of the peak, memory
// of the fullest rank, the runners-up and the warnings; as far as the phases
// got.
std::string summarize(mlir::ModuleOp module, const CompilerOptions &options,
                      const PhaseNotes &notes,
                      const std::vector<std::string> &warnings);

} // namespace merak
