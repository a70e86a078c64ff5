// Passes and the pipeline of the memory phase.
#pragma once

#include "dialects/Plan/PlanDialect.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassManager.h"

namespace merak {

#define GEN_PASS_DECL
#include "passes/Memory/Passes.h.inc"

#define GEN_PASS_REGISTRATION
#include "passes/Memory/Passes.h.inc"

struct MemoryPipelineOptions {
  int64_t memoryLimit = 0;      // bytes of a device; 0: what is noted, or none
  bool overlapGradients = true; // reductions beside the backward pass
  // Bytes reduced by one collective; 0: one each, -1: what is noted, or 0.
  int64_t gradientBucket = -1;
  std::string sends = "early"; // of merak-convert-to-plan
};

// Stage programs -> plan programs with buffers at offsets.
void buildMemoryPipeline(mlir::OpPassManager &manager,
                         const MemoryPipelineOptions &options = {});

// Bytes by category of one program ("parameters", ...); they add up to the
// arena. Requires assign-memory.
std::vector<std::pair<std::string, int64_t>> memoryRow(plan::ProgramOp program);

// The memory of all programs as a table for people.
std::string memoryTable(mlir::ModuleOp module);

} // namespace merak
