#include "passes/Planning/AutoSchedule.h"

#include "passes/Planning/ScheduleCheck.h"
#include "passes/Planning/ScheduleMemory.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace merak::planning {

namespace {

constexpr double kNoTime = std::numeric_limits<double>::infinity();
// List schedules of many microbatches that are made; the best of them by fewer
// microbatches are nearly always among so many.
constexpr size_t kLongLists = 6;

class Chooser {
public:
  explicit Chooser(const AutoProblem &problem) : problem(problem) {
    costs = problem.costs;
    costs.record = false;
    shape = problem.shape;
    shape.splitBackward = true;
  }

  Result<AutoChoice> run() {
    for (const std::string &name : scheduleNames())
      if (wanted(name)) {
        Result<Schedule> schedule = makeSchedule(name, shape);
        if (schedule.ok())
          consider(name, *schedule);
        else
          refuse(name, schedule.status().str());
      }
    if (shape.chunks == 1 && wanted("eager"))
      considerTransfers();
    if (wanted("list")) {
      considerLists("");
      if (shape.recomputes(shape.stages - 1)) {
        std::vector<bool> all(shape.stages);
        for (int s = 0; s < shape.stages; ++s)
          all[s] = s + 1 < shape.stages && shape.recomputes(s);
        shape.recomputeStages = all;
        considerLists(", last keeps");
      }
    }
    if (best < 0)
      return nothingFits();
    AutoChoice choice;
    choice.schedule = std::move(bestSchedule);
    choice.chosen = size_t(best);
    SimulateOptions record = problem.costs;
    record.record = true;
    choice.timeline = simulate(choice.schedule, record);
    choice.candidates = std::move(candidates);
    return choice;
  }

private:
  bool wanted(const std::string &name) const {
    if (problem.names.empty()) // with one chunk it is 1f1b
      return shape.chunks > 1 || !traitsOf(name).takesChunks;
    return std::find(problem.names.begin(), problem.names.end(), name) !=
           problem.names.end();
  }

  // Eager with as many forwards ahead as each boundary needs.
  void considerTransfers() {
    ScheduleOptions counted = shape;
    counted.warmup =
        transferWarmup(shape.stages, shape.microbatches, problem.costs);
    bool is1f1b = true;
    for (int s = 0; s < shape.stages; ++s)
      is1f1b &=
          counted.warmup[s] == std::min(shape.microbatches, shape.stages - s);
    if (is1f1b)
      return;
    Schedule schedule = *makeSchedule("eager", counted);
    schedule.name = "auto"; // another list than that of the name
    consider("eager per boundary", schedule);
  }

  void refuse(const std::string &name, const std::string &why) {
    candidates.push_back({name, 0, 0, {}, {}, why});
  }

  // True if `refuses` alone is against it.
  bool consider(const std::string &name, const Schedule &schedule) {
    Timeline timeline = simulate(schedule, costs);
    AutoCandidate candidate;
    candidate.name = name;
    candidate.seconds = timeline.total;
    candidate.idle = timeline.idleFraction();
    candidate.inFlight = inFlightPeak(schedule);
    candidate.peakBytes = timeline.peakBytes;
    candidate.misfit = misfit(schedule, timeline);
    bool isList = name.rfind("list", 0) == 0;
    const bool asks = candidate.misfit.empty() && problem.refuses &&
                      (!isList || canBeShown(candidate));
    if (asks)
      candidate.misfit = problem.refuses(schedule);
    if (isList && candidate.misfit.empty())
      leastOfLists = std::min(leastOfLists, timeline.total);
    candidates.push_back(candidate);
    if (!candidate.misfit.empty() || !better(candidate))
      return asks && !candidate.misfit.empty();
    best = int(candidates.size()) - 1;
    bestSchedule = schedule;
    return false;
  }

  // Of lists; only then the costly question is asked.
  bool canBeShown(const AutoCandidate &candidate) const {
    return candidate.seconds < leastOfLists || better(candidate);
  }

