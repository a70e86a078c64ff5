#include "onnx/Import/Importer.h"

#include "onnx/Import/DeviceNotes.h"
#include "onnx/Import/ExportProblems.h"
#include "onnx/Import/GraphImporter.h"
#include "onnx/Import/NodeFacts.h"

using namespace mlir;
using namespace merak;

// Loss, optimizer and trained initializers of the model's own algorithm, where
// the options do not say. False after reporting what does not fit.
static bool adoptTraining(OnnxFile &file, ImportOptions &options,
                          ImportReport &report, Location loc) {
  if (!options.readsTraining())
    return true;
  std::optional<ModelTraining> training = readTraining(file);
  if (!training)
    return true;
  std::vector<std::string> problems;
  if (options.loss.empty())
    problems = training->lossProblems;
  if (!options.ownOptimizer)
    llvm::append_range(problems, training->updateProblems);
  for (const std::string &problem : problems) {
    InFlightDiagnostic error = emitError(loc)
                               << "training algorithm: " << problem;
    if (&problem == &problems.back())
      error.attachNote() << "--loss and --optimizer together replace the "
                            "model's training algorithm";
  }
  if (options.ownOptimizer)
    report.warnings.push_back("--optimizer replaces the " +
                              training->optimizer +
                              " of the model's training algorithm");
  if (!options.loss.empty())
    report.warnings.push_back("--loss replaces '" + training->loss +
                              "' of the model's training algorithm");
  else if (training->lossProblems.empty())
    options.loss = training->loss;
  options.updated = training->trained;
  if (!options.ownOptimizer)
    options.states = training->states;
  options.keepShared = true; // the algorithm says what is one parameter
  report.training = std::move(training);
  return problems.empty();
}

FailureOr<OwningOpRef<ModuleOp>> merak::importOnnx(const std::string &path,
                                                   const ImportOptions &options,
                                                   MLIRContext &context,
                                                   ImportReport *report) {
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  std::vector<std::string> errors;
  std::unique_ptr<OnnxFile> file =
      OnnxFile::open(path, errors, options.readsTraining());
  StringRef name = StringRef(path).rsplit('/').second;
  if (name.empty())
    name = path;
  for (const std::string &error : errors)
    emitError(FileLineColLoc::get(&context, name, 0, 0)) << error;
  if (!file)
    return failure();
  ImportReport ignored;
  ImportReport &into = report ? *report : ignored;
  Result<std::optional<planning::Strategy>> noted = readDeviceNotes(*file);
  if (noted.ok())
    into.strategy = *noted;
  for (const std::string &message : noted.status().messages())
    emitError(FileLineColLoc::get(&context, name, 0, 0)) << message;
  ImportOptions adopted = options;
  bool fits = adoptTraining(*file, adopted, into,
                            FileLineColLoc::get(&context, name, 0, 0));
  // A loss that does not fit would be missed once more.
  if (!fits && adopted.loss.empty())
    return failure();
  std::vector<std::string> problems;
  if (auto names = readTrainableNames(file->model(), problems);
      names && adopted.trainable.empty())
    adopted.trainable = *names;
  for (const std::string &problem : problems)
    emitError(FileLineColLoc::get(&context, name, 0, 0)) << problem;
  if (!problems.empty())
    return failure();
  GraphImporter importer(*file, adopted, context, into);
  FailureOr<OwningOpRef<ModuleOp>> module = importer.run();
  if (!noted.ok() || !fits)
    return failure();
  into.allTrained = options.train && adopted.freeze.empty() &&
                    adopted.trainable.empty() && !adopted.updated;
  // Said with every compilation, shortly; --check has the whole list.
  for (const Finding &trap : findExportProblems(*file, into, options.train)) {
    std::string line = trap.what + " (" + trap.places[0];
    if (trap.places.size() > 1)
      line += " and " + std::to_string(trap.places.size() - 1) + " more";
    into.warnings.push_back(line + kSeeCheck.str());
  }
  return module;
}

std::string merak::describeLocation(Location location) {
  std::string file, node;
  location->walk([&](Location part) {
    if (auto name = dyn_cast<NameLoc>(part); name && node.empty())
      node = name.getName().str();
    if (auto line = dyn_cast<FileLineColLoc>(part); line && file.empty())
      file = line.getFilename().str();
    return WalkResult::advance();
  });
  if (node.empty())
    return file;
  return file + (file.empty() ? "" : ": ") + node;
}
