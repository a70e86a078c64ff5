#include "runtime/launch/Agent.h"

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/core/Output.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/elastic/Choice.h"
#include "runtime/launch/AgentCopies.h"
#include "runtime/launch/AgentLead.h"
#include "runtime/launch/AgentPlans.h"
#include "runtime/launch/HostLooks.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunLog.h"
#include "runtime/launch/StartVote.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <sys/wait.h>

namespace merak::runtime {

namespace {

using Clock = std::chrono::steady_clock;

// Runs in a row that are lost without a new checkpoint, and without a step that
// none of them has done before.
constexpr int kInVain = 3;
// Behind its last step a run saves, and tells of no more steps.
constexpr double kLastSilence = 10;
// Ranks that a launcher started say more of what hangs than their agent.
constexpr double kLauncherSilence = 2;
// Between looks at other agents.
constexpr double kPublishSeconds = 1;
// What a run has to save; one that was told to end.
constexpr double kSaveSeconds = 120, kEndSeconds = 15;
// The same where another agent may soon start it.
constexpr double kDeposedSeconds = 2;

using Position = AgentPosition;

void nap(long milliseconds) {
  const timespec wait{0, milliseconds * 1'000'000};
  nanosleep(&wait, nullptr);
}

class Agent {
public:
  using Names = std::set<std::string>;

  Agent(const AgentRun &run, const AgentOptions &options,
        const PlanPrices &prices, const AgentSuccession &succession)
      : run_(run), options_(options), prices_(prices), succession_(succession),
        lead_(succession.lead) {}

  int run() {
    if (const Status status = begin(); !status.ok())
      return fail(status.str());
    const int code = runs();
    if (isDeposed_) // what there is belongs to another agent
      return code;
    if (run_.copies)
      endCopies(code);
    else if (lead_)
      note(removeCopies(copyAgent(), now_.id, left())); // what hosts granted
    if (lead_)
      lead_->finish(code);
    return code;
  }

private:
  int runs() {
    while (true) {
      const Position from = position();
      if (from.step >= now_.last)
        return 0;
      Result<ChosenPlan> plan = planToStart(from);
      if (!plan)
        return fail(plan.status().str());
      claim();
      if (lead_ && !lead_->successor().empty())
        return depose(lead_->successor());
      tell(from, *plan);
      begun_ = Clock::now();
      if (run_.copies && !why_.empty())
        note(passCopies(copyAgent(), {now_.id, claim_.number()}, left(),
                        hostsOfRanks(places(*plan)),
                        from.load.empty() ? -1 : from.step));
      Result<ChildProcess> child = ChildProcess::start(command(from, *plan));
      if (!child)
        return fail(child.status().str());
      claim_.begin();
      now_.plan = plan->path;
      keepLeftOut(*plan);
      now_.restart =
          (why_.empty() ? nlohmann::ordered_json() : restart(*plan)).dump();
      publish();
      if (plans_)
        plans_->started(*plan, now_.lost);
      if (const std::optional<int> code = watch(*child, from, *plan))
        return *code;
    }
  }

  static int fail(const std::string &what) {
    complain(fmt::format("merak-run: error: {}", what));
    return 1;
  }
  static void note(const std::string &what) {
    if (!what.empty())
      complain("note: " + what);
  }

  // --------------------------------------------------------------- beginning

