#include "runtime/launch/Agent.h"

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/core/Output.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/launch/ChildProcess.h"
#include "runtime/launch/Hosts.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunLog.h"
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

std::string usageProblem(const AgentOptions &options, const AgentRun &run) {
  if (options.restarts == 0)
    return options.launcher.empty() && options.hosts.empty()
               ? ""
               : "--launcher and --hosts are for --restarts";
  if (run.save.empty() && !run.copies)
    return "--restarts goes on from checkpoints: give --save (and "
           "--save-every), or --copies";
  if (run.save.empty() && run.log.empty() && !options.launcher.empty())
    return "--copies without --save needs --log: it says how far a run came";
  if (options.launcher.empty() && !options.hosts.empty())
    return "--hosts is for --launcher";
  const bool names = options.launcher.find("{hosts}") != std::string::npos;
  if (!options.launcher.empty() && names == options.hosts.empty())
    return names ? "--launcher has {hosts}: give --hosts"
                 : "--hosts is for {hosts} in --launcher";
  return parseHosts(options.hosts).status().str();
}

namespace {

using Clock = std::chrono::steady_clock;

// Runs in a row that are lost without a new checkpoint, and without a step that
// none of them has done before.
constexpr int kInVain = 3;
// Behind its last step a run saves, and tells of no more steps.
constexpr double kLastSilence = 10;
// What a host has to start a process; a run to save; one that was told to end.
constexpr double kAnswerSeconds = 20, kSaveSeconds = 120, kEndSeconds = 15;
// For copies to go from hosts without a rank to others; who is lost meanwhile
// ends it sooner.
constexpr double kPassSeconds = 600;

// A checkpoint to go on from.
struct Position {
  std::string load, run; // run: its name in the manifest
  int64_t step = 0;
  bool operator==(const Position &) const = default;
};

void nap(long milliseconds) {
  const timespec wait{0, milliseconds * 1'000'000};
  nanosleep(&wait, nullptr);
}

struct Chosen {
  std::string path;
  int64_t ranks = 0;
  double seconds = 0; // of a step, predicted; 0: not compared
};

class Agent {
public:
  Agent(const AgentRun &run, const AgentOptions &options,
        const PlanPrices &prices)
      : run_(run), options_(options), prices_(prices) {}

  int run() {
    if (const Status status = begin(); !status.ok()) {
      complain(fmt::format("merak-run: error: {}", status.str()));
      return 1;
    }
    const int code = runs();
    if (run_.copies)
      endCopies(code);
    return code;
  }

private:
  int runs() {
    while (true) {
      const Position from = position();
      if (from.step >= last_)
        return 0;
      Result<Chosen> plan = choose(lost_);
      if (!plan) {
        complain(fmt::format("merak-run: error: {}", plan.status().str()));
        return 1;
      }
      tell(from, *plan);
      if (run_.copies && !why_.empty())
        passCopies(from, *plan);
      Result<ChildProcess> child = ChildProcess::start(command(from, *plan));
      if (!child) {
        complain(fmt::format("merak-run: error: {}", child.status().str()));
        return 1;
      }
      ++starts_;
      if (const std::optional<int> code = watch(*child, from, *plan))
        return *code;
    }
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
    if (run_.copies && !options_.launcher.empty() &&
        first->file.device() == "cuda")
      return Status::error(fmt::format(
          "\"{}\" is a plan for cuda: --copies of ranks that are processes "
          "needs communication of host memory, which GPUs' ranks do not have",
          run_.plan));
    ranks_ = first->file.ranks_size();
    hosts_ = *parseHosts(options_.hosts); // usageProblem has looked
    if (!hosts_.empty()) {
      pool_.emplace(run_.plan, *first, run_.plans, "", run_.trustPlan, prices_);
      for (const std::string &line : pool_->readFolder())
        complain("note: " + line);
    }
    if (!run_.load.empty()) {
      auto state = readCheckpointState(run_.load);
      if (!state)
        return state.status();
      first_ = {run_.load, state->run, state->step};
    }
    last_ = first_.step + run_.steps;
    // By its name now: another file may have it when a run is started again.
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    program_ = error ? "merak-run" : self.string();
    before_ = newest();
    copies_ = newRun();
    sigemptyset(&signals_);
    for (int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1})
      sigaddset(&signals_, number);
    sigprocmask(SIG_BLOCK, &signals_, nullptr);
    return {};
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
    return found && found != before_ ? *found : first_;
  }

