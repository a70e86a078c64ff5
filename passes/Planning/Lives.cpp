#include "passes/Planning/Lives.h"

#include <algorithm>

namespace merak::planning {

namespace {

// Positions of an action in a stage's list, ascending.
using Places = std::vector<int>;

// The most intervals [from - before, to + after] that share a position.
int mostAtOnce(const Places &from, const Places &to, int before, int after) {
  size_t ended = 0, most = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    while (ended < to.size() && to[ended] + after < from[i] - before)
      ++ended;
    most = std::max(most, i + 1 - ended);
  }
  return int(most);
}

} // namespace

std::vector<PerLife<int>> copiesOf(const Schedule &schedule) {
  std::vector<PerLife<int>> copies(schedule.virtualStages());
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