  std::string misfit(const Schedule &schedule, const Timeline &timeline) const {
    if (!timeline.finished)
      return "deadlock";
    if (int stage = incompleteStage(schedule); stage >= 0)
      return fmt::format("stage {} leaves out actions", stage);
    for (int s = 0; s < schedule.stages; ++s) {
      // One microbatch in flight for each stage from here on is what a pipeline
      // needs at least to keep all busy.
      int most = problem.sets;
      if (!hasRecompute(schedule, s))
        most += (schedule.stages - s - 1) * schedule.chunks;
      if (problem.sets > 0 && timeline.fullSets[s] > most)
        return fmt::format("stage {} holds {} activation sets, at most {} are "
                           "allowed",
                           s, timeline.fullSets[s], most);
      if (problem.memoryLimit.empty() || timeline.peakBytes.empty())
        continue;
      double limit =
          problem.memoryLimit[problem.memoryLimit.size() == 1 ? 0 : s];
      if (timeline.peakBytes[s] > limit)
        return fmt::format("stage {} needs {:.0f} bytes, the limit is {:.0f}",
                           s, timeline.peakBytes[s], limit);
    }
    return "";
  }

  // A stage whose list lacks a forward or a backward; -1: none. Nothing else
  // would tell a truncated list from a fast one.
  static int incompleteStage(const Schedule &schedule) {
    const int64_t expected = int64_t(schedule.microbatches) * schedule.chunks;
    for (int s = 0; s < schedule.stages; ++s)
      for (Action action : {Action::F, Action::B})
        if (std::count_if(schedule.order[s].begin(), schedule.order[s].end(),
                          [&](const Step &step) {
                            return step.action == action;
                          }) != expected)
          return s;
    return -1;
  }

  static bool hasRecompute(const Schedule &schedule, int stage) {
    return std::any_of(
        schedule.order[stage].begin(), schedule.order[stage].end(),
        [](const Step &step) { return step.action == Action::R; });
  }

  // Faster; as fast with less memory. The first of equals stays.
  bool better(const AutoCandidate &candidate) const {
    if (best < 0)
      return true;
    const AutoCandidate &other = candidates[best];
    if (candidate.seconds != other.seconds)
      return candidate.seconds < other.seconds;
    auto sum = [](const auto &values) {
      return std::accumulate(values.begin(), values.end(), 0.0);
    };
    if (sum(candidate.peakBytes) != sum(other.peakBytes))
      return sum(candidate.peakBytes) < sum(other.peakBytes);
    return sum(candidate.inFlight) < sum(other.inFlight);
  }

  void considerLists(const char *variant) {
    int p = shape.stages * shape.chunks, m = shape.microbatches;
    std::vector<std::vector<int>> flights;
    auto addFlight = [&](const std::vector<int> &flight) {
      if (std::find(flights.begin(), flights.end(), flight) == flights.end())
        flights.push_back(flight);
    };
    for (int extra : {0, 1, 2, p}) {
      std::vector<int> flight(p);
      for (int s = 0; s < p; ++s)
        flight[s] = std::min(m, p - s + extra);
      addFlight(flight);
    }
    for (int slack : {0, 1})
      addFlight(transferWarmup(p, m, problem.costs, slack));
    std::set<int> sets{1, 2, 3, shape.stages};
    if (problem.sets > 0) {
      sets.erase(sets.upper_bound(problem.sets), sets.end());
      sets.insert(problem.sets);
    }
    static const std::pair<Preference, const char *> kPreferences[] = {
        {Preference::RecomputeFirst, "B r F R W"},
        {Preference::ForwardFirst, "B F r R W"},
        {Preference::WeightsEarly, "B r W F R"},
        {Preference::WeightsFirst, "W B r F R"}};
    std::vector<ListTask> tasks;
    const int64_t most = std::max<int64_t>(1, problem.effort / (4LL * p * m));
    for (const auto &[preference, text] : kPreferences)
      for (const std::vector<int> &flight : flights)
        for (int count : sets)
          if (int64_t(tasks.size()) < most)
            tasks.push_back(
                {preference, text + std::string(variant), flight, count});
    keepBest(tasks);
    known.clear();
    for (const ListTask &task : tasks)
      considerList(task);
  }

  struct ListTask {
    Preference preference;
    std::string text;
    std::vector<int> flight;
    int sets = 0;
  };

  ListOptions optionsOf(const ListTask &task) const {
    ListOptions list;
    list.shape = shape;
    list.costs = problem.costs;
    list.preference = task.preference;
    list.inFlight = task.flight;
    list.sets = task.sets;
    list.memoryLimit = problem.memoryLimit;
    return list;
  }

  // A list that was made, and what came out.
  struct Known {
    Preference preference;
    ListScope scope = {};
    AutoCandidate candidate = {};
    bool wasRefused = false; // by AutoProblem::refuses
  };

  // Most bounds hold nothing up: many tasks have the list of another one.
  static const Known *findSame(const std::vector<Known> &made,
                               const ListOptions &options) {
    for (const Known &one : made)
      if (one.preference == options.preference && one.scope.covers(options))
        return &one;
    return nullptr;
  }

