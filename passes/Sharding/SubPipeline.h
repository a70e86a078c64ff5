// Sub-pipelined tensor parallelism: a microbatch as two submicrobatches.
#pragma once

#include "mlir/IR/BuiltinOps.h"
#include "passes/CostModel/Cluster.h"

namespace merak {

struct SubPipelineCounts {
  int64_t interleaved = 0, inOrder = 0; // actions
  int64_t filled = 0;                   // ops that moved under a collective
};

// Doubles the stage programs of a module with `pipe.tp_overlap` after it was
// localized; see the pass merak-sub-pipeline. `cluster` gives the times by
// which the submicrobatches are ordered, never what they compute.
mlir::LogicalResult subPipeline(mlir::ModuleOp module,
                                const costmodel::Cluster &cluster,
                                SubPipelineCounts *counts = nullptr);

} // namespace merak
