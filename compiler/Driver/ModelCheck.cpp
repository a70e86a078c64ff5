#include "compiler/Driver/ModelCheck.h"

#include "compiler/Driver/Phases.h"
#include "compiler/Pipeline/Pipelines.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "onnx/Import/ExportProblems.h"
#include "onnx/Import/Importer.h"
#include "onnx/Import/NodeFacts.h"
#include "passes/Graph/Passes.h"
#include "llvm/ADT/StringSet.h"
#include <map>

using namespace mlir;
using namespace merak;

namespace {

// Sizes with which open dimensions are checked.
constexpr int64_t kAssumedBatch = 8, kAssumedSize = 16;

class ModelCheck {
public:
  ModelCheck(const CompilerOptions &options, MLIRContext &context)
      : context(context), path(options.input), precision(options.precision),
        import(importOptions(options)) {
    import.decays &= options.optimizerGiven; // else it is said by a warning
  }

  int run(llvm::raw_ostream &out) {
    StringRef name = StringRef(path).rsplit('/').second;
    fileName = name.empty() ? path : name.str();
    std::vector<std::string> errors;
    file = OnnxFile::open(path, errors, import.readsTraining());
    for (const std::string &error : errors)
      findings.push_back({true, error, {}, ""});
    if (file) {
      bindOpenDimensions();
      compile();
      readNodeFacts(file->mutableGraph()); // problems are told by compile()
      // Those of traps are said once, with all places.
      for (const std::string &warning : report.warnings)
        if (!StringRef(warning).ends_with(kSeeCheck))
          findings.push_back({false, warning, {}, ""});
      std::vector<Finding> traps =
          findExportProblems(*file, report, import.train);
      findings.insert(findings.end(), traps.begin(), traps.end());
    }
    return print(out);
  }

private:
  // Open dimensions must not hide what else there is to say.
  void bindOpenDimensions() {
    llvm::StringSet<> initialized;
    for (const OnnxTensor &tensor : file->initializers())
      initialized.insert(tensor.name);
    std::map<std::string, int64_t> sizes;
    Finding open{
        false, "open dimensions, checked with an assumed size", {}, ""};
    for (const onnx::ValueInfoProto &input : file->model().graph().input()) {
      const auto &shape = input.type().tensor_type().shape();
      if (initialized.contains(input.name()))
        continue;
      auto given = import.shapes.find(input.name());
      SmallVector<int64_t> dims =
          given != import.shapes.end()
              ? given->second
              : SmallVector<int64_t>(shape.dim_size(), -1);
      if (static_cast<int>(dims.size()) != shape.dim_size())
        continue;
      bool assumed = false;
      for (int i = 0; i < shape.dim_size(); ++i) {
        const auto &dim = shape.dim(i);
        if ((dim.has_dim_value() && dim.dim_value() > 0) || dims[i] >= 0)
          continue;
        if (i == 0 && import.globalBatch > 0)
          continue;
        int64_t size = i == 0 ? kAssumedBatch : kAssumedSize;
        if (!dim.dim_param().empty())
          size = sizes.try_emplace(dim.dim_param(), size).first->second;
        open.places.push_back(
            input.name() + "[" + std::to_string(i) + "]" +
            (dim.dim_param().empty() ? "" : " '" + dim.dim_param() + "'") +
            " = " + std::to_string(size));
        dims[i] = size;
        assumed = true;
      }
      if (assumed)
        import.shapes[input.name()] = dims;
    }
    if (open.places.empty())
      return;
    open.help = "give sizes with --global-batch (first dimension) and --shape";
    findings.push_back(open);
  }

