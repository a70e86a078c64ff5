#include "compiler/Import/Importer.h"

#include "compiler/Import/DeviceNotes.h"
#include "compiler/Import/GraphImporter.h"
#include "compiler/Import/Traps.h"

using namespace mlir;
using namespace merak;

FailureOr<OwningOpRef<ModuleOp>> merak::importOnnx(const std::string &path,
                                                   const ImportOptions &options,
                                                   MLIRContext &context,
                                                   ImportReport *report) {
  context.loadDialect<train::TrainDialect, func::FuncDialect>();
  std::vector<std::string> errors;
  std::unique_ptr<OnnxFile> file = OnnxFile::open(path, errors);
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
  GraphImporter importer(*file, options, context, into);
  FailureOr<OwningOpRef<ModuleOp>> module = importer.run();
  if (!noted.ok())
    return failure();
  // Said with every compilation, shortly; --check has the whole list.
  for (const Finding &trap : findTraps(*file, into, options.train)) {
    std::string line = trap.what + " (" + trap.places[0];
    if (trap.places.size() > 1)
      line += " and " + std::to_string(trap.places.size() - 1) + " more";
    into.warnings.push_back(line + "; see merakc --check)");
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
