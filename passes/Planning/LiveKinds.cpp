#include "passes/Planning/LiveKinds.h"

#include <algorithm>

namespace merak::planning {

namespace {

// Positions of an action in a stage's list, ascending.
using Places = std::vector<int>;

// The most intervals [from, to] that share a position; both ascend. One more
// interval is one more at once where the one `most` before it has not ended. No
// branch that nobody can foresee: this is most of the work with copies.
int mostAtOnce(const Places &from, const Places &to) {
  size_t most = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t before = i - most;
    most += before >= to.size() || to[before] >= from[i];
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

// Until when sent ones are kept: a call beyond their last action, or until they
// have left if that is later.
Places whenSent(Places places, const std::vector<int> &departures) {
  for (size_t i = 0; i < places.size(); ++i) {
    ++places[i];
    if (i < departures.size())
      places[i] = std::max(places[i], departures[i] - 1);
  }
  return places;
}

} // namespace

CopyCounter::CopyCounter(const Schedule &schedule)
    : stages(schedule.stages), virtualStages(schedule.virtualStages()),
      transfers(schedule) {
  for (int v = 0; v < virtualStages; ++v)
    backward |= !transfers.placesOf(v, Action::B).empty();
}

PerLiveKind<int> CopyCounter::of(int v, int distance) const {
  const auto between = [&](int from, int to, Action action) {
    return Transfer{from % stages, to % stages,   action,
                    action,        from / stages, to / stages};
  };
  const auto arrivalsOf = [&](int from, Action action) -> std::vector<int> {
    const bool isThere = from >= 0 && from < virtualStages &&
                         (distance == 1 || from % stages != v % stages) &&
                         (action == Action::F || backward);
    return isThere ? transfers.arrivals(between(from, v, action))
                   : std::vector<int>();
  };
  const auto placesOf = [&](Action action, const Places &otherwise) -> auto & {
    const Places &own = transfers.placesOf(v, action);
    return own.empty() ? otherwise : own;
  };
  const Places &F = transfers.placesOf(v, Action::F);
  const Places &R = placesOf(Action::R, F);
  const Places &B = placesOf(Action::B, F);
  const Places &W = placesOf(Action::W, B);
  // First actions, of values made here and of received ones.
  const Places early[] = {whenReceived(F, arrivalsOf(v - distance, Action::F)),
                          whenReceived(R, {}),
                          whenReceived(B, arrivalsOf(v + distance, Action::B))};
  const Places *begins[2][3] = {{&F, &R, &B},
                                {&early[0], &early[1], &early[2]}};
  // Values that F makes go on to the next stage, those of B back.
  const std::vector<int> forward =
                             transfers.departures(between(v, v + 1, Action::F)),
                         back =
                             transfers.departures(between(v, v - 1, Action::B));
  // The same of last actions, as `lives` has them from F on.
  const Places lateF = whenSent(F, forward), lateR = whenSent(R, forward),
               lateB = whenSent(B, forward), lateW = whenSent(W, forward),
               lateBack = whenSent(B, back), lateBackW = whenSent(W, back);
  struct Life {
    int begin;
    const Places *end, *sent;
  };
  const Life lives[kLiveKinds] = {{0, &F, &lateF},    {0, &R, &lateR},
                                  {0, &B, &lateB},    {0, &W, &lateW},
                                  {1, &B, &lateBack}, {1, &W, &lateBackW},
                                  {2, &B, &lateBack}, {2, &W, &lateBackW}};
  PerLiveKind<int> copies;
  for (int life = 0; life < kLiveKinds; ++life) {
    const auto &[begin, end, late] = lives[life];
    for (bool received : {false, true})
      for (bool sent : {false, true})
        copies.at(LiveKind(life), received, sent) =
            mostAtOnce(*begins[received][begin], sent ? *late : *end);
  }
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
