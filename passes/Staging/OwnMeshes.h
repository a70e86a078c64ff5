// The searches beside that for one mesh: for stages on meshes of their own, and
// for pipelines that share the microbatches.
#pragma once

#include "passes/Planning/PlanSearch.h"
#include "passes/Staging/Planner.h"

#include <optional>
#include <string>
#include <vector>

namespace merak {

// Plans of a search that may be taken, at most so many of different degrees.
inline constexpr size_t kFinalists = 4;

// Those of a search between which figures of all their tasks decide, best
// first. `sketches`: by these figures, else by prices.
std::vector<planning::PlanCandidate>
takenOf(planning::PlanSearch &of, const planning::SearchInput &with,
        const std::vector<planning::PlanCandidate> &all, bool sketches);

class OwnMeshes {
public:
  // `search` is that of `input`, for one mesh; `found` has what it found, and
  // gets the others. Lines are added to `report`, and times.
  OwnMeshes(const PlannerOptions &options, const planning::SearchInput &input,
            planning::PlanSearch &search, SearchResult &found,
            std::string &report, planning::SearchTimes &times)
      : options(options), input(input), search(search), found(found),
        report(report), times(times) {}

  void searchStages();
  void searchShares(); // if they are asked for
  void searchBoth();

private:
  std::optional<planning::SharesQuestion> askForShares();
  double fastestFound() const;
  void takeShared(std::vector<planning::SharedPlan> shares);
  void takeHealthyCuts(planning::SharesQuestion &question);

  const PlannerOptions &options;
  const planning::SearchInput &input;
  planning::PlanSearch &search;
  SearchResult &found;
  std::string &report;
  planning::SearchTimes &times;
};

} // namespace merak