  Status begin() {
    auto first = loadPlanToRun(run_.plan, run_.trustPlan);
    if (!first)
      return first.status();
    MERAK_RETURN_IF_ERROR(verifyPlan(*first).withContext(run_.plan));
    if (first->file.mode() != "train")
      return Status::error(fmt::format(
          "\"{}\" does not train: --restarts is for training", run_.plan));
    ranks_ = first->file.ranks_size();
    looksAtDevices_ = first->file.device() != "cuda";
    hosts_ = *parseHosts(options_.hosts); // usageProblem has looked
    if (!hosts_.empty()) {
      plans_.emplace(
          PlanPool(run_.plan, *first, run_.source, run_.trustPlan, prices_),
          hosts_);
      for (const std::string &line : plans_->readFolder())
        note(line);
    }
    if (!run_.load.empty()) {
      auto state = readCheckpointState(run_.load);
      if (!state)
        return state.status();
      now_.first = {run_.load, state->run, state->step};
    }
    now_.last = now_.first.step + run_.steps;
    program_ = thisProgram();
    now_.before = newest();
    now_.id = succession_.id.empty() ? newRun() : succession_.id;
    if (succession_.inherited)
      inherit();
    sigemptyset(&signals_);
    for (int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1})
      sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
    return {};
  }

  void inherit() {
    now_ = *succession_.inherited;
    why_ = succession_.why;
    claim_.make(now_.next); // granted by then
    if (!plans_)
      return;
    plans_->assume(now_.rates);
    plans_->inherit(now_.plan, succession_.lostBefore);
    const std::optional<LogEnd> log = endOfLog(run_.log);
    if (run_.replans && log && log->restart.dump() == now_.restart)
      plans_->measured(succession_.lostBefore, log->rates);
  }

  // The next start, which nobody else claims after this.
  void claim() {
    if (claim_.make(now_.next))
      publish();
  }
  CopyRun nextStart() {
    claim();
    return {now_.id, claim_.number()};
  }

  // What is known of devices that stay out stays.
  void keepLeftOut(const ChosenPlan &plan) {
    std::vector<LeftOutDevice> out = plan.leftOut;
    for (LeftOutDevice &device : out)
      for (const LeftOutDevice &before : now_.leftOut)
        if (before.number == device.number)
          device = before;
    now_.leftOut = std::move(out);
  }

  // What others need who go on without this agent.
  void publish() {
    if (!lead_)
      return;
    if (plans_)
      now_.rates = plans_->rates();
    now_.saver = saverOf(run_.save);
    lead_->publish(now_);
  }

  int depose(const std::string &why) {
    isDeposed_ = true;
    return fail(why);
  }

  // What lies in --save, whoever wrote it.
  std::optional<Position> newest() const {
    std::error_code error;
    if (!saves() || !std::filesystem::is_directory(run_.save, error))
      return std::nullopt;
    auto state = readCheckpointState(run_.save);
    if (!state)
      return std::nullopt;
    return Position{run_.save, state->run, state->step};
  }

  // The newest checkpoint of this agent's runs, else what they began from.
  Position position() const {
    const std::optional<Position> found = newest();
    return found && found != now_.before ? *found : now_.first;
  }

  bool saves() const { return !run_.save.empty(); }
  std::vector<Host> left() const { return without(hosts_, now_.lost); }
  // Of the devices that are left, with the plan's ranks.
  std::vector<Place> places(const ChosenPlan &plan) const {
    std::vector<Place> places = placesLeft(hosts_, now_.lost);
    placeRanks(places, plan.devices);
    return places;
  }

  // -------------------------------------------------------------- one more run

  // Made before, if nothing that is there has a place on the hosts.
  Result<ChosenPlan> planToStart(const Position &from) {
    if (!plans_)
      return ChosenPlan{run_.plan, ranks_};
    if (slotsOf(left()) == 0)
      return Status::error(
          fmt::format("{}; --launcher starts a process on none of {}", why_,
                      fmt::join(now_.lost, ", ")));
    if (const std::string asked = std::exchange(asked_, ""); !asked.empty()) {
      auto plan = plans_->take(asked, now_.lost);
      if (plan)
        return plan;
      note(plan.status().str());
    }
    Result<ChosenPlan> plan = plans_->choose(now_.lost);
    if (plan)
      return plan;
    if (!plans_->lacks(now_.lost)) {
      Status why = plan.status();
      if (run_.source.compiler.empty())
        why = Status::error(why.str() + " (--plans names a folder of others, "
                                        "--compiler who makes them)");
      return why;
    }
    note(plan.status().str() + ": one is made");
    plans_->make(now_.lost);
    std::optional<Status> made;
    while (!(made = plans_->made()))
      if (const int number = nextSignal(100); number > 0 && number != SIGUSR1) {
        plans_->stop();
        return Status::error(fmt::format(
            "{}; stopped by SIG{} while a plan was made, after step {}", why_,
            sigabbrev_np(number), std::max(from.step, copied())));
      }
    if (!made->ok()) {
      Status why = plan.status();
      why.merge(*made);
      return why;
    }
    plan = plans_->choose(now_.lost);
    if (plan && plan->plannedSeconds > 0)
      why_ += fmt::format("; a plan for the hosts that are left was made in "
                          "{:.1f} s",
                          plan->plannedSeconds);
    return plan;
  }

