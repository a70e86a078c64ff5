#include "runtime/launch/RunSteps.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/Output.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/ChildProcess.h"
#include "runtime/launch/IdleProbe.h"
#include "runtime/launch/Replan.h"
#include "runtime/launch/RunLog.h"
#include "runtime/launch/SaveOptions.h"
#include "runtime/launch/StopTogether.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <map>

namespace merak::runtime {
namespace {

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

} // namespace

void tellNote(const std::string &note, bool leads) {
  if (!note.empty() && leads)
    complain("note: " + note);
}

Status runSteps(std::unique_ptr<Session> &session, const RunOptions &options,
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

} // namespace merak::runtime
