// Import as a pass: the module becomes that of the model.
#include "compiler/Pipeline/Phases.h"
#include "compiler/Pipeline/Registration.h"
#include "onnx/Import/Importer.h"

#include "mlir/Pass/Pass.h"

using namespace mlir;
using namespace merak;

ImportOptions merak::importOptions(const CompilerOptions &options) {
  ImportOptions import;
  for (const auto &[name, shape] : options.shapes)
    import.shapes[name] = SmallVector<int64_t>(shape.begin(), shape.end());
  import.globalBatch = options.globalBatch.value_or(0);
  import.train = options.train;
  import.dropout = options.dropout;
  import.loss = options.loss;
  import.ownOptimizer = options.optimizerGiven;
  import.freeze = options.freeze;
  import.trainable = options.trainable;
  import.keepShared = options.keepShared;
  import.decays = options.train && options.optimizer.weightDecay != 0;
  return import;
}

namespace {

struct ImportOnnx : PassWrapper<ImportOnnx, OperationPass<ModuleOp>> {
  MLIR_DEFINE_EXPLICIT_INTERNAL_INLINE_TYPE_ID(ImportOnnx)

  ImportOnnx(const CompilerOptions &options, PhaseNotes *notes)
      : options(options), notes(notes) {}

  StringRef getArgument() const override { return "import-onnx"; }
  StringRef getDescription() const override {
    return "read an ONNX model as a module of train.onnx_node and parameters";
  }
  void getDependentDialects(DialectRegistry &registry) const override {
    registerAllDialects(registry);
  }

  void runOnOperation() override {
    ImportReport imported;
    FailureOr<OwningOpRef<ModuleOp>> made = importOnnx(
        options.input, importOptions(options), getContext(), &imported);
    if (failed(made))
      return signalPassFailure();
    ModuleOp module = getOperation();
    module.getBodyRegion().takeBody((*made)->getBodyRegion());
    module->setAttrs((*made)->getOperation()->getAttrDictionary());
    module->setLoc((*made)->getLoc());
    // What the model brings and a later phase asks for.
    Builder b(&getContext());
    if (imported.strategy)
      module->setAttr(kStrategyAttr,
                      b.getStringAttr(imported.strategy->toJson()));
    module->setAttr(train::kConfigAttr, config(imported));
    if (notes)
      notes->imported = std::move(imported);
  }

  // With the optimizer that the model brings, if that is asked for.
  train::ConfigAttr config(const ImportReport &imported) {
    train::OptimizerAttr optimizer;
    if (options.train && imported.training && !options.optimizerGiven)
      optimizer = train::OptimizerAttr::get(&getContext(),
                                            optimizerOf(*imported.training));
    return train::ConfigAttr::get(
        &getContext(),
        options.train ? train::StepMode::train : train::StepMode::infer,
        options.input, imported.globalBatch, optimizer, {}, false);
  }

  CompilerOptions options;
  PhaseNotes *notes;
};

} // namespace

std::unique_ptr<Pass> merak::createImportOnnx(const CompilerOptions &options,
                                              PhaseNotes *notes) {
  return std::make_unique<ImportOnnx>(options, notes);
}
