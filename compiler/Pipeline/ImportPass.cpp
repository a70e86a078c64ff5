// Import as a pass: the module becomes that of the model.
#include "compiler/Pipeline/Phases.h"
#include "compiler/Pipeline/Registration.h"
#include "dialects/Train/FirstStates.h"
#include "dialects/Train/ModelFiles.h"
#include "onnx/Import/Importer.h"
#include "runtime/plan/FileIdentity.h"

#include "mlir/Pass/Pass.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

#include <set>

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

// Of this many bytes of a model's files all is hashed; of more, samples, so
// that the time does not depend on how large the weights are.
constexpr uint64_t kWholeHashes = uint64_t{128} << 20;

// What optimizers keep beside a parameter, as runtime/plan/plan.proto has it.
constexpr llvm::StringLiteral kStateNames[] = {"exp_avg", "exp_avg_sq",
                                               "momentum", "sum"};

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
    llvm::sys::fs::file_status before;
    (void)llvm::sys::fs::status(options.input, before);
    FailureOr<OwningOpRef<ModuleOp>> made = importOnnx(
        options.input, importOptions(options), getContext(), &imported);
    if (failed(made) || failed(checkSymbols(**made)) ||
        failed(noteFiles(**made, before.getLastModificationTime())))
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

  // Names that files of a run have for something else: sums of gradients, the
  // optimizer's state, the header of safetensors.
  LogicalResult checkSymbols(ModuleOp module) {
    LogicalResult result = success();
    for (auto parameter : module.getOps<train::ParameterOp>()) {
      const StringRef name = parameter.getSymName();
      auto [of, state] = name.rsplit('.');
      if (!options.train)
        continue;
      if (name == "__metadata__" || name.starts_with("grad:")) {
        result = emitError(module.getLoc())
                 << "initializer '" << name
                 << "': this name is reserved in checkpoints; rename it";
      } else if (llvm::is_contained(kStateNames, state)) {
        auto trained = module.lookupSymbol<train::ParameterOp>(of);
        if (trained && trained.getTrainable())
          result = emitError(module.getLoc())
                   << "initializer '" << name
                   << "': this is the name of the optimizer's state of '" << of
                   << "' in checkpoints; rename one of them";
      }
    }
    return result;
  }

  // The model and the files of its initializers, for the plan to know them by.
  LogicalResult noteFiles(ModuleOp module, llvm::sys::TimePoint<> written) {
    const StringRef folder = llvm::sys::path::parent_path(options.input);
    const std::string model = llvm::sys::path::filename(options.input).str();
    const bool all = options.hash == "full";
    uint64_t left = all ? UINT64_MAX : kWholeHashes;
    SmallVector<Attribute> notes;
    for (const std::string &name : filesOf(module, model)) {
      llvm::SmallString<128> path(folder);
      llvm::sys::path::append(path, name);
      if (name != model && !llvm::sys::fs::exists(path))
        continue; // weights that come later
      Result<FileIdentity> found = identifyFile(path.str().str(), left);
      if (!found.ok())
        return emitError(module.getLoc()) << found.status().str();
      if (name == model &&
          found->modified != written.time_since_epoch().count())
        return emitError(module.getLoc())
               << "'" << name << "' was written while it was read";
      if (!found->sampled && !all)
        left -= std::min(left, found->bytes);
      notes.push_back(note(name, *found));
    }
    module->setAttr(train::kFilesAttr, ArrayAttr::get(&getContext(), notes));
    return success();
  }

  // In one order: what is hashed whole depends on it.
  static std::set<std::string> filesOf(ModuleOp module,
                                       const std::string &model) {
    std::set<std::string> names = {model};
    auto add = [&](Attribute attribute) {
      if (auto source = dyn_cast_or_null<train::SourceAttr>(attribute);
          source && !source.getPath().empty())
        names.insert(source.getPath().str());
    };
    for (auto parameter : module.getOps<train::ParameterOp>()) {
      add(parameter.getSourceAttr());
      if (auto states =
              parameter->getAttrOfType<DictionaryAttr>(train::kStatesAttr))
        for (NamedAttribute state : states)
          add(state.getValue());
    }
    return names;
  }

  DictionaryAttr note(const std::string &name, const FileIdentity &identity) {
    Builder b(&getContext());
    SmallVector<NamedAttribute> fields = {
        b.getNamedAttr("path", b.getStringAttr(name)),
        b.getNamedAttr("bytes", b.getI64IntegerAttr(int64_t(identity.bytes))),
        b.getNamedAttr("hash", b.getI64IntegerAttr(int64_t(identity.hash)))};
    if (identity.sampled)
      fields.push_back(
          b.getNamedAttr("sampled", b.getI64IntegerAttr(identity.modified)));
    return b.getDictionaryAttr(fields);
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
        options.input, imported.globalBatch, optimizer, {}, Type());
  }

  CompilerOptions options;
  PhaseNotes *notes;
};

} // namespace

std::unique_ptr<Pass> merak::createImportOnnx(const CompilerOptions &options,
                                              PhaseNotes *notes) {
  return std::make_unique<ImportOnnx>(options, notes);
}
