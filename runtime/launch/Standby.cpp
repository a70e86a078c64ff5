#include "runtime/launch/Standby.h"

#include "runtime/core/Output.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/launch/AgentLead.h"
#include "runtime/launch/StandbyFiles.h"
#include "runtime/launch/Succession.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <thread>

namespace merak::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using Names = std::set<std::string>;
using End = AgentLink::End;

// For an agent to be reached at first, and to say what it leads.
constexpr double kJoinSeconds = 20;
// Without anybody who leads, or may.
constexpr double kGiveUpSeconds = 300;
// For one try to reach another agent.
constexpr double kTrySeconds = 1;
// Of hosts, behind the one by which there were enough.
constexpr double kOthersSeconds = 3;
// For ranks of the run before to end.
constexpr double kEndSeconds = 30;

void nap(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}
void note(const std::string &what) { complain("note: " + what); }
int fail(const Status &problems, int code) {
  for (const std::string &message : problems.messages())
    complain("merak-run: error: " + message);
  return code;
}
int fail(const std::string &what, int code) {
  return fail(Status::error(what), code);
}

class Standby {
public:
  Standby(const AgentOptions &options, const PlanPrices &prices)
      : options_(options), prices_(prices) {}

  int run() {
    auto places = parseAgents(options_.standby);
    if (!places)
      return fail(places.status(), 2);
    auto token = agentToken();
    if (!token)
      return fail(token.status(), 2);
    mine_.token = std::move(*token);
    // The same port everywhere, unless two agents are on one host.
    auto listener = StoreListener::open(places->front().port);
    if (!listener)
      listener = StoreListener::open(0);
    if (!listener)
      return fail(listener.status(), 1);
    listener_ = std::move(*listener);
    mine_.port = listener_->port();
    if (const Status status = joinFirst(*places); !status.ok())
      return fail(status, 1);
    if (const Status status = prepare(); !status.ok()) {
      link_->leave();
      return fail(status, 2);
    }
    return follow();
  }

private:
  // ------------------------------------------------------------------- joining

  Status joinFirst(const std::vector<AgentPlace> &places) {
    Status problems;
    for (const AgentPlace &place : places) {
      bool final = false;
      auto link = AgentLink::join(place.host, place.port, mine_,
                                  kJoinSeconds / double(places.size()), final);
      if (link && hearsState(**link)) {
        link_ = std::move(*link);
        leader_ = place;
        return {};
      }
      problems.merge(link ? Status::error(fmt::format(
                                "the agent at {}:{} does not say what it leads",
                                place.host, place.port))
                          : link.status());
    }
    return problems;
  }

  bool hearsState(AgentLink &link) const {
    for (const auto begin = Clock::now();
         link.state().empty() && secondsSince(begin) < kJoinSeconds;)
      if (link.listen(0.1) != End::none)
        return false;
    return !link.state().empty();
  }

  // What is not here is said now.
  Status prepare() {
    auto state = decodeState(link_->state());
    if (!state)
      return state.status();
    state_ = std::move(*state);
    taken_ = link_->state();
    mine_.run = state_.situation.id;
    seconds_ = state_.task.options.agentSeconds;
    MERAK_RETURN_IF_ERROR(enterTask(state_.task));
    Status problems = checkTask(state_.task);
    if (problems.ok())
      problems = checkSaves();
    if (!problems.ok())
      return problems;
    for (const std::string &line : notesOfTask(state_.task))
      note(line);
    note(fmt::format("stands by for the run of \"{}\" that the agent on host "
                     "{} leads",
                     state_.task.run.plan, state_.situation.leader));
    return {};
  }

  // Whether --save is the folder that the run writes: its lock says whose it
  // is, which the leader tells soon after.
  Status checkSaves() {
    const std::string &folder = state_.task.run.save;
    if (folder.empty())
      return {};
    const auto begin = Clock::now();
    while (!(isSame_ = saverOf(folder) == state_.situation.saver) &&
           secondsSince(begin) < 3 * kTrySeconds) {
      if (link_->listen(0.1) != End::none)
        break;
      takeState();
    }
    if (isSame_)
      return {};
    here_ = newestIn(folder);
    const std::string what =
        fmt::format("--save: \"{}\" is another folder here than on host {}",
                    folder, state_.situation.leader);
    if (!state_.task.run.copies)
      return Status::error(what + ": nothing to go on from after a take-over");
    note(what + ": after a take-over only copies in memory count");
    return {};
  }