  // Import and the graph phase, for their diagnostics.
  void compile() {
    size_t before = findings.size();
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
      take(diagnostic);
      return success();
    });
    FailureOr<OwningOpRef<ModuleOp>> module =
        importOnnx(path, import, context, &report);
    bool noLoss = failed(module) && import.train && findings.size() > before &&
                  findings.back().what.find("as the loss") != std::string::npos;
    if (noLoss) {
      // The rest of the list does not depend on the loss.
      findings.back().help =
          "export a module whose forward returns the loss, or use --mode=infer";
      ImportOptions whole = import;
      whole.train = false;
      report = ImportReport();
      module = importOnnx(path, whole, context, &report);
    }
    if (failed(module))
      return;
    PassManager manager(&context);
    buildGraphImportPipeline(manager, import.train && import.dropout,
                             import.train);
    manager.addPass(
        createLowerPrecision({lowTypeOf(precision), import.train && !noLoss}));
    DifferentiateOptions differentiate;
    differentiate.train = import.train && !noLoss;
    manager.addPass(createDifferentiate(differentiate));
    (void)manager.run(**module);
  }

  // Diagnostics of equal text become one finding with several places.
  void take(Diagnostic &diagnostic) {
    const bool isProblem =
        diagnostic.getSeverity() == DiagnosticSeverity::Error;
    if (!isProblem && diagnostic.getSeverity() != DiagnosticSeverity::Warning)
      return;
    std::string text = diagnostic.str();
    std::string place = describeLocation(diagnostic.getLocation());
    if (StringRef(place).starts_with(fileName))
      place = StringRef(place).drop_front(fileName.size()).ltrim(": ").str();
    auto known = byText.find(text);
    if (known == byText.end()) {
      known = byText.emplace(text, findings.size()).first;
      findings.push_back({isProblem, text, {}, isProblem ? helpFor(text) : ""});
    }
    if (!place.empty())
      findings[known->second].places.push_back(place);
  }

  static std::string helpFor(StringRef text) {
    static const llvm::StringSet<> kDataDependent = {
        "NonZero", "Unique", "Compress", "NonMaxSuppression",
        "Loop",    "Scan",   "If",       "SequenceMap"};
    StringRef type = text.split(' ').first;
    if (kDataDependent.contains(type))
      return "the shape or the course of the rest depends on data; write the "
             "model with masks or a fixed number of rounds, or bind what it "
             "depends on";
    if (text.contains("computed from the model's inputs or parameters"))
      return "a shape depends on data; bind the dimensions it comes from with "
             "--shape, or export without dynamic axes";
    if (text.starts_with("training algorithm: "))
      return "--loss and --optimizer together replace the model's training "
             "algorithm";
    if (text.contains("unsupported op, expected one of the standard domain"))
      return "export the operation written out in standard operators";
    return "";
  }

  static void printPlaces(llvm::raw_ostream &out, const Finding &finding) {
    constexpr size_t kShown = 20;
    for (size_t i = 0; i < std::min(kShown, finding.places.size()); ++i)
      out << "  at " << finding.places[i] << "\n";
    if (finding.places.size() > kShown)
      out << "  and " << finding.places.size() - kShown << " more\n";
  }

  int print(llvm::raw_ostream &out) const {
    size_t problems = 0;
    if (file) {
      const onnx::ModelProto &model = file->model();
      out << fileName << ": opset " << report.opset << ", IR "
          << model.ir_version() << ", " << model.graph().node_size()
          << " nodes, " << file->initializers().size() << " initializers";
      if (!model.producer_name().empty())
        out << ", by " << model.producer_name() << " "
            << model.producer_version();
      out << "\n";
    }
    for (bool isProblem : {true, false})
      for (const Finding &finding : findings) {
        if (finding.isProblem != isProblem)
          continue;
        problems += isProblem;
        out << (isProblem ? "problem: " : "warning: ") << finding.what << "\n";
        printPlaces(out, finding);
        if (!finding.help.empty())
          out << "  help: " << finding.help << "\n";
      }
    size_t warnings = findings.size() - problems;
    out << fileName << ": " << problems
        << (problems == 1 ? " problem, " : " problems, ") << warnings
        << (warnings == 1 ? " warning\n" : " warnings\n");
    return problems ? 1 : 0;
  }

  MLIRContext &context;
  std::string path, precision, fileName;
  ImportOptions import;
  std::unique_ptr<OnnxFile> file;
  ImportReport report;
  std::vector<Finding> findings;
  std::map<std::string, size_t> byText;
};

} // namespace

int merak::checkModel(const CompilerOptions &options, MLIRContext &context,
                      llvm::raw_ostream &out) {
  return ModelCheck(options, context).run(out);
}
