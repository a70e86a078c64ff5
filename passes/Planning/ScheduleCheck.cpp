#include "passes/Planning/ScheduleCheck.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <set>
#include <tuple>

namespace merak::planning {

namespace {

std::string where(int stage, const Step &step) {
  return fmt::format("stage {} {}", stage, str(step));
}

// The graph of all steps: what must end before what can start.
class StepGraph {
public:
  StepGraph(const Schedule &schedule, const std::vector<Transfer> &transfers)
      : schedule(schedule), index(size_t(schedule.stages) * 6 *
                                      schedule.chunks * schedule.microbatches,
                                  -1) {
    for (int stage = 0; stage < schedule.stages; ++stage) {
      begin.push_back(int(stageOf.size()));
      for (size_t i = 0; i < schedule.order[stage].size(); ++i) {
        const Step &step = schedule.order[stage][i];
        index[slot(stage, step.action, step.chunk, step.microbatch)] =
            int(stageOf.size());
        stageOf.push_back(stage);
        waits.emplace_back();
      }
    }
    begin.push_back(int(stageOf.size()));
    for (int stage = 0; stage < schedule.stages; ++stage)
      for (int node = begin[stage] + 1; node < begin[stage + 1]; ++node)
        waits[node].push_back({node - 1, -1});
    for (size_t t = 0; t < transfers.size(); ++t)
      addTransfer(transfers[t], int(t));
  }

  struct Wait {
    int node;
    int transfer; // -1: order of the stage
  };

  int find(int stage, Action action, int chunk, int microbatch) const {
    return index[slot(stage, action, chunk, microbatch)];
  }
  const Step &step(int node) const {
    return schedule.order[stageOf[node]][node - begin[stageOf[node]]];
  }

  // Nodes in an order in which all can run; fewer than all on a deadlock.
  std::vector<int> order() const {
    std::vector<int> open(waits.size()), ready, out;
    std::vector<std::vector<int>> after(waits.size());
    for (size_t n = 0; n < waits.size(); ++n) {
      open[n] = int(waits[n].size());
      for (const Wait &wait : waits[n])
        after[wait.node].push_back(int(n));
      if (!open[n])
        ready.push_back(int(n));
    }
    for (size_t i = 0; i < ready.size(); ++i)
      for (int next : after[ready[i]])
        if (--open[next] == 0)
          ready.push_back(next);
    return ready;
  }

  // "stage 0 F2 waits for stage 1 B0, which waits for ..." of a deadlock.
  std::string cycle() const {
    std::vector<char> ran(waits.size(), 0);
    for (int node : order())
      ran[node] = 1;
    int at = 0;
    while (at < int(ran.size()) && ran[at])
      ++at;
    std::vector<int> path;
    std::vector<char> seen(waits.size(), 0);
    while (!seen[at]) {
      seen[at] = 1;
      path.push_back(at);
      for (const Wait &wait : waits[at])
        if (!ran[wait.node]) {
          at = wait.node;
          break;
        }
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), at));
    path.push_back(at);
    std::vector<std::string> names;
    for (int node : path)
      names.push_back(where(stageOf[node], step(node)));
    return fmt::format("{}", fmt::join(names, " waits for "));
  }

  const Schedule &schedule;
  std::vector<int> stageOf, begin;
  std::vector<std::vector<Wait>> waits;

private:
  void addTransfer(const Transfer &t, int number) {
    for (int i = 0; i < schedule.microbatches; ++i) {
      int from = find(t.fromStage, t.fromAction, t.fromChunk, i);
      int to = find(t.toStage, t.toAction, t.toChunk, i);
      if (from < 0 || to < 0)
        continue;
      waits[to].push_back({from, number});
      // A recomputation that is not early waits for the gradient.
      int recompute = find(t.toStage, Action::R, t.toChunk, i);
      if (t.toAction == Action::B && recompute >= 0 && !step(recompute).early)
        waits[recompute].push_back({from, number});
    }
  }

  size_t slot(int stage, Action action, int chunk, int microbatch) const {
    return ((size_t(stage) * 6 + int(action)) * schedule.chunks + chunk) *
               schedule.microbatches +
           microbatch;
  }

  std::vector<int> index; // node of each slot; -1: not in the schedule
};

class Checker {
public:
  Checker(const Schedule &schedule, const CheckOptions &options)
      : schedule(schedule), options(options) {}

  Status run() {
    if (int(schedule.order.size()) != schedule.stages ||
        schedule.microbatches < 1 || schedule.chunks < 1)
      problem(fmt::format(
          "a schedule of {} stages, {} microbatches and {} chunks has {} lists",
          schedule.stages, schedule.microbatches, schedule.chunks,
          schedule.order.size()));
    if (!status.ok())
      return status;
    checkShape();
    for (int stage = 0; stage < schedule.stages; ++stage)
      checkStage(stage);
    checkBackwards();
    if (!complete)
      return status; // the rest relies on each action being there once
    StepGraph graph(schedule, options.transfers.empty()
                                  ? chainTransfers(schedule)
                                  : options.transfers);
    if (graph.order().size() != graph.waits.size())
      problem("deadlock: " + graph.cycle());
    std::vector<int> peak = inFlightPeak(schedule);
    for (size_t s = 0; s < options.inFlight.size() && s < peak.size(); ++s)
      if (peak[s] > options.inFlight[s])
        problem(fmt::format("stage {} has {} microbatches in flight, at most "
                            "{} are allowed",
                            s, peak[s], options.inFlight[s]));
    return status;
  }

private:
  void problem(const std::string &text) {
    status.merge(Status::error(
        options.file.empty() ? text : options.file + ": " + text));
  }
  void problemAt(int stage, int position, const std::string &text) {
    problem(fmt::format("stage {}, position {}: {}", stage, position, text));
  }
  // A problem after which the other checks would report its consequences.
  void gap(const std::string &text) {
    complete = false;
    problem(text);
  }