  std::vector<std::string> command(const Position &from,
                                   const ChosenPlan &plan) const {
    std::vector<std::string> words{program_, plan.path};
    words.insert(words.end(), run_.arguments.begin(), run_.arguments.end());
    words.push_back(fmt::format("--steps={}", now_.last - from.step));
    if (run_.copies)
      words.push_back(copiesArgument({now_.id, claim_.number()}, now_.last));
    if (!why_.empty())
      words.push_back("--restarted=" + restart(plan).dump());
    if (!from.load.empty())
      words.push_back("--load=" + from.load);
    if (options_.launcher.empty())
      return words;
    words.push_back("--ranks=env");
    const std::vector<Place> all = places(plan);
    if (!all.empty())
      words.push_back(placesArgument(all));
    return launch(options_.launcher, plan.ranks,
                  placesOf(hostsOfRanks(all), plan.ranks), words);
  }

  nlohmann::ordered_json restart(const ChosenPlan &plan) const {
    nlohmann::ordered_json entry = {{"why", why_},
                                    {"plan", plan.path},
                                    {"ranks", plan.ranks},
                                    {"lost", now_.lost},
                                    {"restarts", now_.restarts}};
    if (plan.plannedSeconds > 0)
      entry["planned_seconds"] = plan.plannedSeconds;
    for (const LeftOutDevice &device : plan.leftOut)
      entry["left_out"].push_back({{"device", device.number},
                                   {"host", device.host},
                                   {"rate", device.rate}});
    if (now_.takeOvers > 0)
      entry["agent"] = hostName();
    return entry;
  }

  // Of a run that is started again; the run itself tells its log.
  void tell(const Position &from, const ChosenPlan &plan) {
    if (why_.empty())
      return;
    note(fmt::format(
        "{}; {} \"{}\" on {} rank{}{}{}", why_,
        run_.copies ? "starts again with"
                    : fmt::format("goes on after step {} with", from.step),
        plan.path, plan.ranks, plan.ranks == 1 ? "" : "s", withoutText(plan),
        now_.restarts == 0 ? "" // it was not lost so far
                           : fmt::format(" (restart {} of {})", now_.restarts,
                                         options_.restarts)));
  }

  std::string withoutText(const ChosenPlan &plan) const {
    std::vector<std::string> names(now_.lost.begin(), now_.lost.end());
    for (const LeftOutDevice &device : plan.leftOut)
      names.push_back(nameOf(device));
    return names.empty() ? ""
                         : fmt::format(", without {}", fmt::join(names, ", "));
  }

  // ----------------------------------------------------------------- watching

  // One that came within so many milliseconds; 0: none.
  int nextSignal(long milliseconds) const {
    const timespec wait{0, milliseconds * 1'000'000};
    const int number = sigtimedwait(&signals_, nullptr, &wait);
    return number > 0 && number != SIGCHLD ? number : 0;
  }

