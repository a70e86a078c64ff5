#include "runtime/launch/Replan.h"

#include "runtime/launch/Rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>

namespace merak::runtime {

using Clock = std::chrono::steady_clock;

// Steps that a step's time is the median of.
constexpr size_t kWindow = 5;
// Steps after a switch that say what it brought; the first ones touch memory.
constexpr int64_t kWarm = 2, kMeasured = 12;
// Plans beside the fastest that are looked at for what they move.
constexpr double kAlmost = 1.05;
// A switch, as long as none was seen: memory of a host copies some GB a second,
// and what else there is to do takes a part of a second.
constexpr double kBytesPerSecond = 1e9, kSwitchSeconds = 0.1;
// To end all processes and have a launcher begin to start others.
constexpr double kEndSeconds = 1;

static double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

static std::string leafOf(const std::string &path) {
  return std::filesystem::path(path).lexically_normal().filename().string();
}

Replanner::Replanner(const ReplanOptions &options, PlanPool pool,
                     MakeSession make)
    : options_(options), pool_(std::move(pool)), make_(std::move(make)),
      now_(&pool_.plans().front()), watch_(now_->planned),
      notes_(pool_.readFolder()) {}

Replanner::~Replanner() {
  stop_ = true;
  if (thread_.joinable())
    thread_.join();
}

double Replanner::stepSeconds() const {
  std::vector<double> sorted(seconds_.begin(), seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

// ------------------------------------------------- in the thread beside

void Replanner::think(const Session &session) {
  const auto begin = Clock::now();
  thought_->problems.merge(pool_.provide(thought_->situation, stop_));
  thought_->problems.merge(choose(session));
  thought_->seconds = since(begin);
  done_ = true;
}

// Seconds of a step; 0 with a problem.
static double simulate(const PlanPool &pool, const PooledPlan &plan,
                       const elastic::Situation &situation, Status &problems) {
  auto seconds = pool.prices().stepSeconds(
      plan.plan, ratesOfRanks(plan.plan.file, situation));
  problems.merge(seconds.status());
  return seconds ? *seconds : 0;
}

// A device that is slower by less still helps; so does the plan that has it.
static bool leavesOutSevere(const std::vector<int> &now,
                            const std::vector<int> &then,
                            const elastic::Situation &situation) {
  return std::any_of(now.begin(), now.end(), [&](int device) {
    return !std::binary_search(then.begin(), then.end(), device) &&
           situation[size_t(device)] >= rates::Thresholds().severe;
  });
}

// The fastest without some device that is severely slow, on devices that the
// agent has.
void Replanner::chooseAway(const Session &session, Status &problems) {
  Thought &thought = *thought_;
  const std::vector<int> devices = devicesOf(session.plan().file);
  Away away;
  for (const PooledPlan &plan : pool_.plans()) {
    const std::vector<int> others = devicesOf(plan.plan.file);
    if (size_t(others.back()) >= options_.places ||
        !leavesOutSevere(devices, others, thought.situation))
      continue;
    const double seconds = simulate(pool_, plan, thought.situation, problems);
    if (seconds > 0 && (!away.to || seconds < away.choice.simulated))
      away = {&plan, {seconds, 0, 0}};
  }
  if (!away.to)
    return;
  // All of the state is written and read again.
  auto moves =
      migration::planMigration(session.plan(), away.to->plan,
                               {{devices, devicesOf(away.to->plan.file),
                                 std::vector<int>(pool_.devices())}});
  if (!moves) {
    problems.merge(Status(moves.status()).withContext(away.to->path));
    return;
  }
  const migration::DeviceBytes total = moves->total();
  away.choice.movedBytes = total.kept + total.copied + total.sent;
  away.choice.stallSeconds = startSeconds_ + kEndSeconds +
                             double(away.choice.movedBytes) / kBytesPerSecond;
  thought.away = std::move(away);
}

Status Replanner::choose(const Session &session) {
  Thought &thought = *thought_;
  Status problems;
  auto simulated = [&](const PooledPlan &plan) {
    return simulate(pool_, plan, thought.situation, problems);
  };
  thought.running.simulated = simulated(*now_);
  std::vector<std::pair<double, const PooledPlan *>> others;
  // A process stays on its device.
  const auto fits = [&](const planpb::PlanFile &plan) {
    return make_ || devicesOf(plan) == devicesOf(session.plan().file);
  };
  for (const PooledPlan &plan : pool_.plans())
    if (&plan != now_ && fits(plan.plan.file))
      if (const double seconds = simulated(plan); seconds > 0)
        others.push_back({seconds, &plan});
  std::stable_sort(
      others.begin(), others.end(),
      [](const auto &a, const auto &b) { return a.first < b.first; });
  std::vector<elastic::Choice> choices;
  std::vector<const PooledPlan *> plans;
  std::vector<migration::Migration> migrations;
  for (const auto &[seconds, plan] : others) {
    if (seconds > kAlmost * others.front().first)
      break;
    migration::Places places{
        devicesOf(session.plan().file), devicesOf(plan->plan.file), {}};
    places.nodes.resize(pool_.devices());
    auto moves = migration::planMigration(session.plan(), plan->plan, {places});
    Status sound = moves.status();
    if (moves)
      sound = migration::verifyMigration(*moves, session.plan(), plan->plan);
    if (!sound.ok()) {
      problems.merge(std::move(sound).withContext(plan->path));
      continue;
    }
    const migration::DeviceBytes total = moves->total();
    const int64_t moved = total.copied + total.sent;
    choices.push_back(
        {seconds, moved, kSwitchSeconds + double(moved) / kBytesPerSecond});
    plans.push_back(plan);
    migrations.push_back(std::move(*moves));
  }
  if (!make_ && options_.places > 0 && startSeconds_ > 0)
    chooseAway(session, problems);
  thought.verdict = elastic::judge(thought.running, choices);
  if (thought.verdict.best < 0)
    return problems;
  const auto best = size_t(thought.verdict.best);
  thought.to = plans[best];
  thought.choice = choices[best];
  thought.migration = std::move(migrations[best]);
  if (thought.verdict.choice < 0 || options_.mode != "auto" || !make_)
    return problems;
  auto made = make_(thought.to->plan, {&session, &thought.migration});
  if (made)
    thought.session = std::move(*made);
  else
    problems.merge(Status(made.status()).withContext(thought.to->path));
  return problems;
}

// --------------------------------------------------------- between steps

Result<ReplanNews> Replanner::after(const StepResult &step, int64_t stepsLeft,
                                    Session &session) {
  ReplanNews news;
  std::swap(news.notes, notes_);
  ++stepsSince_;
  seconds_.push_back(step.seconds);
  if (seconds_.size() > kWindow)
    seconds_.pop_front();
  tellMeasured(step, news);
  if (thread_.joinable()) {
    if (!done_)
      return Result<ReplanNews>(std::move(news));
    thread_.join();
    decide(step, stepsLeft, news);
    Status moved;
    if (thought_ && thought_->session)
      moved = switchPlans(step, session, news);
    if (!moved.ok())
      return std::move(moved).withContext("the plan was to be changed");
    return Result<ReplanNews>(std::move(news));
  }
  if (thought_ || step.rates.empty() || stepsLeft < 1)
    return Result<ReplanNews>(std::move(news));
  auto situation = watch_.look(step.rates);
  if (!situation || seconds_.size() < kWindow)
    return Result<ReplanNews>(std::move(news));
  thought_ = std::make_unique<Thought>();
  thought_->situation = *situation;
  thought_->running = {stepSeconds(), 0, stepsLeft};
  thought_->from = now_;
  done_ = false;
  thread_ = std::thread([this, &session] { think(session); });
  return Result<ReplanNews>(std::move(news));
}

void Replanner::tell(const StepResult &step, const char *what,
                     ReplanNews &news) {
  const Thought &thought = *thought_;
  nlohmann::ordered_json entry = {{"what", what},
                                  {"why", thought.verdict.why},
                                  {"rates", elastic::str(thought.situation)},
                                  {"from", thought.from->path},
                                  {"step_seconds", thought.running.measured},
                                  {"planning_seconds", thought.seconds}};
  if (thought.to) {
    entry["to"] = thought.to->path;
    entry["predicted_step_seconds"] = thought.verdict.stepSeconds;
    entry["moved_bytes"] = thought.choice.movedBytes;
    entry["kept_bytes"] = thought.migration.total().kept;
    entry["predicted_stall_seconds"] = thought.choice.stallSeconds;
  }
  if (!thought.problems.ok())
    entry["problems"] = thought.problems.messages();
  news.entries.push_back({{"step", step.step}, {"replan", std::move(entry)}});
}

// With what is known by now: planning took some steps.
void Replanner::decide(const StepResult &step, int64_t stepsLeft,
                       ReplanNews &news) {
  Thought &thought = *thought_;
  if (!thought.problems.ok())
    news.notes.push_back(fmt::format("step {}: planning again: {}", step.step,
                                     thought.problems.messages().front()));
  if (!step.rates.empty() &&
      elastic::differ(elastic::situationOf(step.rates), thought.situation)) {
    thought_.reset(); // of devices as they no longer are
    return;
  }
  watch_.answer(thought.situation);
  thought.running.measured = stepSeconds();
  thought.running.stepsLeft = stepsLeft;
  if (goesAway())
    return; // all processes end
  std::vector<elastic::Choice> choices;
  if (thought.to)
    choices.push_back(thought.choice);
  thought.verdict = elastic::judge(thought.running, choices);
  const std::string rates = elastic::str(thought.situation);
  const bool suggests = options_.mode == "suggest";
  if (thought.verdict.choice >= 0 && !suggests && make_ && !thought.session)
    thought.verdict = {-1, 0, 0, 0, "its session could not be made"};
  if (thought.verdict.choice >= 0 && !suggests)
    return; // it is taken
  tell(step, suggests && thought.verdict.choice >= 0 ? "suggest" : "keep",
       news);
  news.notes.push_back(
      thought.verdict.choice < 0
          ? fmt::format("step {}: slow devices: {}; the plan stays: {}",
                        step.step, rates, thought.verdict.why)
          : fmt::format("step {}: slow devices: {}; \"{}\" would be faster: {}",
                        step.step, rates, thought.to->path,
                        thought.verdict.why));
  thought_.reset();
}

// A plan on other devices is better than all on those that have ranks.
bool Replanner::goesAway() {
  Thought &thought = *thought_;
  if (!thought.away || options_.mode != "auto")
    return false;
  std::vector<elastic::Choice> here;
  if (thought.to)
    here.push_back(thought.choice);
  elastic::Verdict verdict =
      elastic::judgeRestart(thought.running, here, {thought.away->choice});
  if (verdict.choice < 0)
    return false;
  thought.verdict = std::move(verdict);
  thought.to = thought.away->to;
  thought.choice = thought.away->choice;
  thought.restarts = true;
  return true;
}

std::string Replanner::announced() const {
  if (!thought_ || !done_ || thread_.joinable() || make_)
    return "";
  return (thought_->restarts ? kRestart : "") + thought_->to->path;
}

void Replanner::restarts(const StepResult &step, ReplanNews &news) {
  const Thought &thought = *thought_;
  tell(step, "restart", news);
  nlohmann::ordered_json &entry = news.entries.back()["replan"];
  entry.erase("kept_bytes");
  entry["devices"] = devicesOf(thought.to->plan.file);
  const std::vector<int> now = devicesOf(thought.from->plan.file),
                         then = devicesOf(thought.to->plan.file);
  std::vector<int> out;
  std::set_difference(now.begin(), now.end(), then.begin(), then.end(),
                      std::back_inserter(out));
  entry["left_out"] = out;
  news.notes.push_back(fmt::format(
      "step {}: slow devices: {}; is to be started again with \"{}\", without "
      "device{} {}: {}",
      step.step, elastic::str(thought.situation), leafOf(thought.to->path),
      out.size() == 1 ? "" : "s", fmt::join(out, ", "), thought.verdict.why));
}

void Replanner::kept(const StepResult &step, const Status &why,
                     ReplanNews &news) {
  thought_->problems = why;
  thought_->verdict.why = "not all ranks can take another one";
  tell(step, "keep", news);
  news.notes.push_back(fmt::format("step {}: the plan stays: {}", step.step,
                                   why.messages().back()));
  thought_.reset();
}

Status Replanner::switchPlans(const StepResult &step, Session &session,
                              ReplanNews &news) {
  const auto begin = Clock::now();
  auto moved = thought_->session->takeState(session, thought_->migration);
  if (!moved)
    return moved.status();
  news.session = std::move(thought_->session);
  switched(step, since(begin), news);
  return {};
}

void Replanner::switched(const StepResult &step, double stallSeconds,
                         ReplanNews &news) {
  const Thought &thought = *thought_;
  tell(step, "switch", news);
  news.entries.back()["replan"]["stall_seconds"] = stallSeconds;
  news.notes.push_back(fmt::format(
      "step {}: slow devices: {}; goes on with \"{}\": {} (moved {:.3g} MB in "
      "{:.3g} s)",
      step.step, elastic::str(thought.situation), leafOf(thought.to->path),
      thought.verdict.why, 1e-6 * double(thought.choice.movedBytes),
      stallSeconds));
  now_ = thought.to;
  predicted_ = thought.verdict.stepSeconds;
  seconds_.clear();
  stepsSince_ = 0;
  thought_.reset();
}

// What a switch brought.
void Replanner::tellMeasured(const StepResult &step, ReplanNews &news) {
  if (stepsSince_ == kWarm)
    seconds_.clear();
  if (predicted_ == 0 || stepsSince_ < kMeasured)
    return;
  news.notes.push_back(fmt::format(
      "step {}: under \"{}\" a step takes {:.4g} ms, {:.4g} ms were predicted",
      step.step, leafOf(now_->path), 1e3 * stepSeconds(), 1e3 * predicted_));
  news.entries.push_back({{"step", step.step},
                          {"replan",
                           {{"what", "measured"},
                            {"to", now_->path},
                            {"step_seconds", stepSeconds()},
                            {"predicted_step_seconds", predicted_}}}});
  predicted_ = 0;
}

} // namespace merak::runtime
