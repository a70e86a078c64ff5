#include "runtime/launch/RunMain.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/HostMemory.h"
#include "runtime/core/Output.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/AgentLead.h"
#include "runtime/launch/ChildProcess.h"
#include "runtime/launch/CpuShare.h"
#include "runtime/launch/ElasticChoice.h"
#include "runtime/launch/IdleProbe.h"
#include "runtime/launch/Replan.h"
#include "runtime/launch/Resume.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunLog.h"
#include "runtime/launch/RunOptions.h"
#include "runtime/launch/RunStatus.h"
#include "runtime/launch/SaveOptions.h"
#include "runtime/launch/Standby.h"
#include "runtime/launch/StopTogether.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"
#include "support/OptionErrors.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <unistd.h>

namespace merak::runtime {
namespace {

// What the tool's main knows of costs.
struct Costs {
  ExpectedSeconds expected;
  PlanPrices prices;
};

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

// What there is to say, without the table behind it.
Status firstOf(const Status &status) {
  for (const std::string &message : status.messages())
    if (!message.empty())
      return Status::error(message);
  return status;
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
      if (again_)
        break;
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

  // Whether it ended to be started again with another plan.
  bool again() const { return again_; }

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
    const auto entry = copies_ ? copies_->restartEntry(before_)
                               : restartEntry(options_.copies, before_);
    return entry.is_null() ? Status() : log.tell(entry.dump());
  }
  void tellNews() {
    if (!copies_)
      return;
    for (const std::string &line : copies_->news())
      tellNote(line, leads_);
  }
  Status endCopies() {
    if (session_->stepsDone() < last_ && !saves() && !again_)
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
      MERAK_RETURN_IF_ERROR(
          log.add(*step, copies_ ? copies_->logEntry() : nullptr));
    beat(options_.beat, step->step == last_);
    if (i == 0 && replanner_)
      replanner_->startTook(secondsSince(options_.begin));
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
    tellNews();
    return {};
  }

