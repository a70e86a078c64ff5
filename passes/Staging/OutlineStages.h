// Cuts the annotated step function into stage programs.
#pragma once

#include "dialects/Dist/StageMesh.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "runtime/plan/Optimizer.h"

namespace merak {

// A pipeline of a plan: its stages among those of all pipelines, and the
// microbatches of a step that it trains.
struct PipelineSpan {
  int64_t firstStage = 0, stages = 1;
  // Parts of the model on each stage; ops carry their part in this pipeline,
  // chunk * stages + stage.
  int64_t chunks = 1;
  int64_t firstMicrobatch = 0, microbatches = 1;
};

struct OutlineOptions {
  int64_t stages = 1; // of all pipelines
  std::vector<PipelineSpan> pipelines{PipelineSpan()};
  bool train = true;
  // Parameters that microbatches read in another type are converted once a
  // step, in G; else at each use.
  bool convertsOnce = false;
  Optimizer optimizer;
  double gradClip = 0; // 0: no clipping
  // Gradients are those of a scaled loss: the factor of updates unscales them.
  bool scalesLoss = false;
  // By stage, where their meshes differ: the axes "pp", "dp" and "tp", "ranks"
  // with the number of all ranks, "mb"; and its ranks, row major.
  std::vector<dist::MeshAttr> meshes;
  std::vector<std::vector<int64_t>> devices;
};

// Replaces func @step by one pipe.stage per stage with its actions, named
// values and transfers. Requires layouts and stages on every op. Errors are
// emitted where they are.
mlir::LogicalResult outlineStages(mlir::func::FuncOp step,
                                  const OutlineOptions &options);

} // namespace merak