  // Where there are many microbatches: the lists that are the fastest of fewer.
  void keepBest(std::vector<ListTask> &tasks) const {
    const auto few = steadyLengths(shape.stages, shape.microbatches);
    if (!few || tasks.size() <= kLongLists)
      return;
    std::vector<std::pair<double, size_t>> byTime;
    std::vector<Known> shorter;
    std::set<double> times;
    for (size_t i = 0; i < tasks.size(); ++i) {
      ListOptions list = optionsOf(tasks[i]);
      list.shape.microbatches = few->longer;
      if (times.size() >= kLongLists)
        list.limit = *std::next(times.begin(), kLongLists - 1);
      const Known *same = findSame(shorter, list);
      if (!same) {
        Known &made = shorter.emplace_back(list.preference);
        Result<Schedule> schedule = listSchedule(list, &made.scope);
        made.candidate.seconds =
            schedule.ok() ? simulate(*schedule, costs).total : kNoTime;
        same = &made;
      }
      byTime.emplace_back(same->candidate.seconds, i);
      times.insert(same->candidate.seconds);
    }
    std::sort(byTime.begin(), byTime.end());
    std::vector<ListTask> kept;
    // What takes the same time is the same list, but for rare exceptions.
    double last = -1;
    for (const auto &[seconds, i] : byTime)
      if (kept.size() < kLongLists && std::exchange(last, seconds) != seconds)
        kept.push_back(std::move(tasks[i]));
    tasks = std::move(kept);
  }

  void considerList(const ListTask &task) {
    std::string name = fmt::format("list {}, {} sets, {} in flight", task.text,
                                   task.sets, task.flight.front());
    ListOptions options = optionsOf(task);
    options.limit = leastOfLists; // those beyond are neither taken nor shown
    if (const Known *same = findSame(known, options))
      return considerAgain(name, *same);
    Known made = {task.preference};
    Result<Schedule> schedule = listSchedule(options, &made.scope);
    if (schedule.ok())
      made.wasRefused = consider(name, *schedule);
    else
      refuse(name, schedule.status().str());
    made.candidate = candidates.back();
    known.push_back(std::move(made));
  }

  // A list that was made for another task. It is no better than itself, so all
  // that can differ is whether `refuses` would still be asked.
  void considerAgain(const std::string &name, const Known &same) {
    AutoCandidate candidate = same.candidate;
    candidate.name = name;
    if (same.wasRefused && !canBeShown(candidate))
      candidate.misfit.clear();
    candidates.push_back(std::move(candidate));
  }

  Status nothingFits() const {
    Status status;
    std::set<std::string> said;
    for (const AutoCandidate &candidate : candidates)
      if (said.insert(candidate.misfit).second)
        status.merge(
            Status::error(fmt::format("schedule '{}' does not do: {}",
                                      candidate.name, candidate.misfit)));
    return status.ok() ? Status::error("no schedule to choose from") : status;
  }

  const AutoProblem &problem;
  SimulateOptions costs;
  ScheduleOptions shape;
  std::vector<AutoCandidate> candidates;
  int best = -1;
  Schedule bestSchedule;
  double leastOfLists = kNoTime;
  std::vector<Known> known; // lists of the same shape
};

} // namespace

std::string AutoChoice::str() const {
  std::string text;
  auto isList = [&](size_t i) {
    return candidates[i].name.rfind("list", 0) == 0;
  };
  size_t lists = 0, best = candidates.size();
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!isList(i))
      continue;
    ++lists;
    if (candidates[i].misfit.empty() &&
        (best == candidates.size() ||
         candidates[i].seconds < candidates[best].seconds))
      best = i;
  }
  if (chosen < candidates.size() && isList(chosen))
    best = chosen;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const AutoCandidate &c = candidates[i];
    if (isList(i) && i != best)
      continue;
    text += fmt::format("{} {:<38} ", i == chosen ? "*" : " ", c.name);
    if (c.misfit.empty())
      text += fmt::format("{:>12.6g}  bubble {:>4.1f} %  in flight {}",
                          c.seconds, 100 * c.idle, fmt::join(c.inFlight, " "));
    else
      text += c.misfit;
    text += isList(i) ? fmt::format("; the best of {} lists\n", lists) : "\n";
  }
  return text;
}

Result<AutoChoice> makeAuto(const AutoProblem &problem) {
  return Chooser(problem).run();
}

} // namespace merak::planning