  // Until it ends, or another plan is to be taken. The code to end with;
  // nothing: another run is to be started, and why_ says why.
  std::optional<int> watch(ChildProcess &child, const Position &from,
                           const ChosenPlan &plan) {
    steps_ = 0;
    settled_ = false;
    isNew_ = true;
    bool ends = false, last = false; // someone wants the run to end
    auto beat = Clock::now();
    std::string cause;
    LostHosts hosts(options_.launcher, now_.lost, options_.lookSeconds);
    LeftOutLooks devices(options_.launcher, program_, options_.lookSeconds);
    back_.clear();
    if (plans_ && now_.lost.empty())
      plans_->stop();
    while (!child.ended()) {
      if (const int number = nextSignal(100); number > 0) {
        ends |= number != SIGUSR1;
        if (plans_ && ends)
          plans_->stop();
        pass(child, number);
      }
      if (const int beats = child.beats(last); beats > 0) {
        steps_ += beats;
        beat = Clock::now();
      }
      if (logGrew()) {
        beat = Clock::now();
        isNew_ = true;
      }
      if (const std::string why = lookAtOthers(); !why.empty()) {
        end(child, kDeposedSeconds);
        return depose(why);
      }
      double most = options_.silenceSeconds * (last ? kLastSilence : 1);
      if (!options_.launcher.empty()) // ranks are watched by themselves, too
        most = run_.log.empty() ? 0 : kLauncherSilence * most;
      if (most > 0 && cause.empty() && secondsSince(beat) > most) {
        cause = fmt::format("no step for {:.0f} seconds", most);
        child.signal(SIGKILL);
      }
      if (ends || (now_.lost.empty() && now_.leftOut.empty() && back_.empty()))
        continue;
      if (hosts.look() || lookAtLeftOut(devices, hosts.lost())) {
        settled_ = false;
        isNew_ = true;
      }
      std::string why = whyAnotherPlan(hosts.lost(), plan);
      if (why.empty() || (saves() && !saved(child)))
        continue;
      learnRates(plan);
      end(child);
      now_.lost = hosts.lost();
      why_ = std::move(why);
      return std::nullopt;
    }
    learnRates(plan);
    if (asksForAnother(*child.ended(), ends, plan))
      return std::nullopt;
    return after(*child.ended(), ends, cause, from);
  }

  // Whether a device is normal again that has no rank.
  bool lookAtLeftOut(LeftOutLooks &devices, const Names &lost) {
    if (!looksAtDevices_) // what a core computes says nothing of a GPU
      return false;
    const auto back =
        devices.look(now_.leftOut, lost, [this] { return logged(); });
    for (const LeftOutDevice &device : back) {
      note(fmt::format("{} is no longer slow", nameOf(device)));
      plans_->recovered(device);
      back_.push_back(nameOf(device));
    }
    return !back.empty();
  }

  // Whether the run ended to be started again with the plan that its log
  // names. Without that it is lost.
  bool asksForAnother(int status, bool ends, const ChosenPlan &plan) {
    if (ends || !WIFEXITED(status) || WEXITSTATUS(status) != kStartAgain ||
        !plans_)
      return false;
    const std::optional<LogEnd> log = endOfLog(run_.log);
    if (!log || !log->asked.is_object() ||
        !(why_.empty() ? log->restart.is_null() : log->isOf(restart(plan))))
      return false;
    asked_ = log->asked.value("to", std::string());
    why_ = fmt::format("slow devices: {}; {}",
                       log->asked.value("rates", std::string()),
                       log->asked.value("why", std::string()));
    now_.furthest = std::max(now_.furthest, log->step);
    return !asked_.empty();
  }

  // Why this agent may not go on with the run; empty: it may.
  std::string lookAtOthers() {
    if (!lead_ || secondsSince(published_) < kPublishSeconds)
      return {};
    published_ = Clock::now();
    publish();
    return lead_->look(namesOf(left()), [this] { return nextStart(); });
  }

  // Who was slow in the run that is over now. One that does not replan measures
  // against what its plan expects, which may be a slow device.
  void learnRates(const ChosenPlan &plan) {
    if (!plans_ || !run_.replans)
      return;
    const std::optional<LogEnd> log = endOfLog(run_.log);
    if (log &&
        (why_.empty() ? log->restart.is_null() : log->isOf(restart(plan))))
      plans_->measured(now_.lost, log->rates);
  }

