#include "passes/Planning/LiveKinds.h"

#include "passes/Planning/ScheduleSimulate.h"

#include <algorithm>

namespace merak::planning {

namespace {

// Positions of an action in a stage's list, ascending.
using Places = std::vector<int>;

// The most intervals [from, to + after] that share a position.
int mostAtOnce(const Places &from, const Places &to, int after) {
  size_t ended = 0, most = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    while (ended < to.size() && to[ended] + after < from[i])
      ++ended;
    most = std::max(most, i + 1 - ended);
  }
  return int(most);
}

// Where received values need room: a call before their action, or where they
// arrive at the latest if that is earlier.
Places whenReceived(Places places, const std::vector<int> &arrivals) {
  for (size_t i = 0; i < places.size(); ++i) {
    --places[i];
    if (i < arrivals.size())
      places[i] = std::min(places[i], arrivals[i]);
  }
  return places;
}

// The action of a list of places.
int kindOf(Action action) {
  return action == Action::F   ? 0
         : action == Action::R ? 1
         : action == Action::B ? 2
         : action == Action::W ? 3
                               : -1;
}

} // namespace

CopyCounter::CopyCounter(const Schedule &schedule)
    : stages(schedule.stages), microbatches(schedule.microbatches),
      times(schedule.stages), runs(schedule.virtualStages()) {
  SimulateOptions unit;
  unit.times = {{1, 1, 1, 1, 1, 1}};
  // Stages wait for their neighbours, whatever else they receive: what comes
  // from farther away is there before.
  const Timeline timeline = simulate(schedule, unit);
  finished = timeline.finished;
  for (int stage = 0; stage < stages; ++stage) {
    const std::vector<Step> &order = schedule.order[stage];
    times[stage].reserve(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const Step &step = order[i];
      if (i < timeline.stages[stage].size())
        times[stage].push_back({int(timeline.stages[stage][i].start),
                                int(timeline.stages[stage][i].end)});
      else
        times[stage].push_back({0, 0});
      const int kind = kindOf(step.action);
      if (kind < 0)
        continue;
      Runs &of = runs[size_t(step.chunk) * stages + stage];
      of.places[kind].push_back(int(i));
      of.microbatch[kind].push_back(step.microbatch);
    }
  }
  for (const Runs &of : runs)
    backward |= !of.places[kindOf(Action::B)].empty();
}

// As receiveDeadlines has it, of one transfer.
std::vector<int> CopyCounter::arrivals(int from, int to, Action action) const {
  const std::vector<Span> &sender = times[from % stages];
  const std::vector<Span> &receiver = times[to % stages];
  std::vector<int> of(microbatches, int(receiver.size()));
  if (!finished)
    return of;
  const std::vector<int> &places = runs[from].places[kindOf(action)];
  const std::vector<int> &microbatch = runs[from].microbatch[kindOf(action)];
  size_t ended = 0; // of the receiver's steps when the sender wants a buffer
  for (size_t i = 0; i < places.size(); ++i) {
    // The next run that is not the step right behind.
    size_t next = i + 1;
    if (next < places.size() && places[next] == places[i] + 1)
      ++next;
    if (next >= places.size())
      break;
    const int wanted = sender[places[next]].start;
    while (ended < receiver.size() && receiver[ended].end <= wanted)
      ++ended;
    of[microbatch[i]] = int(ended);
  }
  return of;
}

PerLiveKind<int> CopyCounter::of(int v, int distance) const {
  const auto arrivalsOf = [&](int from, Action action) -> std::vector<int> {
    const bool isThere = from >= 0 && from < int(runs.size()) &&
                         (distance == 1 || from % stages != v % stages) &&
                         (action == Action::F || backward);
    return isThere ? arrivals(from, v, action) : std::vector<int>();
  };
  const Places(&places)[4] = runs[v].places; // F, R, B, W
  const Places &F = places[0];
  const Places &R = places[1].empty() ? F : places[1];
  const Places &B = places[2].empty() ? F : places[2];
  const Places &W = places[3].empty() ? B : places[3];
  const Places early[] = {whenReceived(F, arrivalsOf(v - distance, Action::F)),
                          whenReceived(R, {}),
                          whenReceived(B, arrivalsOf(v + distance, Action::B))};
  const Places *begins[2][3] = {{&F, &R, &B},
                                {&early[0], &early[1], &early[2]}};
  const std::pair<int, const Places *> lives[kLiveKinds] = {
      {0, &F}, {0, &R}, {0, &B}, {0, &W}, {1, &B}, {1, &W}, {2, &B}, {2, &W}};
  PerLiveKind<int> copies;
  for (int life = 0; life < kLiveKinds; ++life)
    for (bool received : {false, true})
      for (bool sent : {false, true})
        copies.at(LiveKind(life), received, sent) = mostAtOnce(
            *begins[received][lives[life].first], *lives[life].second, sent);
  return copies;
}

std::vector<PerLiveKind<int>> copiesOf(const Schedule &schedule, int distance) {
  const CopyCounter counter(schedule);
  std::vector<PerLiveKind<int>> copies;
  for (int v = 0; v < schedule.virtualStages(); ++v)
    copies.push_back(counter.of(v, distance));
  return copies;
}

} // namespace merak::planning