  // -------------------------------------------------------------- one more run

  Result<Chosen> choose(const std::set<std::string> &lost) const {
    if (hosts_.empty())
      return Chosen{run_.plan, ranks_, 0};
    const int64_t slots = slotsOf(without(hosts_, lost));
    if (slots == 0)
      return Status::error(
          fmt::format("{}; --launcher starts a process on none of {}", why_,
                      fmt::join(lost, ", ")));
    std::optional<Chosen> best;
    for (const PooledPlan &plan : pool_->plans()) {
      const int64_t ranks = plan.plan.file.ranks_size();
      if (ranks > slots)
        continue;
      auto seconds =
          prices_.stepSeconds(plan.plan, std::vector<double>(size_t(ranks), 1));
      if (!seconds)
        return seconds.status();
      if (!best || *seconds < best->seconds)
        best = {plan.path, ranks, *seconds};
    }
    if (!best)
      return Status::error(fmt::format(
          "no plan has a place on {} rank{}: \"{}\" has {} (--plans names a "
          "folder of others)",
          slots, slots == 1 ? "" : "s", run_.plan, ranks_));
    return *best;
  }

  std::vector<std::string> command(const Position &from,
                                   const Chosen &plan) const {
    std::vector<std::string> words{program_, plan.path};
    words.insert(words.end(), run_.arguments.begin(), run_.arguments.end());
    words.push_back(fmt::format("--steps={}", last_ - from.step));
    if (run_.copies)
      words.push_back(copiesArgument({copies_, starts_}, last_));
    if (run_.copies && !why_.empty())
      words.push_back("--restarted=" + restart(plan).dump());
    if (!from.load.empty())
      words.push_back("--load=" + from.load);
    if (options_.launcher.empty())
      return words;
    words.push_back("--ranks=env");
    return launch(options_.launcher, plan.ranks,
                  placesOf(without(hosts_, lost_), plan.ranks), words);
  }

  nlohmann::ordered_json restart(const Chosen &plan) const {
    return {{"why", why_},
            {"plan", plan.path},
            {"ranks", plan.ranks},
            {"lost", lost_},
            {"restarts", restarts_}};
  }

  // Of a run that is started again: to the user, and behind what the log has of
  // the steps that stay. With copies the run knows which these are, and tells.
  void tell(const Position &from, const Chosen &plan) {
    if (why_.empty())
      return;
    complain(fmt::format(
        "note: {}; {} \"{}\" on {} rank{}{} (restart {} of {})", why_,
        run_.copies ? "starts again with"
                    : fmt::format("goes on after step {} with", from.step),
        plan.path, plan.ranks, plan.ranks == 1 ? "" : "s",
        lost_.empty() ? ""
                      : fmt::format(", without {}", fmt::join(lost_, ", ")),
        restarts_, options_.restarts));
    if (run_.log.empty() || from.step == 0 || run_.copies)
      return;
    nlohmann::ordered_json entry;
    entry["step"] = from.step;
    entry["restart"] = restart(plan);
    if (const Status status = appendToLog(run_.log, from.step, entry.dump());
        !status.ok())
      complain("note: " + status.str());
  }

  // ----------------------------------------------------------------- watching

