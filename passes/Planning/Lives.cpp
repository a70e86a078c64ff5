#include "passes/Planning/Lives.h"

#include <algorithm>

namespace merak::planning {

namespace {

// Positions of an action in a stage's list, by microbatch; -1: it has none.
using Places = std::vector<int>;

// The most intervals [from - before, to + after] that share a position.
int mostAtOnce(const Places &from, const Places &to, int before, int after) {
  std::vector<int> starts, ends;
  for (size_t i = 0; i < from.size(); ++i)
    if (from[i] >= 0 && to[i] >= 0) {
      starts.push_back(from[i] - before);
      ends.push_back(to[i] + after);
    }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());
  int most = 0;
  size_t ended = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    while (ends[ended] < starts[i])
      ++ended;
    most = std::max(most, int(i + 1 - ended));
  }
  return most;
}

} // namespace

std::vector<PerLife<int>> copiesOf(const Schedule &schedule) {
  std::vector<PerLife<int>> copies(schedule.virtualStages());
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::vector<Step> &order = schedule.order[stage];
    for (int chunk = 0; chunk < schedule.chunks; ++chunk) {
      Places places[4]; // F, R, B, W
      for (Places &of : places)
        of.assign(schedule.microbatches, -1);
      bool has[4] = {};
      for (size_t i = 0; i < order.size(); ++i) {
        const Step &step = order[i];
        int action = step.action == Action::F   ? 0
                     : step.action == Action::R ? 1
                     : step.action == Action::B ? 2
                     : step.action == Action::W ? 3
                                                : -1;
        if (action < 0 || step.chunk != chunk)
          continue;
        places[action][step.microbatch] = int(i);
        has[action] = true;
      }
      const Places &F = places[0], &R = has[1] ? places[1] : places[0];
      const Places &B = has[2] ? places[2] : places[0];
      const Places &W = has[3] ? places[3] : B;
      const std::pair<const Places *, const Places *> lives[kLives] = {
          {&F, &F}, {&F, &R}, {&F, &B}, {&F, &W},
          {&R, &B}, {&R, &W}, {&B, &B}, {&B, &W}};
      for (int life = 0; life < kLives; ++life)
        for (bool received : {false, true})
          for (bool sent : {false, true})
            copies[chunk * schedule.stages + stage].at(Life(life), received,
                                                       sent) =
                mostAtOnce(*lives[life].first, *lives[life].second, received,
                           sent);
    }
  }
  return copies;
}

} // namespace merak::planning
