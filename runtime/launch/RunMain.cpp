#include "runtime/launch/RunMain.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/Output.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/AgentOptions.h"
#include "runtime/launch/ChildProcess.h"
#include "runtime/launch/CompilerProcess.h"
#include "runtime/launch/CpuShare.h"
#include "runtime/launch/IdleProbe.h"
#include "runtime/launch/Replan.h"
#include "runtime/launch/Resume.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunLog.h"
#include "runtime/launch/SaveOptions.h"
#include "runtime/launch/StopTogether.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <unistd.h>

namespace merak::runtime {
namespace {

#if defined(__SANITIZE_ADDRESS__)
// In one allocation a kernel that reads beyond its buffer reads another one.
constexpr const char *kArena = "separate";
#else
constexpr const char *kArena = "packed";
#endif

struct RunOptions {
  std::string plan, ranks = "inproc", backend = "cpu";
  DataOptions data;
  std::string shuffle; // "true": of the run's seed
  std::string lossScale;
  std::string tokenType = "u16", graphs = "auto", verify = "sampled";
  std::string arena = kArena;
  bool trustPlan = false;
  int64_t steps = 1;
  std::string log, saveGrads, trace, out, links, modelDir, status;
  CheckpointOptions checkpoint;
  SessionOptions session;
  ReplanOptions replan;
  AgentOptions agent;
  RunCopiesOptions copies;
  int beat = -1; // see beatDescriptor
};

// What the tool's main knows of costs.
struct Costs {
  ExpectedSeconds expected;
  PlanPrices prices;
};

void addOptions(CLI::App &app, RunOptions &options,
                const BackendRegistry &backends) {
  std::vector<std::string> names;
  for (const auto &[name, factory] : backends)
    names.push_back(name);
  auto *status = app.add_option(
      "--status", options.status,
      "print what the log of a run (--log, --rates) says of it by now, and no "
      "more");
  app.add_option("plan", options.plan, "plan directory, made by merakc")
      ->excludes(status);
  app.add_flag("--trust-plan", options.trustPlan,
               "run the plan's kernels, which are machine code, although this "
               "user's merakc did not make them");
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
  app.add_option(
         "--arena", options.arena,
         "packed: buffers lie where the plan says; separate: each in an "
         "allocation of its own, and an instruction that writes beyond "
         "one is named (slow)")
      ->check(CLI::IsMember({"packed", "separate"}));
  app.add_option("--log", options.log, "one JSON object a step");
  app.add_option("--rates", options.session.rateEvery,
                 "every so many steps: how many times as long as it should "
                 "each rank takes, in the log, and who is slow (0: never)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--replan", options.replan.mode,
                 "when devices get slower or faster: suggest a plan that is "
                 "faster then, or auto: go on with it between two steps; off")
      ->check(CLI::IsMember({"off", "suggest", "auto"}))
      ->capture_default_str();
  app.add_option("--plans", options.replan.plans,
                 "with --replan: DIR of plans to choose from (default: merakc "
                 "makes them, in PLAN's name with the ending .plans); with "
                 "--hosts: of plans for fewer ranks");
  app.add_option("--compiler", options.replan.compiler,
                 "with --replan: the merakc that makes plans (default: the one "
                 "beside this program)");
  addAgentOptions(app, options.agent);
  addCopyOptions(app, options.copies);
  addCheckpointOptions(app, options.checkpoint, options.session);
  app.add_option("--save-grads", options.saveGrads,
                 "gradients of the step as .safetensors (with --steps=1)");
  app.add_option("--trace", options.trace, "timeline in Chrome's format");
  app.add_option("--out", options.out, "infer: folder for <output>.npy");
  app.add_option("--loss-scale", options.lossScale,
                 "of plans compiled with --precision=fp16: a factor, or auto "
                 "(default), which halves it after gradients that are not "
                 "finite and doubles it after 2000 steps; "
                 "auto:start=65536,every=2000,least=1,most=16777216");
  app.add_flag("--check-numerics", options.session.checkNumerics,
               "stop at the first value that is nan or inf and name it");
  app.add_option("--threads", options.session.threads,
                 "threads of each rank (default: the cores, shared)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--seed", options.checkpoint.seed,
                 "of synthetic data and random operations (default: 0, or that "
                 "of --load)");
  app.add_option("--token-dtype", options.tokenType, "of tokens.bin")
      ->check(CLI::IsMember({"u16", "u32"}));
  app.add_option("--label-shift", options.data.labelShift,
                 "tokens.bin: labels are the tokens shifted by N; 0 for models "
                 "that shift them themselves")
      ->check(CLI::NonNegativeNumber);
}

// What the options mean together.
std::string usageProblem(const RunOptions &options) {
  if (const std::string problem = usageProblem(options.checkpoint);
      !problem.empty())
    return problem;
  if (const std::string problem =
          usageProblem(options.copies, options.agent.restarts);
      !problem.empty())
    return problem;
  if (!options.saveGrads.empty() && options.steps != 1)
    return "--save-grads needs --steps=1";
  if (!options.links.empty() && options.ranks != "inproc")
    return "--links needs --ranks=inproc";
  const ReplanOptions &replan = options.replan;
  if (!replan.isOn() && !replan.compiler.empty())
    return "--compiler is for --replan";
  if (!replan.isOn() && !replan.plans.empty() && options.agent.hosts.empty())
    return "--plans is for --replan and --hosts";
  if (!replan.plans.empty() && !replan.compiler.empty())
    return "--plans chooses from plans that are there, --compiler makes them";
  if (options.plan.empty() && options.status.empty() &&
      options.copies.remove.empty() && options.copies.pass.empty())
    return "a plan is required";
  return {};
}

Status readLossScale(RunOptions &options) {
  if (options.lossScale.empty())
    return {};
  auto scale = LossScaleOptions::parse(options.lossScale);
  if (!scale)
    return scale.status();
  options.session.lossScale = *scale;
  return {};
}

// --shuffle[=SEED]
Status readShuffle(RunOptions &options) {
  if (options.shuffle.empty() || options.shuffle == "false")
    return {};
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

Status readSeconds(const char *name, double &seconds) {
  const char *text = std::getenv(name);
  if (!text)
    return {};
  char *end = nullptr;
  seconds = std::strtod(text, &end);
  if (end == text || *end || seconds < 0)
    return Status::error(
        fmt::format("{}: expected a number, found \"{}\"", name, text));
  return {};
}

// MERAK_FAULT=RANK:STEP:fail|hang|kill, for tests of what a lost rank does: in
// builds with tests alone.
Status readEnvironment(SessionOptions &session, AgentOptions &agent) {
  MERAK_RETURN_IF_ERROR(
      readSeconds("MERAK_WATCHDOG_SECONDS", session.watchdogSeconds));
  MERAK_RETURN_IF_ERROR(readSeconds("MERAK_LOOK_SECONDS", agent.lookSeconds));
  agent.silenceSeconds = session.watchdogSeconds;
#ifdef MERAK_TEST_FAULTS
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
  // MERAK_PACE=FACTOR
  if (const char *text = std::getenv("MERAK_PACE")) {
    char *end = nullptr;
    session.pace = std::strtod(text, &end);
    if (*end || !(session.pace > 0))
      return Status::error(fmt::format(
          "MERAK_PACE: expected a number above 0, found \"{}\"", text));
  }
  // MERAK_SLOW=DEVICE:FACTOR:FROM:TO[,...]
  if (const char *text = std::getenv("MERAK_SLOW")) {
    long long device = 0, from = 0, to = 0;
    double factor = 1;
    int length = 0;
    for (const char *at = text; *at; at += length + (at[length] == ',')) {
      if (std::sscanf(at, "%lld:%lf:%lld:%lld%n", &device, &factor, &from, &to,
                      &length) != 4 ||
          (at[length] && at[length] != ','))
        return Status::error(fmt::format(
            "MERAK_SLOW: expected DEVICE:FACTOR:FROM:TO, found \"{}\"", at));
      session.slow.push_back({int(device), factor, from - 1, to});
    }
  }
#endif
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
                    const Costs &costs, bool leads) {
  Status problems;
  if (!plan.file.device().empty() && plan.file.device() != options.backend)
    problems.merge(Status::error(
        fmt::format("\"{}\" is a plan for {}, the backend is {}", options.plan,
                    plan.file.device(), options.backend)));
  const bool infer = plan.file.mode() == "infer";
  if (infer &&
      !(options.checkpoint.save.dir.empty() && options.saveGrads.empty()))
    problems.merge(Status::error(
        fmt::format("\"{}\" does not train: nothing to save", options.plan)));
  if (!infer && !options.out.empty())
    problems.merge(Status::error(
        fmt::format("\"{}\" trains: --out is for inference", options.plan)));
  if (!options.out.empty())
    problems.merge(checkOutputNames(plan));
  if (plan.file.inputs_size() > 0 && options.data.path.empty())
    problems.merge(Status::error("the plan has inputs: give --data"));
  if (options.replan.isOn() && !costs.prices.stepSeconds)
    problems.merge(Status::error("--replan: this program has no cost model"));
  if (infer && options.replan.isOn())
    problems.merge(Status::error(fmt::format(
        "\"{}\" does not train: --replan is for training", options.plan)));
  if (options.replan.mode == "auto" && plan.file.device() == "cuda")
    problems.merge(Status::error("--replan=auto needs ranks of CPUs: state "
                                 "moves between memories of hosts so far"));
  if (options.replan.mode == "auto" && options.session.separateArena)
    problems.merge(Status::error("--replan=auto needs --arena=packed"));
  problems.merge(checkAgainst(options.session, plan.file));
  if (!options.lossScale.empty() && !scalesLoss(plan))
    problems.merge(Status::error(
        fmt::format("--loss-scale: \"{}\" scales no loss; plans that are "
                    "compiled for training with --precision=fp16 do",
                    options.plan)));
  problems.merge(checkWritable(options.checkpoint.save.dir));
  if (leads)
    for (const std::string &path :
         {options.log, options.saveGrads, options.trace, options.out})
      problems.merge(checkWritable(path));
  return problems;
}

Result<LoadedPlan> openPlan(RunOptions &options,
                            const ClusterLinks &clusterLinks,
                            const Costs &costs, World *world) {
  auto plan = loadPlanToRun(options.plan, options.trustPlan);
  if (!plan)
    return plan.status();
  MERAK_RETURN_IF_ERROR(verifyPlan(*plan).withContext(options.plan));
  if (!options.modelDir.empty())
    plan->file.set_model_dir(options.modelDir);
  Status problems =
      checkOptions(options, *plan, costs, !world || world->leads());
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
  auto seed =
      seedToUse(options.checkpoint.load, options.checkpoint.seed,
                options.checkpoint.force || plan->file.mode() != "train");
  problems.merge(seed.status());
  if (seed)
    options.session.seed = options.data.seed = *seed;
  if (seed && options.shuffle == "true")
    options.data.shuffle = *seed;
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
  return session.loadWeights(options.checkpoint.load, &note,
                             options.checkpoint.force);
}

void tellNote(const std::string &note, bool leads) {
  if (!note.empty() && leads)
    complain("note: " + note);
}

SaveOptions saveOptions(const RunOptions &options) {
  SaveOptions save = options.checkpoint.save;
  save.anyValues = options.session.onNonFinite == OnNonFinite::ignore;
  return save;
}

// The steps of a run, and what is written between them.
class Steps {
public:
  // `session` is another one after the plan was changed.
  Steps(std::unique_ptr<Session> &session, const RunOptions &options,
        const Costs &costs, const BackendFactory &factory, World *world,
        RunCopies *copies)
      : session_(session), options_(options), costs_(costs), factory_(factory),
        world_(world), copies_(copies), leads_(!world || world->leads()),
        store_(world ? world->store() : nullptr), together_(store_),
        before_(session->stepsDone()), last_(before_ + options.steps) {
    if (options.session.rateEvery > 0)
      keepRates(planned());
    if (options.replan.isOn() && leads_)
      replanner_ = makeReplanner();
  }

  Status run() {
    const bool trains = session_->plan().file.mode() == "train";
    auto log = RunLog::open(leads_ ? options_.log : "", session_->plan().file,
                            last_, trains ? before_ : 0);
    if (!log)
      return log.status();
    if (copies_)
      MERAK_RETURN_IF_ERROR(tellStart(*log));
    if (!options_.trace.empty())
      MERAK_RETURN_IF_ERROR(session_->openTrace(options_.trace));
    listenToSignals();
    for (int64_t i = 0; i < options_.steps; ++i) {
      auto turn = together_.next(wishes());
      if (!turn)
        return turn.status();
      if (turn->look > 0)
        return session_->explain(turn->look, bad_);
      if (turn->save && saves())
        MERAK_RETURN_IF_ERROR(save());
      if (!turn->step)
        break;
      MERAK_RETURN_IF_ERROR(step(*log, i));
    }
    MERAK_RETURN_IF_ERROR(learnLast());
    if (badStep_ > 0)
      return session_->explain(badStep_, bad_);
    if (const std::string summary = log->summary(); leads_ && !summary.empty())
      MERAK_RETURN_IF_ERROR(printLine(summary));
    return copies_ ? endCopies() : Status();
  }

  Status finish() {
    Status problems;
    if (!options_.out.empty() && leads_)
      problems.merge(outputs_.write(options_.out));
    if (saves())
      problems.merge(session_->save());
    if (!options_.saveGrads.empty())
      problems.merge(session_->saveGradients(options_.saveGrads));
    problems.merge(session_->closeTrace());
    return problems;
  }

  // Why the run ended before its last step, if it did.
  std::string early() const {
    const std::string cause = together_.cause();
    if (cause.empty() || session_->stepsDone() == last_)
      return {};
    return fmt::format(
        "stopped by {} after step {} of {}{}", cause, session_->stepsDone(),
        last_,
        saves() ? fmt::format(", saved in \"{}\"", options_.checkpoint.save.dir)
                : "");
  }

private:
  // After the last step no other one tells what rank 0's process knows of it.
  Status learnLast() {
    if (!store_)
      return {};
    auto all =
        store_->gather("last step", std::to_string(badStep_), kPatienceSeconds);
    if (!all)
      return all.status();
    badStep_ = std::stoll(all->front());
    return {};
  }

  Status tellStart(RunLog &log) {
    tellNews();
    const auto entry = copies_->restartEntry(before_);
    return entry.is_null() ? Status() : log.tell(entry.dump());
  }
  void tellNews() {
    for (const std::string &line : copies_->news())
      tellNote(line, leads_);
  }
  Status endCopies() {
    if (session_->stepsDone() < last_ && !saves())
      MERAK_RETURN_IF_ERROR(copies_->last(*session_));
    const std::string summary = copies_->summary();
    tellNews();
    return leads_ && !summary.empty() ? printLine(summary) : Status();
  }

  bool saves() const { return session_->saves(); }
  Status save() { return session_->save(!options_.checkpoint.wait); }
  Wish wishes() const {
    Wish wish = takeSignals();
    if (saves() && session_->saves()->failed())
      wish.merge({false, "a checkpoint that could not be written"});
    if (badStep_ > 0)
      wish.look = badStep_;
    return wish;
  }

  Status step(RunLog &log, int64_t i) {
    auto step = session_->step();
    if (!step) {
      (void)session_->closeTrace(); // what happened until then helps
      return step.status();
    }
    if (!step->computed.empty())
      MERAK_RETURN_IF_ERROR(rate(*step));
    if (leads_)
      MERAK_RETURN_IF_ERROR(log.add(*step));
    beat(options_.beat, step->step == last_);
    if (i == 0)
      tellNote(session_->communicationNote(), leads_);
    if (i == 1)
      tellNote(session_->graphNote(), leads_);
    if (badStep_ == 0 && !step->bad.empty()) {
      badStep_ = step->step;
      bad_ = step->bad;
    }
    if (!options_.out.empty()) {
      auto values = session_->globalOutputs();
      if (!values)
        return values.status();
      if (leads_)
        MERAK_RETURN_IF_ERROR(outputs_.add(*values));
    }
    if (options_.replan.isOn())
      MERAK_RETURN_IF_ERROR(replan(*step, log));
    const int64_t every = options_.checkpoint.saveEvery;
    const bool due =
        every > 0 && step->step % every == 0 && step->step != last_;
    const bool others = badStep_ == 0 || store_; // do it, too
    if (due && others)
      MERAK_RETURN_IF_ERROR(save());
    if (copies_ && others && step->step != last_)
      MERAK_RETURN_IF_ERROR(copies_->after(step->step, *session_));
    if (copies_)
      tellNews();
    return {};
  }

  void keepRates(const rates::Known &known) {
    if (options_.replan.isOn() && !probe_)
      probe_.emplace(options_.session.slow);
    rates_.emplace(session_->plan(), costs_.expected, store_, known,
                   [this](int device, int64_t step) {
                     return probe_ ? probe_->rate(device, step) : 1;
                   });
  }

  // What the plan's ranks were slowed down by when it was compiled.
  rates::Known planned() const {
    rates::Known known;
    if (!options_.replan.isOn())
      return known;
    const planpb::PlanFile &plan = session_->plan().file;
    known.devices.resize(deviceCount(plan));
    auto situation = plannedFor(plan, known.devices.size());
    for (size_t d = 0; situation && d < known.devices.size(); ++d)
      known.devices[d] = rates::deviceOf((*situation)[d]);
    return known;
  }

  std::unique_ptr<Replanner> makeReplanner() {
    const ReplanOptions &replan = options_.replan;
    std::string folder = replan.plans, compiler;
    if (folder.empty()) {
      folder = std::filesystem::path(options_.plan + "/.")
                   .lexically_normal()
                   .parent_path()
                   .replace_extension(".plans");
      compiler = replan.compiler.empty() ? defaultCompiler() : replan.compiler;
    }
    Replanner::MakeSession make;
    if (!store_)
      make = [this](LoadedPlan plan, Succession succession) {
        return makeNext(std::move(plan), succession);
      };
    return std::make_unique<Replanner>(
        replan,
        PlanPool(options_.plan, session_->plan(), folder, compiler,
                 options_.trustPlan, costs_.prices),
        std::move(make));
  }

  // In one process while the session before trains.
  Result<std::unique_ptr<Session>> makeNext(LoadedPlan plan,
                                            Succession succession) {
    SessionOptions options = options_.session;
    options.succession = succession;
    auto session = Session::create(std::move(plan), factory_, options, world_);
    if (!session || options_.data.path.empty())
      return session;
    auto data = openData((*session)->plan().file, options_.data);
    if (!data)
      return data.status();
    (*session)->setData(std::move(*data));
    return session;
  }

  Status replan(const StepResult &step, RunLog &log) {
    std::unique_ptr<Session> next;
    if (replanner_ && badStep_ == 0) {
      auto news = replanner_->after(step, last_ - step.step, *session_);
      if (!news)
        return news.status();
      MERAK_RETURN_IF_ERROR(tell(*news, log));
      next = std::move(news->session);
    }
    if (store_ && !step.computed.empty()) {
      auto all =
          store_->gather(fmt::format("plan/{}", step.step),
                         replanner_ ? replanner_->announced() : std::string(),
                         kPatienceSeconds);
      if (!all)
        return all.status();
      if (!all->front().empty())
        MERAK_RETURN_IF_ERROR(switchTogether(all->front(), step, log, next));
    }
    if (!next)
      return {};
    if (saves())
      MERAK_RETURN_IF_ERROR(next->takeSaves(*session_, saveOptions(options_)));
    bool tooLittle = false;
    if (copies_)
      MERAK_RETURN_IF_ERROR(
          copies_->keep(*next, options_.session, world_, tooLittle));
    session_ = std::move(next);
    keepRates(rates::Known(rates_->known()));
    return {};
  }

  Status tell(const ReplanNews &news, RunLog &log) {
    for (const std::string &line : news.notes)
      tellNote(line, leads_);
    for (const auto &entry : news.entries)
      MERAK_RETURN_IF_ERROR(log.tell(entry.dump()));
    return {};
  }

  // All processes: to a plan that all can read, else the old one stays. Nothing
  // is made beside the training, since processes make sessions in step.
  Status switchTogether(const std::string &path, const StepResult &step,
                        RunLog &log, std::unique_ptr<Session> &next) {
    const auto begin = std::chrono::steady_clock::now();
    ReplanNews news;
    auto plan = loadNext(path, options_.trustPlan, costs_.prices);
    Status readable = plan.status();
    std::optional<migration::Migration> migration;
    if (plan) {
      plan->file.set_model_dir(session_->plan().file.model_dir());
      auto moves = migration::planMigration(session_->plan(), *plan);
      readable = moves.status();
      if (moves)
        migration = std::move(*moves);
    }
    readable = agree(store_, "next plan", readable);
    if (!readable.ok()) {
      if (replanner_)
        replanner_->kept(step, readable, news);
      return tell(news, log);
    }
    auto session = makeNext(std::move(*plan), {session_.get(), &*migration});
    MERAK_RETURN_IF_ERROR(agree(store_, "next session", session.status()));
    MERAK_RETURN_IF_ERROR(
        (*session)->takeState(*session_, *migration).status());
    next = std::move(*session);
    if (replanner_)
      replanner_->switched(step,
                           std::chrono::duration<double>(
                               std::chrono::steady_clock::now() - begin)
                               .count(),
                           news);
    return tell(news, log);
  }

  Status rate(StepResult &step) {
    auto news = rates_->add(step);
    if (!news)
      return news.status();
    for (const std::string &line : *news)
      tellNote(line, leads_);
    return {};
  }

  std::unique_ptr<Session> &session_;
  const RunOptions &options_;
  const Costs &costs_;
  const BackendFactory &factory_;
  World *world_;
  RunCopies *copies_; // null: none are kept
  bool leads_;
  Store *store_;
  StopTogether together_;
  std::optional<RateKeeper> rates_;      // with --rates
  std::optional<IdleProbe> probe_;       // with --replan
  std::unique_ptr<Replanner> replanner_; // with --replan
  OutputFiles outputs_;
  int64_t before_, last_; // steps
  int64_t badStep_ = 0;   // that is not finite, and stops the run; 0: none
  std::string bad_;
};

Status train(std::unique_ptr<Session> &session, const RunOptions &options,
             const Costs &costs, const BackendFactory &factory, World *world,
             RunCopies *copies, std::string &early) {
  if (!options.checkpoint.save.dir.empty()) {
    MERAK_RETURN_IF_ERROR(session->openSaves(saveOptions(options)));
    tellNote(session->saves()->note(), !world || world->leads());
  }
  Steps steps(session, options, costs, factory, world, copies);
  MERAK_RETURN_IF_ERROR(steps.run());
  Status problems = steps.finish();
  early = steps.early();
  return problems;
}

// How a run ended that has no error, or which code stands for its error.
struct RunEnd {
  std::string early; // why it ended before its last step, if it did
  int failureCode = kFailed;
};

Status run(RunOptions &options, const BackendFactory &factory,
           const ClusterLinks &clusterLinks, const Costs &costs, World *world,
           RunEnd &end) {
  Store *store = world ? world->store() : nullptr;
  const bool leads = !world || world->leads();
  std::unique_ptr<RunCopies> copies;
  if (options.copies.copies.hosts > 0) {
    auto opened = RunCopies::open(options.copies, store,
                                  options.checkpoint.load, options.steps);
    MERAK_RETURN_IF_ERROR(agree(store, "copies", opened.status()));
    copies = std::move(*opened);
  }
  auto plan = openPlan(options, clusterLinks, costs, world);
  MERAK_RETURN_IF_ERROR(agree(store, "plan", plan.status()));
  if (options.replan.isOn())
    MERAK_RETURN_IF_ERROR(makeHealthy(*plan, costs.prices));
  auto session =
      Session::create(std::move(*plan), factory, options.session, world);
  MERAK_RETURN_IF_ERROR(agree(store, "session", session.status()));
  if (copies)
    MERAK_RETURN_IF_ERROR(copies->fetch(**session, world));
  std::string note;
  MERAK_RETURN_IF_ERROR(
      agree(store, "weights", openRun(**session, options, note)));
  if (!options.checkpoint.load.empty())
    MERAK_RETURN_IF_ERROR(
        sameGeneration(store, options.checkpoint.load, (*session)->loaded()));
  tellNote(note, leads);
  if (copies) {
    for (const std::string &line : copies->notes((*session)->stepsDone()))
      tellNote(line, leads);
    bool tooLittle = false;
    const Status kept =
        copies->keep(**session, options.session, world, tooLittle);
    if (tooLittle)
      end.failureCode = 2;
    MERAK_RETURN_IF_ERROR(kept);
  }
  return train(*session, options, costs, factory, world, copies.get(),
               end.early);
}

constexpr const char *kTool = "merak-run";

AgentRun agentRun(const CLI::App &app, const RunOptions &options) {
  AgentRun run;
  run.arguments = argumentsOfRuns(app, /*withPlans=*/options.replan.isOn());
  run.plan = options.plan;
  run.save = options.checkpoint.save.dir;
  run.load = options.checkpoint.load;
  run.log = options.log;
  run.plans = options.replan.plans;
  run.steps = options.steps;
  run.copies = options.copies.copies.hosts > 0;
  run.trustPlan = options.trustPlan;
  return run;
}

// What of it needs one process from the first step to the last.
std::string agentProblem(const RunOptions &options, const AgentRun &run) {
  if (options.agent.restarts > 0)
    for (const auto &[name, value] :
         {std::pair("--trace", options.trace),
          std::pair("--save-grads", options.saveGrads),
          std::pair("--out", options.out)})
      if (!value.empty())
        return fmt::format("{} is of one run, --restarts of several", name);
  if (options.agent.restarts > 0 && options.ranks == "env")
    return "--restarts starts ranks itself: give --launcher, not --ranks";
  return usageProblem(options.agent, run);
}

// One rank of a run of several processes.
int runAsRank(RunOptions &options, const BackendFactory &factory,
              const ClusterLinks &clusterLinks, const Costs &costs,
              const WorldRegistry &worlds) {
  RunEnd end;
  return asRank(
      kTool, options.backend, worlds,
      [&](World &world, std::string &early) -> Status {
        if (!options.session.threads) {
          auto share = cpuShare(*world.store());
          if (!share)
            return share.status();
          options.session.threads = *share;
        }
        Status status = run(options, factory, clusterLinks, costs, &world, end);
        early = end.early;
        return status;
      },
      end.failureCode);
}

} // namespace

int runMain(int argc, char **argv, const BackendRegistry &backends,
            const ClusterLinks &clusterLinks, const WorldRegistry &worlds,
            const std::function<std::string()> &versions,
            const ExpectedSeconds &expected, const PredictedSeconds &predicted,
            const PlanPrices &prices) {
  CLI::App app("Runs a plan: trains, or infers, on ranks of this machine.",
               "merak-run");
  RunOptions options;
  addOptions(app, options, backends);
  if (versions)
    app.set_version_flag("--version", versions,
                         "libraries that were built in, and those of them that "
                         "this machine has");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const std::string problem = usageProblem(options); !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  if (!options.copies.remove.empty())
    return exitCode(kTool, removeCopies(options.copies.remove));
  if (!options.copies.pass.empty())
    return asRank(
        kTool, "cpu", worlds, [&](World &world, std::string &) -> Status {
          return passCopies(options.copies, world, backends.at("cpu"));
        });
  if (!options.status.empty()) {
    auto text = statusOf(options.status);
    return exitCode(kTool, text.ok() ? printLine(*text) : text.status());
  }
  const AgentRun agent = agentRun(app, options);
  if (const std::string problem = agentProblem(options, agent);
      !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  Status read = readShuffle(options);
  read.merge(readLossScale(options));
  if (!read.ok()) {
    complain(fmt::format("merak-run: error: {}", read.str()));
    return 2;
  }
  options.data.tokenBytes = options.tokenType == "u32" ? 4 : 2;
  options.session.trace = !options.trace.empty();
  options.session.graphs = options.graphs == "auto";
  options.session.separateArena = options.arena == "separate";
  options.session.verify = sourceCheck(options.verify);
  const BackendFactory &factory = backends.at(options.backend);
  if (Status status = readEnvironment(options.session, options.agent);
      !status.ok())
    return exitCode(kTool, status);
  if (options.agent.restarts > 0) {
    if (const Status status = agent.copies ? checkCopiesBase() : Status();
        !status.ok()) {
      (void)exitCode(kTool, status);
      return 2;
    }
    return runAgent(agent, options.agent, prices);
  }
  options.beat = beatDescriptor();
  options.session.predicted = predicted;
  if (options.replan.isOn()) {
    options.session.stateApart = options.replan.mode == "auto";
    if (options.session.rateEvery == 0)
      options.session.rateEvery = 1;
  }
  const Costs costs{expected, prices};
  if (options.ranks == "env")
    return runAsRank(options, factory, clusterLinks, costs, worlds);
  RunEnd end;
  Status status = run(options, factory, clusterLinks, costs, nullptr, end);
  if (!end.early.empty())
    status.merge(Status::error(end.early));
  return exitCode(kTool, status) == 0 ? 0 : end.failureCode;
}

} // namespace merak::runtime