  // A plan for these hosts is better than the one that runs; empty: none is,
  // so far.
  std::string whyAnotherPlan(const Names &lost, const ChosenPlan &plan) {
    if (const auto made = plans_->made()) {
      isNew_ = true;
      if (!made->ok())
        note(made->str());
    }
    if (!plans_->lacks(lost))
      plans_->stop();
    else if (run_.source.folder == run_.source.made) // not of --plans alone
      plans_->make(lost);
    // Plans are simulated and the log is read once for each that is new.
    if (plans_->isMaking() || settled_ || !std::exchange(isNew_, false))
      return {};
    const Result<ChosenPlan> other = plans_->choose(lost);
    if (!other || other->path == plan.path) {
      settled_ = true;
      return {};
    }
    Names back;
    std::set_difference(now_.lost.begin(), now_.lost.end(), lost.begin(),
                        lost.end(), std::inserter(back, back.end()));
    back.insert(back_.begin(), back_.end());
    if (back.empty())
      return judge(plan, *other);
    settled_ = other->seconds >= plan.seconds;
    return settled_ ? ""
                    : fmt::format("{} {} back", fmt::join(back, ", "),
                                  back.size() == 1 ? "is" : "are");
  }

  // Whether it is worth a restart, which takes what the last one took.
  std::string judge(const ChosenPlan &plan, const ChosenPlan &other) {
    const std::optional<LogEnd> log = endOfLog(run_.log);
    if (run_.log.empty()) {
      note(fmt::format("\"{}\" is for the next restart: without --log it is "
                       "not known what a step takes",
                       other.path));
      settled_ = true;
    }
    if (!log || log->stepSeconds() == 0 || !log->isOf(restart(plan)))
      return {};
    double stall = std::max(0.0, secondsSince(begun_) - log->seconds);
    if (!saves()) // steps since the last copy are done again
      stall += double(run_.copiesEvery) * log->stepSeconds();
    const elastic::Verdict verdict = elastic::judge(
        {log->stepSeconds(), plan.seconds, now_.last - log->step},
        {{other.seconds, 0, stall}});
    settled_ = true;
    if (verdict.choice >= 0)
      return fmt::format("a plan for the hosts that are left was made in "
                         "{:.1f} s: {}",
                         other.plannedSeconds, verdict.why);
    note(fmt::format("\"{}\" is not taken: {}", other.path, verdict.why));
    return {};
  }

  // Of ranks that are processes this is all that the agent hears: a launcher
  // may wait for ever for ranks that are gone.
  bool logGrew() {
    std::error_code error;
    const auto size = std::filesystem::file_size(run_.log, error);
    return !error && std::exchange(logSize_, size) != size;
  }

  // A launcher ends its ranks at once; they are to save before.
  void pass(ChildProcess &child, int number) {
    if (options_.launcher.empty() || number == SIGUSR1 || !saves())
      child.signal(number);
    else if (saved(child))
      end(child);
    else
      child.signal(number);
  }

  std::optional<int> after(int status, bool ends, std::string cause,
                           const Position &from) {
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    // Options and files that are wrong stay so.
    static const std::set<int> final{0, 2, 70, 126, 127};
    const bool isFinal = WIFEXITED(status) && final.count(code);
    if (ends || (isFinal && cause.empty()))
      return code == kStartAgain ? 1 : code; // it was told to end besides
    if (cause.empty())
      cause = describeEnd(status);
    const int64_t reached =
        std::max({from.step + steps_, logged(), run_.copies ? copied() : 0});
    const bool inVain = position() == from && reached <= now_.furthest;
    now_.furthest = std::max(now_.furthest, reached);
    now_.inVain = inVain ? now_.inVain + 1 : 0;
    why_ = fmt::format("the run was lost after {} step{}: {}", steps_,
                       steps_ == 1 ? "" : "s", cause);
    if (!options_.launcher.empty())
      why_ = fmt::format("the run was lost: {}", cause);
    if (now_.restarts == options_.restarts || now_.inVain == kInVain)
      return fail(fmt::format(
          "{}; {}", why_,
          now_.inVain == kInVain
              ? fmt::format("{} times in a row without getting further",
                            kInVain)
              : fmt::format("--restarts allows {}", options_.restarts)));
    ++now_.restarts;
    if (const std::string why = findLost(); !why.empty())
      return depose(fmt::format("{}; {}", why_, why));
    return std::nullopt;
  }