  // The same while the run goes on: it may have saved nothing when this agent
  // came. The leader tells of a new lock a second after it is there.
  void lookAtSaves() {
    if (state_.situation.saver.empty() ||
        saverOf(state_.task.run.save) == state_.situation.saver)
      same_ = Clock::now();
    if (!isSame_ || secondsSince(same_) < 5 * kTrySeconds)
      return;
    isSame_ = false;
    here_ = newestIn(state_.task.run.save);
    note(fmt::format("--save: \"{}\" is another folder here than on host {}: "
                     "after a take-over its checkpoints do not count",
                     state_.task.run.save, state_.situation.leader));
  }

  void takeState() {
    if (link_->state().empty() || link_->state() == taken_)
      return;
    taken_ = link_->state();
    if (auto state = decodeState(taken_))
      state_.situation = std::move(state->situation);
  }

  // ----------------------------------------------------------------- following

  int follow() {
    while (true) {
      const End end = link_->listen(0.1);
      takeState();
      if (end == End::over)
        return over();
      if (end == End::none && link_->secondsSilent() < seconds_) {
        lookAtSaves();
        continue;
      }
      if (const std::optional<int> code = succeed(end))
        return *code;
    }
  }

  int over() {
    link_->leave();
    const int code = link_->code();
    note(fmt::format("the run that the agent on host {} led is over: exit code "
                     "{}",
                     state_.situation.leader, code));
    return code;
  }

  // Without a leader: until this agent leads (the run's exit code), or follows
  // one again (nothing).
  std::optional<int> succeed(End end) {
    const auto lost = Clock::now() - std::chrono::milliseconds(
                                         int64_t(1e3 * link_->secondsSilent()));
    const bool isGone = end == End::gone;
    // Others were granted what it knows of: it may only join again.
    const bool isDropped = end == End::refused;
    cause_ = isGone ? "is gone"
             : end == End::none
                 ? fmt::format("has not answered for {:g} seconds", seconds_)
                 : "cannot be reached";
    note(fmt::format("the agent on host {} {}", state_.situation.leader,
                     cause_));
    members_ = link_->members();
    place_ = link_->place().value_or(members_.size());
    progress_ = {progressNow(), lost};
    bool isTold = false;
    while (secondsSince(lost) < kGiveUpSeconds) {
      if (end == End::none) { // it may only have been slow
        end = link_->listen(0.1);
        takeState();
        if (end == End::over)
          return over();
        if (end == End::none && link_->secondsSilent() < seconds_) {
          note(fmt::format("the agent on host {} answers again",
                           state_.situation.leader));
          return std::nullopt;
        }
      }
      const bool isTurn =
          secondsSince(lost) >= secondsToTurn(place_, isGone, seconds_);
      // A new connection comes sooner than the next word on one that was cut.
      if ((isGone ? isTold : end != End::none || isTurn) && joins(leader_))
        return std::nullopt;
      noteProgress();
      for (size_t i = 0; i < place_ && i < members_.size(); ++i)
        if (joins({members_[i].host, members_[i].port}))
          return std::nullopt;
      if (isDropped || !isTurn || (!isGone && runGoesOn())) {
        nap(0.1);
        continue;
      }
      const Names granted = ask();
      if (isEnough(granted))
        return lead(granted, secondsSince(lost));
      if (!std::exchange(isTold, true))
        note(fmt::format("{} of {} hosts grant this agent to go on, which is "
                         "too few: it may be the one that is cut off",
                         countOf(granted), voters().size()));
      nap(seconds_);
    }
    return fail(fmt::format("no agent leads the run for {:.0f} seconds, and "
                            "too few hosts grant this one to",
                            kGiveUpSeconds),
                1);
  }

  // Whether an agent leads there, whom this one follows from now on.
  bool joins(const AgentPlace &place) {
    bool final = false;
    auto link =
        AgentLink::join(place.host, place.port, mine_, kTrySeconds, final);
    if (!link || !hearsState(**link))
      return false;
    link_ = std::move(*link);
    leader_ = place;
    takeState();
    note(fmt::format("stands by for the agent on host {}",
                     state_.situation.leader));
    return true;
  }

