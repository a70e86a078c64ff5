#include "compiler/Driver/Driver.h"

#include "compiler/Driver/Explore.h"
#include "compiler/Driver/ModelCheck.h"
#include "compiler/Driver/Operators.h"
#include "compiler/Driver/Phases.h"
#include "compiler/Pipeline/Registration.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Remarks.h"
#include "onnx/Import/Importer.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/PrettyStackTrace.h"
#include "llvm/Support/Regex.h"
#include "llvm/Support/Signals.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/thread.h"
#include <csignal>
#include <malloc.h>
#include <unistd.h>

using namespace mlir;
using namespace merak;

// One line per problem: where, what; notes are indented.
static void printDiagnostic(Diagnostic &diagnostic) {
  std::string place = describeLocation(diagnostic.getLocation());
  llvm::errs() << (place.empty() ? "merakc" : place)
               << ": error: " << diagnostic.str() << "\n";
  for (Diagnostic &note : diagnostic.getNotes()) {
    std::string at = describeLocation(note.getLocation());
    llvm::errs() << "  note: " << (at.empty() ? "" : at + ": ") << note.str()
                 << "\n";
  }
}

// A crash is our fault: say so and how to reproduce it.
static int crashArgc;
static char **crashArgv;
static void printReproduction() {
  llvm::errs() << "merakc: internal error; reproduce with:";
  for (int i = 0; i < crashArgc; ++i)
    llvm::errs() << " '" << crashArgv[i] << "'";
  llvm::errs() << "\n";
  llvm::errs().flush();
}
static void onCrash(void *) {
  printReproduction();
  _exit(70);
}

static LogicalResult enableRemarks(MLIRContext &context,
                                   const CompilerOptions &options) {
  if (!llvm::Regex(options.remarks).isValid())
    return failure();
  const std::string &filter = options.remarks;
  remark::RemarkCategories categories{filter, filter, filter, filter, filter};
  return remark::enableOptimizationRemarks(
      context, /*streamer=*/nullptr,
      std::make_unique<remark::RemarkEmittingPolicyAll>(), categories,
      /*printAsEmitRemarks=*/true);
}

// A plan for each of several situations, and a table of them: what each is for
// and the step that is simulated there.
static int compileFamily(const CompilerOptions &options, MLIRContext &context) {
  if (std::error_code failure =
          llvm::sys::fs::create_directories(options.output)) {
    llvm::errs() << "merakc: error: cannot write '" << options.output
                 << "': " << failure.message() << "\n";
    return 1;
  }
  llvm::json::Array table;
  for (size_t member = 0; member < options.family.size(); ++member) {
    const CompilerOptions one = memberOf(options, member);
    Compilation compilation(one, context);
    if (failed(compilation.run()))
      return compilation.isInternalError() ? 70 : 1;
    const std::string leaf = llvm::sys::path::filename(one.output).str();
    const double seconds = compilation.getSimulatedSeconds().value_or(0);
    llvm::json::Object rates;
    for (const auto &[device, rate] : one.forRates)
      rates[std::to_string(device)] = rate;
    table.push_back(llvm::json::Object{{"plan", leaf},
                                       {"rates", std::move(rates)},
                                       {"step_seconds", seconds}});
    if (!options.quiet)
      llvm::outs() << llvm::formatv("{0,-32} {1:f3} ms\n", leaf, 1e3 * seconds);
  }
  const std::string path = options.output + "/family.json";
  std::error_code failure;
  llvm::raw_fd_ostream out(path, failure);
  if (!failure) {
    out << llvm::formatv("{0:2}\n", llvm::json::Value(llvm::json::Object{
                                        {"plans", std::move(table)}}));
    out.close();
    failure = out.error();
    out.clear_error();
  }
  if (!failure)
    return 0;
  llvm::errs() << "merakc: error: cannot write '" << path
               << "': " << failure.message() << "\n";
  return 1;
}