  // Until it ends, or a host is back. The code to end with; nothing: another
  // run is to be started, and why_ says why.
  std::optional<int> watch(ChildProcess &child, const Position &from,
                           const Chosen &plan) {
    steps_ = 0;
    bool ends = false, last = false; // someone wants the run to end
    auto beat = Clock::now(), looked = beat;
    std::string cause;
    std::vector<Look> looks;
    while (!child.ended()) {
      const timespec wait{0, 100'000'000};
      if (const int number = sigtimedwait(&signals_, nullptr, &wait);
          number > 0 && number != SIGCHLD) {
        ends |= number != SIGUSR1;
        pass(child, number);
      }
      if (const int beats = child.beats(last); beats > 0) {
        steps_ += beats;
        beat = Clock::now();
      }
      const double most = options_.silenceSeconds * (last ? kLastSilence : 1);
      if (options_.launcher.empty() && most > 0 && cause.empty() &&
          secondsSince(beat) > most) {
        cause = fmt::format("no step for {:.0f} seconds", most);
        child.signal(SIGKILL);
      }
      if (ends || lost_.empty() || secondsSince(looked) < options_.lookSeconds)
        continue;
      if (looks.empty())
        looks = lookAt(lost_);
      if (const std::set<std::string> back = takeAnswers(looks);
          !back.empty() && isWorth(back, plan) && (!saves() || saved(child))) {
        end(child);
        for (const std::string &host : back)
          lost_.erase(host);
        why_ = fmt::format("{} {} back", fmt::join(back, ", "),
                           back.size() == 1 ? "is" : "are");
        return std::nullopt;
      }
      if (looks.empty())
        looked = Clock::now();
    }
    return after(*child.ended(), ends, cause, from);
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
      return code;
    if (cause.empty())
      cause = describeEnd(status);
    int64_t reached =
        std::max(from.step + steps_, lastStepOfLog(run_.log).value_or(0));
    if (run_.copies)
      reached = std::max(reached, newestCopy(copies_).value_or(0));
    const bool inVain = position() == from && reached <= furthest_;
    furthest_ = std::max(furthest_, reached);
    inVain_ = inVain ? inVain_ + 1 : 0;
    why_ = fmt::format("the run was lost after {} step{}: {}", steps_,
                       steps_ == 1 ? "" : "s", cause);
    if (!options_.launcher.empty())
      why_ = fmt::format("the run was lost: {}", cause);
    if (restarts_ == options_.restarts || inVain_ == kInVain) {
      complain(fmt::format(
          "merak-run: error: {}; {}", why_,
          inVain_ == kInVain
              ? fmt::format("{} times in a row without getting further",
                            kInVain)
              : fmt::format("--restarts allows {}", options_.restarts)));
      return 1;
    }
    ++restarts_;
    findLost();
    return std::nullopt;
  }

  bool saves() const { return !run_.save.empty(); }

  // Hosts that the plan has no place for may have copies that those which it
  // has need: these go there first.
  void passCopies(const Position &from, const Chosen &plan) {
    const std::vector<Host> left = without(hosts_, lost_);
    std::vector<Host> targets = *parseHosts(placesOf(left, plan.ranks));
    if (targets.size() >= left.size())
      return;
    std::string places;
    for (const Host &host : left) // targets come first in it
      places += fmt::format("{}{}:1", places.empty() ? "" : ",", host.name);
    auto child = ChildProcess::start(
        launch(options_.launcher, int64_t(left.size()), places,
               {program_,
                passArgument({copies_, starts_}, int64_t(targets.size()),
                             from.load.empty() ? -1 : from.step),
                "--ranks=env"}));
    if (!child)
      return; // nor will the run start
    for (const auto begin = Clock::now(); !child->ended(); nap(20))
      if (secondsSince(begin) > kPassSeconds)
        child->signal(SIGKILL);
    if (const int status = *child->ended();
        !WIFEXITED(status) || WEXITSTATUS(status) != 0)
      complain(fmt::format("note: copies of hosts without a rank: {}",
                           describeEnd(status)));
  }

