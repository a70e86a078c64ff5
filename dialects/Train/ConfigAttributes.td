// What a training step is told: the module's `train.config`.
#ifndef MERAK_TRAIN_CONFIG_ATTRIBUTES
#define MERAK_TRAIN_CONFIG_ATTRIBUTES
include "dialects/Train/TrainDialect.td"

def Train_StepMode : I32EnumAttr<"StepMode", "what a step does", [
  I32EnumAttrCase<"train", 0>, I32EnumAttrCase<"infer", 1>]> {
  let cppNamespace = "::merak::train";
}

// The type is merak::Optimizer (runtime/plan/Optimizer.h), which the command line
// and the plan's writer have too.
def Train_OptimizerAttr : AttrDef<Train_Dialect, "Optimizer"> {
  let mnemonic = "optimizer";
  let summary = "the optimizer and its learning rate";
  let description = [{
    `#train.optimizer<adamw, lr = 1.000000e-03, weight_decay = 0.000000e+00>`: the
    kind (sgd, adamw, adam, adagrad), then what differs from the defaults of
    `adamw`, by the names of the plan's message `Optimizer`
    (docs/PlanFormat.md): lr, weight_decay, momentum, dampening, nesterov,
    lr_decay, beta1, beta2, eps, schedule, warmup, total, min_factor; and of a
    model's own algorithm plain_root, post_decay, first_count and rate.
  }];
  let parameters = (ins "::merak::Optimizer":$value);
  let hasCustomAssemblyFormat = 1;
}

def Train_ConfigAttr : AttrDef<Train_Dialect, "Config"> {
  let mnemonic = "config";
  let summary = "what is trained, on how much, by what";
  let description = [{
    The module's attribute `train.config`. Import makes it, with the optimizer that
    the model brings, if it does; the stage phase completes it by the command line.

    `#train.config<mode = train, model = "gpt.onnx", global_batch = 16, optimizer =
    <adamw>, grad_clip = 1.0 : f64>`

    `global_batch` counts samples of one step, 0: the graph has no batch.
    `grad_clip` bounds the L2 norm of all gradients; absent: they are not clipped.
    `low_precision`: contractions run in this type; with f8E4M3FN those that say so
    (`rounds`), the others in bf16. In training with f16 losses are scaled: gradients
    are made of `loss_scale`, and `clip_factor` takes that out of them.

    *Constraints:* `low_precision` is bf16, f16 or f8E4M3FN; global_batch is at least 0,
    grad_clip above 0; no optimizer with mode infer.
  }];
  let parameters = (ins
    EnumParameter<Train_StepMode>:$mode,
    StringRefParameter<"file of the model">:$model,
    DefaultValuedParameter<"int64_t", "0">:$global_batch,
    OptionalParameter<"::merak::train::OptimizerAttr">:$optimizer,
    OptionalParameter<"::mlir::FloatAttr">:$grad_clip,
    OptionalParameter<"::mlir::Type">:$low_precision);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    // Of a module; one without the attribute trains on no batch.
    static ConfigAttr of(::mlir::Operation *module);
    ConfigAttr withBatch(int64_t samples) const;
    ConfigAttr withLowPrecision(::mlir::Type type) const;
    bool scalesLoss() const {
      return trains() && getLowPrecision() && getLowPrecision().isF16();
    }
    // 0: gradients are not clipped.
    double getClip() const {
      return getGradClip() ? getGradClip().getValueAsDouble() : 0;
    }
    bool trains() const { return getMode() == StepMode::train; }
  }];
}
#endif