static int compileOrAnswer(int argc, char **argv) {
  crashArgc = argc;
  crashArgv = argv;
  llvm::sys::AddSignalHandler(onCrash, nullptr);
  ParsedOptions parsed = parseOptions(argc, argv);
  if (parsed.exitCode) {
    (*parsed.exitCode ? llvm::errs() : llvm::outs()) << parsed.text;
    return *parsed.exitCode;
  }
  const CompilerOptions &options = parsed.options;
  DialectRegistry registry;
  registerAllDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  context.printOpOnDiagnostic(false);
  if (options.operators) {
    printOperators(context, llvm::outs());
    return 0;
  }
  if (options.check)
    return checkModel(options, context, llvm::outs());
  Compilation compilation(options, context);
  size_t errors = 0, bugs = 0;
  context.getDiagEngine().registerHandler([&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error) {
      ++errors;
      bugs += StringRef(diagnostic.str()).starts_with("internal error");
      printDiagnostic(diagnostic);
    } else if (diagnostic.getSeverity() == DiagnosticSeverity::Warning) {
      compilation.warn(diagnostic.str());
    } else if (diagnostic.getSeverity() == DiagnosticSeverity::Remark) {
      std::string place = describeLocation(diagnostic.getLocation());
      llvm::errs() << (place.empty() ? "merakc" : place)
                   << ": remark: " << diagnostic.str() << "\n";
    } else if (!options.quiet) {
      llvm::errs() << diagnostic.str() << "\n";
    }
    return success();
  });
  if (!options.remarks.empty() && failed(enableRemarks(context, options))) {
    llvm::errs() << "merakc: --remarks: expected a regular expression, found '"
                 << options.remarks << "' (see --help)\n";
    return 2;
  }
  if (!options.family.empty())
    return compileFamily(options, context);
  Exploration exploration(compilation, options, context);
  const bool asks = asksQuestion(options);
  const bool isDone = succeeded(asks ? exploration.run() : compilation.run());
  if (options.timing)
    llvm::errs() << compilation.getTimes().str();
  if (!isDone) {
    if (errors == 0) {
      llvm::errs() << "merakc: internal error: a phase failed without a "
                      "message\n";
      return 70;
    }
    if (!bugs && !compilation.isInternalError())
      return 1;
    printReproduction();
    return 70;
  }
  bool printsIr = options.toPhase != "files";
  if (printsIr) {
    if (options.output == "-") {
      compilation.getModule().print(llvm::outs());
    } else {
      std::error_code failure;
      llvm::raw_fd_ostream out(options.output, failure);
      if (failure) {
        llvm::errs() << "merakc: error: cannot write '" << options.output
                     << "': " << failure.message() << "\n";
        return 1;
      }
      compilation.getModule().print(out);
      out.close();
      if (out.has_error()) {
        llvm::errs() << "merakc: error: cannot write '" << options.output
                     << "': " << out.error().message() << "\n";
        out.clear_error();
        return 1;
      }
    }
  }
  if (asks && !options.quiet)
    llvm::outs() << exploration.getReport();
  const bool writes = options.frontier.empty() || !options.pick.empty();
  if (!options.quiet && writes)
    (printsIr ? llvm::errs() : llvm::outs())
        << (options.verbose ? compilation.getReport()
                            : compilation.getSummary());
  return 0;
}

// A terminal or a file behind it that takes no more: else LLVM would end the
// process as if it were a fault of ours.
static int finishOutput(int code) {
  llvm::outs().flush();
  if (!llvm::outs().has_error())
    return code;
  llvm::errs() << "merakc: error: cannot write to standard output: "
               << llvm::outs().error().message() << "\n";
  llvm::outs().clear_error();
  return code ? code : 1;
}

// Passes walk chains of operations by recursion. The longest that import lets
// through needs a hundred MiB; pages that nobody touches cost nothing.
int merak::merakcMain(int argc, char **argv) {
  constexpr unsigned kStackBytes = 512u << 20;
#ifdef __GLIBC__
  // Planning frees many small blocks between large ones. Each large one would
  // put the small free ones together again: a third of the time.
  mallopt(M_MXFAST, 0);
#endif
  int code = 70;
  llvm::thread worker(std::optional<unsigned>(kStackBytes), [&] {
    code = finishOutput(compileOrAnswer(argc, argv));
  });
  worker.join();
  return code;
}
