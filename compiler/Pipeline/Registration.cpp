#include "compiler/Pipeline/Registration.h"

#include "compiler/Pipeline/Pipelines.h"
#include "dialects/Dist/DistDialect.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Plan/PlanDialect.h"
#include "dialects/Train/TrainDialect.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Tensor/IR/Tensor.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"
#include "onnx/Conversion/Passes.h"
#include "passes/Graph/Passes.h"
#include "passes/Lowering/Passes.h"
#include "passes/Memory/Passes.h"
#include "passes/Scheduling/Passes.h"
#include "passes/Sharding/Passes.h"
#include "passes/Staging/Passes.h"

void merak::registerAllDialects(mlir::DialectRegistry &registry) {
  registry.insert<mlir::arith::ArithDialect, mlir::func::FuncDialect,
                  mlir::linalg::LinalgDialect, mlir::math::MathDialect,
                  mlir::tensor::TensorDialect, train::TrainDialect,
                  dist::DistDialect, pipe::PipeDialect, plan::PlanDialect>();
}

void merak::registerAllPasses() {
  registerOnnxPasses();
  registerGraphPasses();
  registerLoweringPasses();
  registerMemoryPasses();
  registerSchedulingPasses();
  registerShardingPasses();
  registerStagingPasses();
  mlir::registerTransformsPasses();
  registerPhasePipelines();
  mlir::PassPipelineRegistration<>(
      "graph-import",
      "what follows import: legalize, canonicalize, raise, finish",
      [](mlir::OpPassManager &manager) { buildGraphImportPipeline(manager); });
}
