// Passes of the stage phase.
#ifndef MERAK_STAGING_PASSES
#define MERAK_STAGING_PASSES

include "mlir/Pass/PassBase.td"

def CutStages : Pass<"merak-cut-stages", "::mlir::ModuleOp"> {
  let summary = "decide degrees, layouts and stages, and cut the step function into stage programs";
  let description = [{
    Input: `func.func @step` with a role on every op.
    Output: one `pipe.stage` per stage; ops carry the layout of every result and
    `dist` ops stand where layouts change. Types are still global.
  }];
  let options = [
    Option<"mesh", "mesh", "std::string", "\"\"", "pinned degrees, e.g. pp=2,tp=2">,
    Option<"globalBatch", "global-batch", "int64_t", "1", "samples a step">,
    Option<"microbatch", "microbatch", "int64_t", "0", "samples a microbatch; 0: chosen">,
    Option<"optimizer", "optimizer", "std::string", "\"sgd\"", "sgd or adamw">,
    Option<"gradClip", "grad-clip", "double", "0", "bound of the gradient norm; 0: none">,
    Option<"recompute", "recompute", "std::string", "\"none\"", "none, full or the ratio of stage 0">,
    Option<"schedule", "schedule", "std::string", "\"1f1b\"", "the schedule it is for">,
    Option<"chunks", "chunks", "int64_t", "0", "parts of the model on each stage; 0: the schedule's">,
    Option<"train", "train", "bool", "true", "whether there is a backward pass">
  ];
  let dependentDialects = ["::merak::pipe::PipeDialect", "::merak::dist::DistDialect"];
}

def VerifyStages : Pass<"merak-verify-stages", "::mlir::ModuleOp"> {
  let summary = "check that every value of a stage is written once";
  let description = [{
    An activation is stored by one action or received by one transfer; no value
    is received twice; each trained parameter is updated once on every stage that
    has it. All problems are reported. That ops name values which exist, with
    their types, the verifiers of these ops see to.
  }];
}

#endif
