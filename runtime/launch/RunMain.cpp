#include "runtime/launch/RunMain.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/Output.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/CpuShare.h"
#include "runtime/launch/RunLog.h"
#include "runtime/launch/StopTogether.h"
#include "runtime/plan/Verify.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <unistd.h>

namespace merak::runtime {
namespace {

// The first SIGINT or SIGTERM ends the run after its step, so that the
// checkpoint, the trace and the log are whole; a second one kills.
volatile std::sig_atomic_t interrupted = 0;
void onInterrupt(int number) {
  interrupted = number;
  std::signal(number, SIG_DFL);
}

struct RunOptions {
  std::string plan, ranks = "inproc", backend = "cpu";
  DataOptions data;
  std::string shuffle; // "true": of the run's seed
  std::string tokenType = "u16", graphs = "auto", verify = "sampled";
  int64_t steps = 1, saveEvery = 0;
  std::string log, save, load, saveGrads, trace, out, links, modelDir;
  SessionOptions session;
};

void addOptions(CLI::App &app, RunOptions &options,
                const BackendRegistry &backends) {
  std::vector<std::string> names;
  for (const auto &[name, factory] : backends)
    names.push_back(name);
  app.add_option("plan", options.plan, "plan directory, made by merakc")
      ->required();
  app.add_option("--data", options.data.path,
                 "DIR with one <input>.npy for each input, tokens.bin, "
                 "FILE.sqlite with the table samples, DIR of such shards, or "
                 "\"synthetic\"");
  app.add_flag("--shuffle", options.shuffle,
               "each epoch in an order of its own, made of this seed "
               "(default: --seed); without it samples come as they are stored");
  app.add_option("--model-dir", options.modelDir,
                 "where the model's files lie, if not where they were when "
                 "the plan was made");
  app.add_option("--verify", options.verify,
                 "sampled: refuse a model that has changed since the plan was "
                 "made, as far as the hash in the plan tells; full: by all of "
                 "its bytes (merakc --hash=full); off: take what is there")
      ->check(CLI::IsMember({"off", "sampled", "full"}));
  app.add_option("--steps", options.steps, "steps to run")
      ->check(CLI::PositiveNumber);
  app.add_option("--ranks", options.ranks,
                 "inproc: ranks are threads; env: this process is one rank, "
                 "started by mpirun, srun or torchrun")
      ->check(CLI::IsMember({"inproc", "env"}));
  app.add_option("--links", options.links,
                 "communicate as slowly as these links: LATENCY/BANDWIDTH "
                 "(5us/200MB/s), cluster.json, or \"plan\"");
  app.add_option("--backend", options.backend, "device that computes")
      ->check(CLI::IsMember(names));
  app.add_option("--graphs", options.graphs,
                 "auto: a device launches steps after the first as one graph "
                 "where it can; off: one instruction after the other")
      ->check(CLI::IsMember({"auto", "off"}));
  app.add_option("--log", options.log, "one JSON object a step");
  app.add_option("--save", options.save, "checkpoint folder to write");
  app.add_option("--save-every", options.saveEvery,
                 "also write it after every N steps")
      ->check(CLI::PositiveNumber);
  app.add_option("--load", options.load,
                 "checkpoint folder, or .safetensors file with parameters");
  app.add_option("--save-grads", options.saveGrads,
                 "gradients of the step as .safetensors (with --steps=1)");
  app.add_option("--trace", options.trace, "timeline in Chrome's format");
  app.add_option("--out", options.out, "infer: folder for <output>.npy");
  app.add_flag("--check-numerics", options.session.checkNumerics,
               "stop at the first value that is nan or inf and name it");
  app.add_option("--threads", options.session.threads,
                 "threads of each rank (default: the cores, shared)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--seed", options.session.seed,
                 "of synthetic data and random operations");
  app.add_option("--token-dtype", options.tokenType, "of tokens.bin")
      ->check(CLI::IsMember({"u16", "u32"}));
  app.add_option("--label-shift", options.data.labelShift,
                 "tokens.bin: labels are the tokens shifted by N; 0 for models "
                 "that shift them themselves")
      ->check(CLI::NonNegativeNumber);
}

// What the options mean together.
std::string usageProblem(const RunOptions &options) {
  if (options.saveEvery > 0 && options.save.empty())
    return "--save-every needs --save";
  if (!options.saveGrads.empty() && options.steps != 1)
    return "--save-grads needs --steps=1";
  if (!options.links.empty() && options.ranks != "inproc")
    return "--links needs --ranks=inproc";
  return {};
}

// --shuffle[=SEED]
Status readShuffle(RunOptions &options) {
  if (options.shuffle.empty() || options.shuffle == "false")
    return {};
  options.data.shuffle = options.session.seed;
  if (options.shuffle == "true")
    return {};
  uint64_t seed = 0;
  const char *end = options.shuffle.data() + options.shuffle.size();
  const auto read = std::from_chars(options.shuffle.data(), end, seed);
  if (read.ec != std::errc() || read.ptr != end)
    return Status::error(
        fmt::format("--shuffle: expected a number of 64 bits, found \"{}\"",
                    options.shuffle));
  options.data.shuffle = seed;
  return {};
}

SourceCheck sourceCheck(const std::string &name) {
  return name == "off"    ? SourceCheck::Off
         : name == "full" ? SourceCheck::Full
                          : SourceCheck::Sampled;
}

// MERAK_FAULT=RANK:STEP:fail|hang|kill, for tests of what a lost rank does.
Status readEnvironment(SessionOptions &session) {
  if (const char *text = std::getenv("MERAK_WATCHDOG_SECONDS")) {
    char *end = nullptr;
    session.watchdogSeconds = std::strtod(text, &end);
    if (end == text || *end || session.watchdogSeconds < 0)
      return Status::error(fmt::format(
          "MERAK_WATCHDOG_SECONDS: expected a number, found \"{}\"", text));
  }
  if (const char *text = std::getenv("MERAK_FAULT")) {
    long long rank = 0, step = 0;
    char kind[8] = {};
    if (std::sscanf(text, "%lld:%lld:%7s", &rank, &step, kind) != 3 ||
        (std::strcmp(kind, "fail") && std::strcmp(kind, "hang") &&
         std::strcmp(kind, "kill")))
      return Status::error(fmt::format(
          "MERAK_FAULT: expected RANK:STEP:fail, hang or kill, found \"{}\"",
          text));
    session.fault = {static_cast<int>(rank), step - 1,
                     std::strcmp(kind, "hang") == 0,
                     std::strcmp(kind, "kill") == 0};
  }
  return {};
}

// Outputs of an inference plan, steps after each other on the first axis.
class OutputFiles {
public:
  Status add(const std::map<std::string, GlobalOutput> &step) {
    for (const auto &[name, output] : step) {
      GlobalOutput &all = outputs_[name];
      const bool first = all.data.empty();
      all.dtype = output.dtype;
      if (output.shape.empty())
        all.shape = {first ? 1 : all.shape[0] + 1};
      else if (first)
        all.shape = output.shape;
      else
        all.shape[0] += output.shape[0];
      all.data.insert(all.data.end(), output.data.begin(), output.data.end());
    }
    return {};
  }
  Status write(const std::string &dir) const {
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error)
      return Status::error(
          fmt::format("cannot write \"{}\": {}", dir, error.message()));
    Status problems;
    for (const auto &[name, output] : outputs_) {
      problems.merge(writeNpy(dir + "/" + inputFileName(name) + ".npy",
                              output.dtype, output.shape, output.data.data()));
    }
    return problems;
  }

private:
  std::map<std::string, GlobalOutput> outputs_;
};

// Output that cannot be written is better known before the first step.
Status checkWritable(const std::string &path) {
  if (path.empty())
    return {};
  std::filesystem::path file(path);
  if (!file.has_filename()) // "out/"
    file = file.parent_path();
  std::filesystem::path folder = file.parent_path();
  if (folder.empty())
    folder = ".";
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return Status::error(fmt::format("cannot write \"{}\": \"{}\" is no folder",
                                     path, folder.string()));
  if (access(folder.c_str(), W_OK) != 0)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  return {};
}

// Two outputs that --out would write to one file.
Status checkOutputNames(const LoadedPlan &plan) {
  std::map<std::string, std::set<std::string>> byFile;
  for (const planpb::Program &program : plan.programs)
    for (const planpb::Output &output : program.outputs())
      byFile[inputFileName(output.name())].insert(output.name());
  Status problems;
  for (const auto &[file, names] : byFile)
    if (names.size() > 1)
      problems.merge(Status::error(
          fmt::format("--out: outputs \"{}\" have one file, \"{}.npy\"",
                      fmt::join(names, "\" and \""), file)));
  return problems;
}

// What can be known before anything is made. Rank 0 writes all but shards of
// checkpoints.
Status checkOptions(const RunOptions &options, const LoadedPlan &plan,
                    bool leads) {
  Status problems;
  if (!plan.file.device().empty() && plan.file.device() != options.backend)
    problems.merge(Status::error(
        fmt::format("\"{}\" is a plan for {}, the backend is {}", options.plan,
                    plan.file.device(), options.backend)));
  const bool infer = plan.file.mode() == "infer";
  if (infer && !(options.save.empty() && options.saveGrads.empty()))
    problems.merge(Status::error(
        fmt::format("\"{}\" does not train: nothing to save", options.plan)));
  if (!infer && !options.out.empty())
    problems.merge(Status::error(
        fmt::format("\"{}\" trains: --out is for inference", options.plan)));
  if (!options.out.empty())
    problems.merge(checkOutputNames(plan));
  if (plan.file.inputs_size() > 0 && options.data.path.empty())
    problems.merge(Status::error("the plan has inputs: give --data"));
  problems.merge(checkWritable(options.save));
  if (leads)
    for (const std::string &path :
         {options.log, options.saveGrads, options.trace, options.out})
      problems.merge(checkWritable(path));
  return problems;
}

Result<LoadedPlan> openPlan(RunOptions &options,
                            const ClusterLinks &clusterLinks, World *world) {
  auto plan = loadPlan(options.plan);
  if (!plan)
    return plan.status();
  MERAK_RETURN_IF_ERROR(verifyPlan(*plan).withContext(options.plan));
  if (!options.modelDir.empty())
    plan->file.set_model_dir(options.modelDir);
  Status problems = checkOptions(options, *plan, !world || world->leads());
  if (world && world->size() != plan->file.ranks_size())
    problems.merge(Status::error(
        fmt::format("\"{}\" is a plan for {} ranks, {} {} started",
                    options.plan, plan->file.ranks_size(), world->size(),
                    world->size() == 1 ? "was" : "were")));
  if (!options.links.empty()) {
    auto links = linksOf(options.links, plan->file.cluster(), clusterLinks);
    if (links)
      options.session.links = *links;
    problems.merge(links.status());
  }
  if (!problems.ok())
    return problems;
  return plan;
}

Status openRun(Session &session, const RunOptions &options, std::string &note) {
  if (!options.data.path.empty()) {
    auto data = openData(session.plan().file, options.data);
    if (!data)
      return data.status();
    session.setData(std::move(*data));
  }
  return session.loadWeights(options.load, &note);
}

// `early`: why the run ended before its last step, if it did.
Status run(RunOptions &options, const BackendFactory &factory,
           const ClusterLinks &clusterLinks, World *world, std::string &early) {
  Store *store = world ? world->store() : nullptr;
  const bool leads = !world || world->leads();
  auto plan = openPlan(options, clusterLinks, world);
  MERAK_RETURN_IF_ERROR(agree(store, "plan", plan.status()));
  auto session =
      Session::create(std::move(*plan), factory, options.session, world);
  MERAK_RETURN_IF_ERROR(agree(store, "session", session.status()));
  std::string note;
  MERAK_RETURN_IF_ERROR(
      agree(store, "weights", openRun(**session, options, note)));
  if (!note.empty() && leads)
    complain("note: " + note);
  const int64_t last = (*session)->stepsDone() + options.steps;
  auto log =
      RunLog::open(leads ? options.log : "", (*session)->plan().file, last);
  if (!log)
    return log.status();
  OutputFiles outputs;
  std::signal(SIGINT, onInterrupt);
  std::signal(SIGTERM, onInterrupt);
  StopTogether together(store);
  for (int64_t i = 0; i < options.steps; ++i) {
    auto another = together.mayBegin(interrupted);
    if (!another)
      return another.status();
    if (!*another)
      break;
    auto step = (*session)->step();
    if (!step) {
      if (!options.trace.empty()) // what happened until then helps
        (void)(*session)->writeTrace(options.trace);
      return step.status();
    }
    if (leads)
      MERAK_RETURN_IF_ERROR(log->add(*step));
    if (i == 1 && leads && !(*session)->graphNote().empty())
      complain("note: " + (*session)->graphNote());
    if (!options.out.empty()) {
      auto values = (*session)->globalOutputs();
      if (!values)
        return values.status();
      if (leads)
        MERAK_RETURN_IF_ERROR(outputs.add(*values));
    }
    if (options.saveEvery > 0 && step->step % options.saveEvery == 0 &&
        step->step != last)
      MERAK_RETURN_IF_ERROR((*session)->save(options.save));
  }
  Status problems;
  if (const std::string summary = log->summary(); leads && !summary.empty())
    problems.merge(printLine(summary));
  if (!options.out.empty() && leads)
    problems.merge(outputs.write(options.out));
  if (!options.save.empty())
    problems.merge((*session)->save(options.save));
  if (!options.saveGrads.empty())
    problems.merge((*session)->saveGradients(options.saveGrads));
  if (!options.trace.empty())
    problems.merge((*session)->writeTrace(options.trace));
  if (const std::string cause = together.cause();
      !cause.empty() && (*session)->stepsDone() < last)
    early = fmt::format("stopped by {} after step {} of {}{}", cause,
                        (*session)->stepsDone(), last,
                        options.save.empty()
                            ? ""
                            : fmt::format(", saved in \"{}\"", options.save));
  return problems;
}

constexpr const char *kTool = "merak-run";

// One rank of a run of several processes.
int runAsRank(RunOptions &options, const BackendFactory &factory,
              const ClusterLinks &clusterLinks, const WorldRegistry &worlds) {
  return asRank(kTool, options.backend, worlds,
                [&](World &world, std::string &early) -> Status {
                  if (!options.session.threads) {
                    auto share = cpuShare(*world.store());
                    if (!share)
                      return share.status();
                    options.session.threads = *share;
                  }
                  return run(options, factory, clusterLinks, &world, early);
                });
}

} // namespace

int runMain(int argc, char **argv, const BackendRegistry &backends,
            const ClusterLinks &clusterLinks, const WorldRegistry &worlds) {
  CLI::App app("Runs a plan: trains, or infers, on ranks of this machine.",
               "merak-run");
  RunOptions options;
  addOptions(app, options, backends);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const std::string problem = usageProblem(options); !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  if (const Status status = readShuffle(options); !status.ok()) {
    complain(fmt::format("merak-run: error: {}", status.str()));
    return 2;
  }
  options.data.tokenBytes = options.tokenType == "u32" ? 4 : 2;
  options.data.seed = options.session.seed;
  options.session.trace = !options.trace.empty();
  options.session.graphs = options.graphs == "auto";
  options.session.verify = sourceCheck(options.verify);
  const BackendFactory &factory = backends.at(options.backend);
  if (Status status = readEnvironment(options.session); !status.ok())
    return exitCode(kTool, status);
  if (options.ranks == "env")
    return runAsRank(options, factory, clusterLinks, worlds);
  std::string early;
  Status status = run(options, factory, clusterLinks, nullptr, early);
  if (!early.empty())
    status.merge(Status::error(early));
  return exitCode(kTool, status);
}

} // namespace merak::runtime
