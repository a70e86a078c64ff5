#include "tools/merak-plan/PlanTool.h"

#include "passes/CostModel/PlanCosts.h"
#include "runtime/checkpoint/Gather.h"
#include "runtime/onnx/ExportOnnx.h"
#include "runtime/plan/Print.h"
#include "runtime/plan/Verify.h"
#include "runtime/report/Account.h"
#include "runtime/report/Html.h"
#include "runtime/report/Measured.h"
#include "runtime/report/Simulate.h"
#include "support/OptionChecks.h"
#include "support/OptionErrors.h"
#include "tools/merak-plan/Migrate.h"
#include "tools/merak-plan/Rates.h"
#include "tools/merak-plan/Reshard.h"
#include "tools/merak-plan/Workspace.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <ostream>

namespace merak {

Result<LoadedPlan> loadSound(const std::string &dir) {
  Result<LoadedPlan> plan = loadPlan(dir);
  if (!plan)
    return plan;
  MERAK_RETURN_IF_ERROR(verifyStructure(*plan).withContext(dir));
  MERAK_RETURN_IF_ERROR(verifyMatching(*plan).withContext(dir));
  return plan;
}

Status writeText(const std::string &path, const std::string &text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.flush();
  if (!file)
    return Status::error(fmt::format("{}: cannot be written", path));
  return {};
}

namespace {

constexpr int kOk = 0, kFailed = 1, kUsage = 2, kBug = 70;

struct Options {
  std::string plan, other, output, trace;
  int columns = 100;
  bool detailed = false;
  std::string svg, measured; // measured: a trace to read
  runtime::OnnxExportOptions onnx;
  std::string cluster;            // file; empty: what the plan was compiled for
  std::vector<std::string> parts; // folders to gather from
  ReshardRequest reshard;
  RatesRequest rates;
  MigrateRequest migrate;
};

int fail(std::ostream &err, const Status &status) {
  for (const std::string &message : status.messages())
    err << "error: " << message << "\n";
  return kFailed;
}

Result<costmodel::PlanCosts> costsFor(const LoadedPlan &plan,
                                      const Options &options) {
  if (options.cluster.empty())
    return costmodel::planCosts(plan);
  Result<costmodel::Cluster> cluster = costmodel::readCluster(options.cluster);
  if (!cluster)
    return cluster.status();
  return costmodel::PlanCosts::create(plan, *cluster, options.cluster);
}

int runVerify(const Options &options, std::ostream &out, std::ostream &err) {
  Result<LoadedPlan> plan = loadPlan(options.plan);
  if (!plan)
    return fail(err, plan.status());
  if (Status status = verifyPlan(*plan); !status.ok())
    return fail(err, std::move(status).withContext(options.plan));
  size_t instructions = 0;
  for (const planpb::Program &program : plan->programs)
    for (const planpb::Call &call : program.calls())
      instructions += program.procedures(call.procedure()).instructions_size();
  out << fmt::format("{}: sound: {} ranks, {} programs, {} instructions a "
                     "step\n",
                     options.plan, plan->file.ranks_size(),
                     plan->programs.size(), instructions);
  return kOk;
}

int runPrint(const Options &options, std::ostream &out, std::ostream &err) {
  Result<LoadedPlan> plan = loadPlan(options.plan);
  if (!plan)
    return fail(err, plan.status());
  // A broken plan is printed too, to see what is wrong with it.
  int code = kOk;
  if (Status status = verifyStructure(*plan); !status.ok())
    code = fail(err, std::move(status).withContext(options.plan));
  out << printPlan(*plan) << "\nmemory\n" << memoryTable(*plan);
  return code;
}

int runDiff(const Options &options, std::ostream &out, std::ostream &err) {
  Result<LoadedPlan> a = loadPlan(options.plan);
  Result<LoadedPlan> b = loadPlan(options.other);
  Status status = a.status();
  status.merge(b.status());
  if (!status.ok())
    return fail(err, status);
  std::string text = diffPlans(*a, *b);
  out << text;
  return text.empty() ? kOk : kFailed;
}

struct Prediction {
  LoadedPlan plan;
  report::Simulation simulation;
  std::optional<report::Timeline> measured;
};

// Simulates the plan and reads the trace of a run, if there is one.
Result<Prediction> predict(const Options &options) {
  Result<LoadedPlan> plan = loadSound(options.plan);
  if (!plan)
    return plan.status();
  Result<costmodel::PlanCosts> costs = costsFor(*plan, options);
  if (!costs)
    return costs.status();
  Prediction prediction;
  prediction.plan = std::move(*plan);
  Result<report::Simulation> simulation =
      report::simulate(prediction.plan, *costs, options.detailed);
  if (!simulation)
    return Status(simulation.status()).withContext(options.plan);
  prediction.simulation = std::move(*simulation);
  if (!options.measured.empty()) {
    Result<report::Timeline> measured =
        report::readMeasured(prediction.plan, options.measured);
    if (!measured)
      return measured.status();
    prediction.measured = std::move(*measured);
  }
  return prediction;
}

// What the runtime allocates for all ranks.
std::string allocation(const LoadedPlan &plan) {
  int64_t arenas = 0, working = 0;
  for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
    const planpb::Program &program = plan.programOf(rank);
    arenas += int64_t(program.arena_bytes());
    if (plan.file.device() == "cpu")
      working += workspaceBytes(program);
  }
  return fmt::format("allocated: {} bytes, arenas of all ranks {} and working "
                     "memory {} for one thread each\n",
                     arenas + working, arenas, working);
}

int runSimulate(const Options &options, std::ostream &out, std::ostream &err) {
  Result<Prediction> prediction = predict(options);
  if (!prediction)
    return fail(err, prediction.status());
  out << report::describe(prediction->simulation)
      << allocation(prediction->plan);
  if (options.trace.empty())
    return kOk;
  Status written = writeText(
      options.trace, report::chromeTrace(prediction->simulation.timeline));
  return written.ok() ? kOk : fail(err, written);
}

int runAccount(const Options &options, std::ostream &out, std::ostream &err) {
  Result<LoadedPlan> plan = loadSound(options.plan);
  if (!plan)
    return fail(err, plan.status());
  out << report::describe(report::accountsOf(*plan, CommunicationMap(*plan)));
  return kOk;
}

int runDraw(const Options &options, std::ostream &out, std::ostream &err) {
  Result<Prediction> prediction = predict(options);
  if (!prediction)
    return fail(err, prediction.status());
  const report::Timeline &predicted = prediction->simulation.timeline;
  const report::Timeline timeline =
      prediction->measured ? report::overlay(predicted, *prediction->measured)
                           : predicted;
  if (options.svg.empty()) {
    out << report::drawText(timeline, options.columns);
    return kOk;
  }
  Status written = writeText(options.svg, report::drawSvg(timeline));
  return written.ok() ? kOk : fail(err, written);
}

int runExportOnnx(const Options &options, std::ostream &out,
                  std::ostream &err) {
  Result<LoadedPlan> plan = loadSound(options.plan);
  if (!plan)
    return fail(err, plan.status());
  Result<runtime::OnnxExportSummary> done =
      runtime::exportOnnx(*plan, options.onnx);
  if (!done)
    return fail(err, done.status());
  out << fmt::format("{}: {} trained initializers, {} added, {} as they were",
                     options.onnx.output, done->written, done->added,
                     done->kept);
  out << (done->data.empty() ? "" : "; data in " + done->data) << "\n";
  return kOk;
}

int runGather(const Options &options, std::ostream &out, std::ostream &err) {
  Result<runtime::Gathered> done =
      runtime::gatherCheckpoint(options.parts, options.output);
  if (!done)
    return fail(err, done.status());
  out << fmt::format("{}: step {}, {} shards, {} bytes\n", done->folder,
                     done->step, done->shards, done->bytes);
  return kOk;
}

// What a command that only prints has found.
int tell(const Result<std::string> &text, std::ostream &out,
         std::ostream &err) {
  if (!text)
    return fail(err, text.status());
  out << *text;
  return kOk;
}

int runReport(const Options &options, std::ostream &err) {
  Result<Prediction> prediction = predict(options);
  if (!prediction)
    return fail(err, prediction.status());
  Status written =
      writeText(options.output,
                report::htmlReport(prediction->plan, prediction->simulation,
                                   prediction->measured ? &*prediction->measured
                                                        : nullptr));
  return written.ok() ? kOk : fail(err, written);
}

} // namespace

