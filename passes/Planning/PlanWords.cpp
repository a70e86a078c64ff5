#include "passes/Planning/PlanWords.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::planning {

// Groups of classes, and stages, that are named; of more, how many.
constexpr size_t kNamed = 4;

static std::string degreesOf(const PlanDecision &decision) {
  const Degrees &d = decision.degrees;
  const std::string microbatches =
      d.microbatches == 1 ? "1 microbatch"
                          : fmt::format("{} microbatches", d.microbatches);
  if (!decision.strategy.pipelines.empty())
    return fmt::format("stages on devices {}, {}",
                       joined(decision.strategy.pipelines).str(), microbatches);
  return fmt::format(
      "pp={} dp={} tp={}, {} of {}", d.pp, d.dp, d.tp, microbatches,
      decision.strategy.microbatch == 1
          ? "1 sample"
          : fmt::format("{} samples",
                        decision.strategy.microbatch.value_or(0)));
}

static std::string splitBy(const SearchReport &sharding) {
  std::vector<std::string> parts;
  size_t more = 0;
  for (const CandidateGroup &group : sharding.groups) {
    if (!group.chosen)
      continue;
    if (parts.size() == kNamed) {
      ++more;
      continue;
    }
    parts.push_back(fmt::format(
        "dimension {} of '{}'{}", group.example.dim, group.example.tensor,
        group.classes.size() > 1
            ? fmt::format(" and {} like it", group.classes.size() - 1)
            : ""));
  }
  if (parts.empty())
    return "";
  return fmt::format("tp splits {}{}", fmt::join(parts, ", "),
                     more ? fmt::format(" and {} more", more) : "");
}

static const char *storedBy(int64_t zero) {
  switch (zero) {
  case 1:
    return "zero 1: optimizer state in parts over dp, parameters gathered once "
           "a step";
  case 2:
    return "zero 2: gradients and optimizer state in parts over dp, parameters "
           "gathered once a step";
  case 3:
    return "zero 3: parameters, gradients and optimizer state in parts over "
           "dp, parameters gathered at each use";
  default:
    return "";
  }
}

static std::string recomputedBy(const PlanDecision &decision) {
  const auto ops =
      std::count_if(decision.stageOfOp.begin(), decision.stageOfOp.end(),
                    [](int stage) { return stage >= 0; });
  const auto again =
      std::count(decision.recompute.begin(), decision.recompute.end(), 1);
  return again == 0 ? "recomputes nothing"
                    : fmt::format("recomputes {} of {} ops", again, ops);
}

static std::string stagesOf(const Strategy &strategy) {
  if (!strategy.stageBegins || strategy.stageBegins->empty())
    return "";
  std::vector<std::string> names;
  for (const std::string &name : *strategy.stageBegins)
    if (names.size() < kNamed)
      names.push_back("'" + name + "'");
  const size_t more = strategy.stageBegins->size() - names.size();
  return fmt::format("stages begin at {}{}", fmt::join(names, ", "),
                     more ? fmt::format(" and {} more", more) : "");
}

std::vector<std::string> decisionsOf(const PlanDecision &decision) {
  const Strategy &strategy = decision.strategy;
  const bool isSearched = strategy.lists && *strategy.schedule == "auto";
  std::vector<std::string> words;
  auto add = [&](std::string text) {
    if (!text.empty())
      words.push_back(std::move(text));
  };
  add(degreesOf(decision));
  add("schedule " + (isSearched ? "searched" : *strategy.schedule) +
      (decision.chunks > 1 ? fmt::format(", {} parts a stage", decision.chunks)
                           : ""));
  if (strategy.sequence.value_or(0) > 0)
    add("sequence parallelism: tokens over tp where nothing else is split");
  if (decision.degrees.dp > 1)
    add(storedBy(strategy.zero.value_or(0)));
  if (decision.overlapLevel > 0)
    add(fmt::format("tensor-parallel overlap {}", decision.overlapLevel));
  add(recomputedBy(decision));
  if (strategy.castWeights)
    add(*strategy.castWeights == "step" ? "keeps converted parameters"
                                        : "converts parameters at each use");
  return words;
}

std::vector<std::string> placesOf(const PlanDecision &decision,
                                  const SearchReport &sharding) {
  std::vector<std::string> places;
  if (decision.degrees.tp > 1)
    places.push_back(splitBy(sharding));
  places.push_back(stagesOf(decision.strategy));
  std::erase(places, "");
  return places;
}

} // namespace merak::planning