  void checkShape() {
    auto expect = [&](int wanted, int found, const char *what) {
      if (wanted > 0 && found != wanted)
        gap(fmt::format("expected {} {}, found {}", wanted, what, found));
    };
    expect(options.stages, schedule.stages, "stages");
    expect(options.microbatches, schedule.microbatches, "microbatches");
    expect(options.chunks, schedule.chunks, "chunks a stage");
  }

  void checkStage(int stage) {
    // Positions per action, chunk and microbatch.
    std::map<std::tuple<Action, int, int>, int> at;
    std::map<std::pair<Action, int>, int> latest; // microbatch, per chunk
    std::set<std::pair<Action, int>> unordered;   // reported once
    const std::vector<Step> &order = schedule.order[stage];
    int firstForward = int(order.size());
    bool backward = false;
    for (int i = 0; i < int(order.size()); ++i) {
      const Step &step = order[i];
      if (step.microbatch < 0 || step.microbatch >= schedule.microbatches ||
          step.chunk < 0 || step.chunk >= schedule.chunks) {
        complete = false;
        problemAt(stage, i,
                  fmt::format("{} is outside of {} microbatches and {} chunks",
                              str(step), schedule.microbatches,
                              schedule.chunks));
        continue;
      }
      auto [first, isNew] =
          at.insert({{step.action, step.chunk, step.microbatch}, i});
      if (!isNew) {
        complete = false;
        problemAt(stage, i,
                  fmt::format("{} is a duplicate, first at position {}",
                              str(step), first->second));
        continue;
      }
      if (step.action == Action::F)
        firstForward = std::min(firstForward, i);
      if (step.action == Action::P && i > firstForward)
        problemAt(stage, i, str(step) + " stands after the first forward");
      if (step.action == Action::U && i + 1 != int(order.size()))
        problemAt(stage, i, "U is not the last action");
      backward |= step.action == Action::B;
      std::pair<Action, int> kind{step.action, step.chunk};
      auto [before, isFirst] = latest.insert({kind, step.microbatch});
      if (step.microbatch < before->second && step.action != Action::R &&
          unordered.insert(kind).second)
        problemAt(stage, i,
                  fmt::format("{} stands after microbatch {}, but sums take "
                              "microbatches 0 first",
                              str(step), before->second));
      before->second = step.microbatch;
    }
    auto position = [&](Action action, int chunk, int i) {
      auto it = at.find({action, chunk, i});
      return it == at.end() ? -1 : it->second;
    };
    auto before = [&](Action first, Action second, int chunk, int i) {
      int a = position(first, chunk, i), b = position(second, chunk, i);
      if (a >= 0 && b >= 0 && a > b)
        problemAt(stage, b,
                  fmt::format("{} stands before {}", str({second, i, chunk}),
                              str({first, i, chunk, true})));
    };
    for (int chunk = 0; chunk < schedule.chunks; ++chunk)
      for (int i = 0; i < schedule.microbatches; ++i) {
        // What a stage does for one microbatch, it does for all.
        for (Action action :
             {Action::P, Action::F, Action::R, Action::B, Action::W}) {
          bool wanted = latest.count({action, chunk}) || action == Action::F ||
                        (action == Action::B && backward);
          if (wanted && position(action, chunk, i) < 0)
            gap(fmt::format("stage {}: {} is missing", stage,
                            str({action, i, chunk, true})));
        }
        before(Action::F, Action::R, chunk, i);
        before(Action::F, Action::B, chunk, i);
        before(Action::R, Action::B, chunk, i);
        before(Action::B, Action::W, chunk, i);
      }
    for (const auto &[kind, microbatch] : latest)
      if ((kind.first == Action::R || kind.first == Action::W) && !backward)
        gap(fmt::format("stage {} has {} but no B", stage, letter(kind.first)));
  }

  // A stage without B in a schedule that has B elsewhere would starve others.
  void checkBackwards() {
    std::vector<int> with, without;
    for (int stage = 0; stage < schedule.stages; ++stage) {
      bool has = false;
      for (const Step &step : schedule.order[stage])
        has |= step.action == Action::B;
      (has ? with : without).push_back(stage);
    }
    if (!with.empty())
      for (int stage : without)
        gap(fmt::format("stage {} has no B, stage {} has", stage,
                        with.front()));
  }

  const Schedule &schedule;
  const CheckOptions &options;
  bool complete = true; // every action stands once
  Status status;
};

} // namespace

Status checkSchedule(const Schedule &schedule, const CheckOptions &options) {
  return Checker(schedule, options).run();
}

std::vector<int> inFlightPeak(const Schedule &schedule) {
  std::vector<int> peaks;
  for (const std::vector<Step> &order : schedule.order) {
    int now = 0, peak = 0;
    for (const Step &step : order) {
      now += step.action == Action::F;
      now -= step.action == Action::B;
      peak = std::max(peak, now);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

} // namespace merak::planning