  // ------------------------------------------------------------------- leading

  // Ranks that still train are under an agent that is there, whatever it does
  // not say.
  bool runGoesOn() const {
    return secondsSince(progress_.second) < 2 * seconds_;
  }
  void noteProgress() {
    if (const auto now = progressNow(); now != progress_.first)
      progress_ = {now, Clock::now()};
  }
  // The size of the log, and the newest copy in this host's memory.
  std::pair<uintmax_t, int64_t> progressNow() const {
    std::error_code error;
    const auto size = std::filesystem::file_size(state_.task.run.log, error);
    return {error ? 0 : size, newestCopy(state_.situation.id).value_or(0)};
  }

  Names allHosts() const {
    return namesOf(*parseHosts(state_.task.options.hosts));
  }
  Names voters() const {
    return namesOf(
        without(*parseHosts(state_.task.options.hosts), state_.situation.lost));
  }
  size_t countOf(const Names &granted) const {
    size_t count = 0;
    for (const std::string &host : voters())
      count += granted.count(host);
    return count;
  }
  bool isEnough(const Names &granted) const {
    return mayLead(countOf(granted), voters().size(), place_ == 0);
  }

  // Hosts that grant the next start to this agent.
  Names ask() const {
    HostLooks looks(state_.task.options.launcher, allHosts(),
                    {thisProgram(), grantArgument({{state_.situation.id,
                                                    state_.situation.next},
                                                   hostName()})});
    Names granted;
    std::optional<Clock::time_point> enough;
    while (looks.isWaiting() &&
           (!enough || secondsSince(*enough) < kOthersSeconds)) {
      granted.merge(looks.take());
      if (!enough && isEnough(granted))
        enough = Clock::now();
      nap(0.05);
    }
    return granted;
  }

  int lead(const Names &granted, double seconds) {
    link_->takeOver();
    AgentSituation &now = state_.situation;
    AgentSuccession succession;
    succession.id = now.id;
    succession.inherited = &now;
    succession.lostBefore = now.lost;
    succession.why = fmt::format(
        "the agent on host {} {}; that on host {} has taken over after {:.1f} "
        "s, as {} of {} hosts grant",
        now.leader, cause_, hostName(), seconds, countOf(granted),
        voters().size());
    now.lost.clear();
    for (const std::string &host : allHosts())
      if (!granted.count(host))
        now.lost.insert(host);
    if (now.restarts >= state_.task.options.restarts)
      return fail(fmt::format("{}; --restarts allows {}", succession.why,
                              state_.task.options.restarts),
                  1);
    ++now.restarts;
    ++now.takeOvers;
    if (!isSame_)
      now.before = here_;
    AgentLead lead(state_.task,
                   std::make_unique<AgentHub>(
                       AgentHub::Options{mine_.token, now.id, seconds_},
                       std::move(listener_)));
    succession.lead = &lead;
    if (const Status status = awaitSaver(state_.task.run.save, kEndSeconds);
        !status.ok())
      note(status.str());
    return runAgent(state_.task.run, state_.task.options, prices_, succession);
  }

  const AgentOptions &options_;
  const PlanPrices &prices_;
  std::unique_ptr<StoreListener> listener_; // until this one leads
  AgentLink::Options mine_;
  std::unique_ptr<AgentLink> link_;
  AgentPlace leader_;
  AgentState state_;
  std::string taken_; // the state's text
  double seconds_ = 5;
  bool isSame_ = true; // --save is the leader's
  Clock::time_point same_ = Clock::now();
  std::optional<AgentPosition> here_; // in it, if it is not
  // Of the leader that was lost.
  std::string cause_;
  std::vector<AgentMember> members_;
  size_t place_ = 0;
  // How far the run came, and since when.
  std::pair<std::pair<uintmax_t, int64_t>, Clock::time_point> progress_;
};

} // namespace

int runStandby(const AgentOptions &options, const PlanPrices &prices) {
  return Standby(options, prices).run();
}

} // namespace merak::runtime