  // Of a run that is over: what it kept in memory goes, on all hosts, unless it
  // is all that is left of it.
  void endCopies(int code) {
    // This host need not be one of theirs; the log tells of all.
    const int64_t kept = std::max(newestCopy(copies_).value_or(0),
                                  lastStepOfLog(run_.log).value_or(0));
    if (code != 0 && code != 2 && kept > position().step) {
      complain(fmt::format("note: copies of the state stay in \"{}\" of each "
                           "host (merak-plan gather puts them together), until "
                           "another run with copies finds them, an hour later",
                           copiesPath(copies_)));
      return;
    }
    if (options_.launcher.empty()) {
      if (const Status status = removeCopies(copies_); !status.ok())
        complain("note: " + status.str());
      return;
    }
    const std::vector<std::string> remove{
        program_, fmt::format("--remove-copies={}", copies_)};
    std::vector<Look> looks;
    if (hosts_.empty()) {
      if (auto process = ChildProcess::start(
              launch(options_.launcher, ranks_, "", remove), true))
        looks.push_back({"", std::move(*process)});
    } else {
      std::set<std::string> there;
      for (const Host &host : without(hosts_, lost_))
        there.insert(host.name);
      looks = lookAt(there, remove);
    }
    while (!looks.empty()) {
      takeAnswers(looks);
      nap(50);
    }
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

  static void end(ChildProcess &child) {
    child.signal(SIGTERM);
    for (const auto begin = Clock::now();
         !child.ended() && secondsSince(begin) < kEndSeconds;) {
      nap(50);
    }
    child.signal(SIGKILL);
    while (!child.ended())
      nap(10);
  }

  // -------------------------------------------------------------------- hosts

  // A process that does nothing, or little, on a host.
  struct Look {
    std::string host;
    ChildProcess process;
    Clock::time_point begin = Clock::now();
  };

  std::vector<Look> lookAt(const std::set<std::string> &hosts,
                           const std::vector<std::string> &command = {
                               "true"}) const {
    std::vector<Look> looks;
    for (const std::string &host : hosts)
      if (auto process = ChildProcess::start(
              launch(options_.launcher, 1, host + ":1", command), true))
        looks.push_back({host, std::move(*process)});
    return looks;
  }

  // Those that answered by now; what is left over is without an answer yet.
  static std::set<std::string> takeAnswers(std::vector<Look> &looks) {
    std::set<std::string> answered;
    std::vector<Look> rest;
    for (Look &look : looks) {
      const std::optional<int> status = look.process.ended();
      if (status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0)
        answered.insert(look.host);
      else if (!status && secondsSince(look.begin) < kAnswerSeconds)
        rest.push_back(std::move(look));
    }
    looks.swap(rest);
    return answered;
  }

  void findLost() {
    std::set<std::string> all;
    for (const Host &host : hosts_)
      all.insert(host.name);
    if (all.empty())
      return;
    std::vector<Look> looks = lookAt(all);
    std::set<std::string> there;
    while (!looks.empty()) {
      there.merge(takeAnswers(looks));
      nap(50);
    }
    lost_.clear();
    for (const std::string &host : all)
      if (!there.count(host))
        lost_.insert(host);
  }

  // Whether a plan is faster with these hosts.
  bool isWorth(const std::set<std::string> &back, const Chosen &plan) const {
    std::set<std::string> lost = lost_;
    for (const std::string &host : back)
      lost.erase(host);
    const Result<Chosen> other = choose(lost);
    return other.ok() && other->seconds < plan.seconds;
  }

  const AgentRun &run_;
  const AgentOptions &options_;
  const PlanPrices &prices_;
  std::string program_; // this one
  int64_t ranks_ = 0;   // of the first plan
  std::vector<Host> hosts_;
  std::optional<PlanPool> pool_;   // with hosts
  Position first_;                 // --load, or nothing
  std::optional<Position> before_; // what --save had before
  int64_t last_ = 0;               // step to end after
  std::set<std::string> lost_;     // hosts
  std::string why_;                // the next run is started
  int64_t restarts_ = 0;
  std::string copies_;   // id of the run in its hosts' memory
  int64_t starts_ = 0;   // of the run
  int64_t steps_ = 0;    // that the run told of
  int64_t furthest_ = 0; // step that any run did
  int inVain_ = 0;
  sigset_t signals_;
};

} // namespace

int runAgent(const AgentRun &run, const AgentOptions &options,
             const PlanPrices &prices) {
  return Agent(run, options, prices).run();
}

} // namespace merak::runtime
