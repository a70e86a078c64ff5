#include "compiler/Import/Importer.h"

#include "compiler/Import/ExportTraps.h"
#include "compiler/Import/GraphImporter.h"

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
  ImportReport &shown = report ? *report : ignored;
  if (options.train) {
    shown.warnings = exportTraps(*file);
    shown.advice = exportAdvice(shown.warnings);
  }
  GraphImporter importer(*file, options, context, shown);
  return importer.run();
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
