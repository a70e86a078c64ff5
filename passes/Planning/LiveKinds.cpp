#include "passes/Planning/LiveKinds.h"

#include "passes/Planning/ReceiveDeadlines.h"

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

} // namespace

std::vector<PerLiveKind<int>> copiesOf(const Schedule &schedule, int distance) {
  std::vector<PerLiveKind<int>> copies(schedule.virtualStages());
  // Stages wait for their neighbours, whatever else they receive.
  std::vector<Transfer> transfers = chainTransfers(schedule, distance);
  const size_t counted = transfers.size();
  if (distance > 1)
    for (const Transfer &transfer : chainTransfers(schedule))
      transfers.push_back(transfer);
  std::vector<std::vector<int>> arrivals =
      receiveDeadlines(schedule, transfers);
  auto arrivalsAt = [&](int stage, int chunk,
                        Action action) -> const std::vector<int> & {
    static const std::vector<int> none;
    for (size_t t = 0; t < counted; ++t)
      if (transfers[t].toStage == stage && transfers[t].toChunk == chunk &&
          transfers[t].toAction == action)
        return arrivals[t];
    return none;
  };
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::vector<Step> &order = schedule.order[stage];
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      Places places[4]; // F, R, B, W
      for (size_t i = 0; i < order.size(); ++i) {
        const Step &step = order[i];
        int action = step.action == Action::F   ? 0
                     : step.action == Action::R ? 1
                     : step.action == Action::B ? 2
                     : step.action == Action::W ? 3
                                                : -1;
        if (action >= 0 && step.chunk == chunk)
          places[action].push_back(int(i));
      }
      const Places &F = places[0];
      const Places &R = places[1].empty() ? F : places[1];
      const Places &B = places[2].empty() ? F : places[2];
      const Places &W = places[3].empty() ? B : places[3];
      const Places early[] = {
          whenReceived(F, arrivalsAt(stage, chunk, Action::F)),
          whenReceived(R, {}),
          whenReceived(B, arrivalsAt(stage, chunk, Action::B))};
      const Places *begins[2][3] = {{&F, &R, &B},
                                    {&early[0], &early[1], &early[2]}};
      const std::pair<int, const Places *> lives[kLiveKinds] = {
          {0, &F}, {0, &R}, {0, &B}, {0, &W},
          {1, &B}, {1, &W}, {2, &B}, {2, &W}};
      for (int life = 0; life < kLiveKinds; ++life)
        for (bool received : {false, true})
          for (bool sent : {false, true})
            copies[chunk * schedule.stages + stage].at(LiveKind(life), received,
                                                       sent) =
                mostAtOnce(*begins[received][lives[life].first],
                           *lives[life].second, sent);
    }
  }
  return copies;
}

} // namespace merak::planning