  int64_t logged() const {
    const std::optional<LogEnd> log = endOfLog(run_.log);
    return log ? log->step : 0;
  }
  // This host need not be one of those that have copies.
  int64_t copied() const { return newestCopy(now_.id).value_or(0); }

  CopyAgent copyAgent() const { return {program_, options_.launcher, ranks_}; }

  // Of a run that is over: what it kept in memory goes, unless it is all that
  // is left of it.
  void endCopies(int code) {
    if (code != 0 && code != 2 &&
        std::max(copied(), logged()) > position().step)
      note(fmt::format("copies of the state stay in \"{}\" of each host "
                       "(merak-plan gather puts them together), until another "
                       "run with copies finds them, an hour later",
                       copiesPath(now_.id)));
    else
      note(removeCopies(copyAgent(), now_.id, left()));
  }

  // Waits for a checkpoint that is written because it was asked for.
  bool saved(ChildProcess &child) {
    const std::optional<Position> before = newest();
    child.signal(SIGUSR1);
    for (const auto begin = Clock::now();
         !child.ended() && secondsSince(begin) < kSaveSeconds;) {
      if (const std::optional<Position> now = newest(); now && now != before)
        return true;
      nap(50);
    }
    return false;
  }

  static void end(ChildProcess &child, double seconds = kEndSeconds) {
    child.signal(SIGTERM);
    for (const auto begin = Clock::now();
         !child.ended() && secondsSince(begin) < seconds;) {
      nap(50);
    }
    child.signal(SIGKILL);
    while (!child.ended())
      nap(10);
  }

  // Why the run may not be started again here; empty: it may.
  std::string findLost() {
    const Names all = namesOf(hosts_), before = namesOf(left());
    const Names there = lead_ ? lead_->grants(all, nextStart())
                              : HostLooks(options_.launcher, all).wait();
    if (lead_)
      if (std::string why = lead_->refusal(there, before); !why.empty())
        return why;
    now_.lost.clear();
    for (const std::string &host : all)
      if (!there.count(host))
        now_.lost.insert(host);
    return {};
  }

  const AgentRun &run_;
  const AgentOptions &options_;
  const PlanPrices &prices_;
  const AgentSuccession &succession_;
  AgentLead *lead_;     // null: nobody stands by
  std::string program_; // this one
  int64_t ranks_ = 0;   // of the first plan
  bool looksAtDevices_ = true;
  std::vector<Host> hosts_;
  std::optional<AgentPlans> plans_; // with hosts
  AgentSituation now_;
  std::string why_;   // the next run is started
  std::string asked_; // with this plan, since the last run asked for it
  // Devices that were left out of the run that is under way, and are normal.
  std::vector<std::string> back_;
  StartClaim claim_;
  bool isDeposed_ = false; // another agent leads, or may
  Clock::time_point published_;
  Clock::time_point begun_; // the last start
  int64_t steps_ = 0;       // that the run told of
  uintmax_t logSize_ = 0;
  bool settled_ = false; // no plan that is there is better than that which runs
  bool isNew_ = true;    // a step, a plan or a host, since plans were compared
  sigset_t signals_;
};

} // namespace

int runAgent(const AgentRun &run, const AgentOptions &options,
             const PlanPrices &prices, const AgentSuccession &succession) {
  return Agent(run, options, prices, succession).run();
}

} // namespace merak::runtime