  void keepRates(const rates::Known &known) {
    // Of processes none is on a device that is left out: its agent looks there.
    if (options_.replan.isOn() && !store_ && !probe_)
      probe_.emplace(options_.session.slow);
    RateKeeper::IdleRate idle;
    if (probe_)
      idle = [this](int device, int64_t step) {
        return probe_->rate(device, step);
      };
    rates_.emplace(session_->plan(), costs_.expected, store_, known,
                   std::move(idle));
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
    PlanSource source =
        sourceOfPlans(options_.plan, replan.plans, replan.compiler);
    if (!replan.plans.empty()) // chosen from alone
      source.compiler.clear();
    Replanner::MakeSession make;
    if (!store_)
      make = [this](LoadedPlan plan, Succession succession) {
        return makeNext(std::move(plan), succession);
      };
    return std::make_unique<Replanner>(
        replan,
        PlanPool(options_.plan, session_->plan(), std::move(source),
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
      if (all->front().starts_with(Replanner::kRestart))
        return endToStartAgain(step, log);
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

  // All processes, once the state is safe: by a copy of this step, or by the
  // checkpoint at the end of the run. Where there is no copy it is tried again
  // after the next step.
  Status endToStartAgain(const StepResult &step, RunLog &log) {
    if (!saves() && copies_) {
      MERAK_RETURN_IF_ERROR(copies_->last(*session_));
      const Status copied = copies_->newest() == step.step
                                ? Status()
                                : Status::error("no copy of this step");
      if (!agree(store_, "safe", copied).ok())
        return {};
    }
    again_ = true;
    ReplanNews news;
    if (replanner_)
      replanner_->restarts(step, news);
    return tell(news, log);
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
    Status made = session.status();
    if (!isAgreed(made)) // all know already
      made = agree(store_, "next session", made);
    if (store_->aborted())
      return made;
    if (!made.ok()) { // a device has no memory for both
      if (replanner_)
        replanner_->kept(step, firstOf(made), news);
      return tell(news, log);
    }
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
  bool again_ = false; // the run ends to be started again with another plan
};

// How a run ended that has no error, or which code stands for its error.
struct RunEnd {
  std::string early;  // why it ended before its last step, if it did
  bool again = false; // to be started again with another plan
  int failureCode = kFailed;
};

Status train(std::unique_ptr<Session> &session, const RunOptions &options,
             const Costs &costs, const BackendFactory &factory, World *world,
             RunCopies *copies, RunEnd &end) {
  if (!options.checkpoint.save.dir.empty()) {
    MERAK_RETURN_IF_ERROR(session->openSaves(saveOptions(options)));
    tellNote(session->saves()->note(), !world || world->leads());
  }
  Steps steps(session, options, costs, factory, world, copies);
  MERAK_RETURN_IF_ERROR(steps.run());
  Status problems = steps.finish();
  end.early = steps.early();
  end.again = steps.again();
  return problems;
}

// Whether processes can send each other what `option` takes: those of GPUs
// communicate the memory of their devices, and that of hosts only by MPI.
Status checkHostMemory(World *world, const char *option, const char *without) {
  if (!world || !world->store())
    return {};
  HostMemory memory;
  const bool reached = world->communicator(world->ranks().front(), memory).ok();
  return agree(world->store(), "host memory",
               reached ? Status()
                       : Status::error(fmt::format(
                             "{} of GPUs' ranks that are processes needs MPI "
                             "for host memory: start them with mpirun, in a "
                             "build that has MPI, or give {}",
                             option, without)));
}

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
  Status reached;
  if (copies && copies->areSent())
    reached = checkHostMemory(world, "--copies", "--copies=0");
  if (reached.ok() && options.replan.mode == "auto")
    reached = checkHostMemory(world, "--replan=auto", "--replan=suggest");
  if (!reached.ok()) {
    end.failureCode = 2;
    return reached;
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
  return train(*session, options, costs, factory, world, copies.get(), end);
}

constexpr const char *kTool = "merak-run";

// With --elastic: the code to end with, if there is nothing to start.
std::optional<int> beginElastic(const CLI::App &app, const PlanPrices &prices,
                                RunOptions &options, ElasticChoice &choice) {
  const auto plan = loadPlanToRun(options.plan, options.trustPlan);
  if (!plan)
    return exitCode(kTool, plan.status());
  std::set<std::string> given;
  for (const CLI::Option *option : app.parse_order())
    given.insert(option->get_name());
  Status problems;
  if (const auto facts = elasticFacts(options, *plan, prices)) {
    auto chosen = chooseElastic(*facts, given, options);
    if (chosen)
      choice = std::move(*chosen);
    problems = chosen.status();
  } else {
    problems = facts.status();
  }
  if (problems.ok())
    return std::nullopt;
  (void)exitCode(kTool, problems);
  return 2;
}

AgentRun agentRun(const CLI::App &app, const RunOptions &options,
                  const ElasticChoice &elastic) {
  AgentRun run;
  run.arguments = argumentsOfRuns(app, /*withPlans=*/options.replan.isOn());
  run.arguments.insert(run.arguments.end(), elastic.arguments.begin(),
                       elastic.arguments.end());
  run.plan = options.plan;
  run.save = options.checkpoint.save.dir;
  run.load = options.checkpoint.load;
  run.log = options.log;
  run.source = sourceOfPlans(options.plan, options.replan.plans,
                             options.replan.compiler);
  run.source.cluster = options.elastic.cluster;
  run.steps = options.steps;
  run.replans = options.replan.isOn();
  run.copies = options.copies.copies.hosts > 0;
  run.copiesEvery = options.copies.stepsBetween();
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
        return fmt::format("{} is of one run, --{} of several", name,
                           options.elastic.on ? "elastic" : "restarts");
  if (options.agent.restarts > 0 && options.ranks == "env")
    return "--restarts starts ranks itself: give --launcher, not --ranks";
  return usageProblem(options.agent, run);
}

// An agent that goes on with a run whose agent is lost.
int standBy(const CLI::App &app, RunOptions &options,
            const PlanPrices &prices) {
  for (const CLI::Option *option : app.parse_order())
    if (option->get_name() != "--standby") {
      complain(fmt::format("merak-run: error: --standby takes all but that "
                           "from the agent that leads: {} is not for it",
                           option->get_name()));
      return 2;
    }
  if (Status status = readEnvironment(options.session, options.agent);
      !status.ok())
    return exitCode(kTool, status) == 0 ? 0 : 2;
  return runStandby(options.agent, prices);
}

// One rank of a run of several processes.
int runAsRank(RunOptions &options, const BackendFactory &factory,
              const ClusterLinks &clusterLinks, const Costs &costs,
              const WorldRegistry &worlds) {
  RunEnd end;
  const int code = asRank(
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
      end.failureCode,
      options.copies.copies.hosts > 0 || options.replan.mode == "auto",
      localDevices(options.places));
  return code == 0 && end.again ? kStartAgain : code;
}

// What a device that has no rank takes for a known computation (LeftOut.h).
int probe(RunOptions &options) {
  const auto request = parseProbe(options.agent.probe);
  Status status = request.status();
  status.merge(readEnvironment(options.session, options.agent));
  if (status.ok())
    status = printLine(probeLine(IdleProbe(options.session.slow)
                                     .seconds(request->device, request->step)));
  return exitCode(kTool, status);
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
  addRunOptions(app, options, backends);
  if (versions)
    app.set_version_flag("--version", versions,
                         "libraries that were built in, and those of them that "
                         "this machine has");
  tellErrorsAs(app, kTool);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!options.agent.grant.empty())
    return exitCode(kTool, grantStart(options.agent.grant));
  if (!options.agent.probe.empty())
    return probe(options);
  if (!options.agent.standby.empty())
    return standBy(app, options, prices);
  ElasticChoice elastic;
  if (options.elastic.on && !options.plan.empty())
    if (const auto code = beginElastic(app, prices, options, elastic))
      return *code;
  if (const std::string problem = usageProblem(options); !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  if (!options.copies.remove.empty())
    return exitCode(kTool, removeCopies(options.copies.remove));
  if (!options.copies.pass.empty())
    return asRank(kTool, "cpu", worlds,
                  [&](World &world, std::string &) -> Status {
                    return passCopies(options.copies, world);
                  });
  if (!options.status.empty()) {
    auto text = statusOf(options.status);
    return exitCode(kTool, text.ok() ? printLine(*text) : text.status());
  }
  const AgentRun agent = agentRun(app, options, elastic);
  if (const std::string problem = agentProblem(options, agent);
      !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  if (const Status read = readTexts(options); !read.ok()) {
    complain(fmt::format("merak-run: error: {}", read.str()));
    return 2;
  }
  const BackendFactory &factory = backends.at(options.backend);
  if (Status status = readEnvironment(options.session, options.agent);
      !status.ok())
    return exitCode(kTool, status);
  followDevices(options.session.slow, options.places);
  if (options.agent.restarts > 0) {
    if (const Status status = agent.copies ? checkCopiesBase() : Status();
        !status.ok()) {
      (void)exitCode(kTool, status);
      return 2;
    }
    tellNote(elastic.told, /*leads=*/true);
    return options.agent.standbys >= 0 ? runLead(agent, options.agent, prices)
                                       : runAgent(agent, options.agent, prices);
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