int planToolMain(int argc, const char *const *argv, std::ostream &out,
                 std::ostream &err) {
  Options options;
  CLI::App app("Looks at compiled plans", "merak-plan");
  tellErrorsAs(app, "merak-plan");
  app.require_subcommand(1);
  auto command = [&](const char *name, const char *what) {
    CLI::App *sub = app.add_subcommand(name, what);
    sub->add_option("plan", options.plan, "plan directory")->required();
    return sub;
  };
  CLI::App *verify = command("verify", "proves that the plan is sound");
  CLI::App *print = command("print", "prints manifest, programs and memory");
  CLI::App *draw = command("draw", "draws the predicted timeline");
  draw->add_option("-o,--svg", options.svg,
                   "SVG file; default: text on the terminal");
  draw->add_option("--columns", options.columns, "width of the text drawing")
      ->check(isFrom(10, 10000));
  CLI::App *diff = command("diff", "compares two plans");
  diff->add_option("other", options.other, "second plan")->required();
  CLI::App *simulate = command("simulate", "predicts the time of a step");
  simulate->add_option("--trace", options.trace, "Chrome trace to write");
  simulate->add_flag("--detailed", options.detailed,
                     "every instruction in the trace, and its bytes");
  CLI::App *account =
      command("account", "counts what ranks hold and send, by purpose");
  CLI::App *page = command("report", "one HTML page about the plan");
  page->add_option("-o,--output", options.output, "HTML file")->required();
  CLI::App *onnx = command("export-onnx",
                           "writes trained weights into the model's ONNX file");
  onnx->add_option("--load", options.onnx.checkpoint,
                   "checkpoint, or a .safetensors file of parameters")
      ->required();
  onnx->add_option("-o,--output", options.onnx.output, "ONNX file to write")
      ->required();
  onnx->add_option("--model", options.onnx.model,
                   "the model (default: where it was when the plan was made)");
  onnx->add_flag("--external-data", options.onnx.external,
                 "weights into OUTPUT.data beside the file");
  CLI::App *gather = app.add_subcommand(
      "gather", "makes a checkpoint whole that hosts wrote in parts");
  gather
      ->add_option("parts", options.parts,
                   "folders of the hosts, or one generation of each")
      ->required();
  gather
      ->add_option("-o,--output", options.output,
                   "folder of checkpoints to write it into")
      ->required();
  CLI::App *reshard = app.add_subcommand(
      "reshard", "shows how values go from stage to stage, or from one layout "
                 "on some devices to another on others");
  addReshardOptions(*reshard, options.reshard);
  CLI::App *rates = app.add_subcommand(
      "rates", "plans around devices that are slow or gone: groups, stages, "
               "layers and microbatches");
  addRatesOptions(*rates, options.rates);
  CLI::App *migrate = app.add_subcommand(
      "migrate", "shows how the state of one plan becomes that of another: "
                 "what stays, what is sent over which links, time and memory");
  addMigrateOptions(*migrate, options.migrate);
  for (CLI::App *sub : {draw, page})
    sub->add_option("--trace", options.measured,
                    "trace of a run (merak-run --trace) to lay beside the "
                    "prediction");
  for (CLI::App *sub : {draw, simulate, page})
    sub->add_option("--cluster", options.cluster,
                    "machine to predict for (default: the one that the plan "
                    "was compiled for)");
  try {
    app.parse(argc, argv);
    if (*verify)
      return runVerify(options, out, err);
    if (*print)
      return runPrint(options, out, err);
    if (*diff)
      return runDiff(options, out, err);
    if (*account)
      return runAccount(options, out, err);
    if (*draw)
      return runDraw(options, out, err);
    if (*onnx)
      return runExportOnnx(options, out, err);
    if (*gather)
      return runGather(options, out, err);
    if (*reshard)
      return tell(reshardReport(options.reshard), out, err);
    if (*rates)
      return tell(ratesReport(options.rates), out, err);
    if (*migrate)
      return tell(migrateReport(options.migrate), out, err);
    if (*page)
      return runReport(options, err);
    return runSimulate(options, out, err);
  } catch (const CLI::ParseError &error) {
    return app.exit(error, out, err) == 0 ? kOk : kUsage;
  } catch (const std::exception &error) {
    err << "internal error: " << error.what() << "\n";
    return kBug;
  }
}

} // namespace merak
