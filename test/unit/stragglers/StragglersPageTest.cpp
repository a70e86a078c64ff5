// docs/Stragglers.md shows what is planned. To rewrite its tables after a
// change: MERAK_UPDATE_DOCS=1 stragglers_test --gtest_filter='StragglersPage*'
#include "Situations.h"

#include "passes/Stragglers/Restart.h"

#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace merak::stragglers {
namespace {

const char *kPage = MERAK_SOURCE_DIR "/docs/Stragglers.md";

std::string timeStr(int64_t time) {
  return fmt::format("{:.1f}", double(time) / kOne);
}

Replanning replanned(const Problem &problem, Objective objective) {
  ReplanOptions options;
  options.search.objective = objective;
  const Result<Replanning> found =
      replan(problem, uniformPlan(problem), options);
  EXPECT_TRUE(found.ok()) << found.status().str();
  EXPECT_EQ(verify(problem, found->best().plan).str(), "");
  return *found;
}

// Ratios of uniform plans to the found ones.
struct Means {
  double asItIs = 0, restart = 0;
  int count = 0;
};

std::string situationRow(int64_t devices, int s, Means &means) {
  const Problem problem = situationProblem(s, devices);
  const Replanning found = replanned(problem, Objective::Steady);
  const int64_t restart = scoreOf(problem, *restartedPlan(problem)).steady;
  const auto steady = [&](Reaction reaction) {
    return found.reached[size_t(reaction)].score.steady;
  };
  const double best = double(found.best().score.steady);
  // Never above what layers in the old groups reach.
  EXPECT_LE(best, double(steady(Reaction::Layers)));
  const double asItIs = double(steady(Reaction::None)) / best;
  means.asItIs += std::log(asItIs);
  means.restart += std::log(double(restart) / best);
  ++means.count;
  return fmt::format("| {} | S{} | {} | {} | {} | {} | {} | {} | {:.3f} | "
                     "{:.2f} | {:.2f} |\n",
                     devices, s, timeStr(steady(Reaction::None)),
                     timeStr(restart), timeStr(steady(Reaction::Microbatches)),
                     timeStr(steady(Reaction::Layers)),
                     timeStr(found.best().score.steady),
                     timeStr(int64_t(found.bound)), best / found.bound, asItIs,
                     double(restart) / best);
}

std::string situationTable() {
  std::string text =
      "| devices | | as it is | restart | microbatches | layers | grouping | "
      "bound | of bound | x as it is | x restart |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (int64_t devices : {32, 64, 128, 256, 512, 1024}) {
    Means means;
    for (int s = 1; s <= kSituations; ++s)
      text += situationRow(devices, s, means);
    text += fmt::format("| {} | mean | | | | | | | | {:.2f} | {:.2f} |\n",
                        devices, std::exp(means.asItIs / means.count),
                        std::exp(means.restart / means.count));
  }
  return text;
}

std::string goldenTable() {
  std::string text =
      "| situation | uniform | layers | golden best | found | of best | of "
      "theory | proved |\n|---|---|---|---|---|---|---|---|\n";
  for (const auto &entry : golden()["cases"]) {
    const Problem problem = goldenProblem(entry);
    const Replanning found = replanned(problem, Objective::Steady);
    const double steady = double(found.best().score.steady) / kOne;
    const double best = entry["best"]["objective"];
    EXPECT_LE(steady, 1.02 * best);
    text += fmt::format(
        "| {} | {} | {} | {:.1f} | {:.1f} | {:.3f} | {:.3f} | {} |\n",
        entry["name"].get<std::string>(),
        timeStr(found.reached[0].score.steady),
        timeStr(found.reached[size_t(Reaction::Layers)].score.steady), best,
        steady, steady / best, steady * kOne / theoryTime(problem),
        found.optimal ? "yes" : "");
  }
  return text;
}

// Both times under both objectives.
std::string objectiveTable() {
  std::string text =
      "| devices | | layers: steady | filled | `steady`: steady | filled | "
      "`filled`: steady | filled |\n|---|---|---|---|---|---|---|---|\n";
  for (int64_t devices : {32, 64})
    for (int s = 1; s <= kSituations; ++s) {
      const Problem problem = situationProblem(s, devices);
      const Replanning steady = replanned(problem, Objective::Steady);
      const Replanning filled = replanned(problem, Objective::Filled);
      text += fmt::format("| {} | S{} |", devices, s);
      for (const Score &score : {steady.reached[size_t(Reaction::Layers)].score,
                                 steady.best().score, filled.best().score})
        text += fmt::format(" {} | {} |", timeStr(score.steady),
                            timeStr(score.filled));
      text += "\n";
    }
  return text;
}

// The page with the table below each comment computed anew.
std::string computed(const std::string &page) {
  std::istringstream lines(page);
  std::string out, line;
  bool skips = false;
  while (std::getline(lines, line)) {
    skips = skips && !line.empty() && line[0] == '|';
    if (!skips)
      out += line + "\n";
    std::string table;
    if (line == "<!-- table of the golden file -->")
      table = goldenTable();
    else if (line == "<!-- table of situations -->")
      table = situationTable();
    else if (line == "<!-- table of objectives -->")
      table = objectiveTable();
    skips = skips || !table.empty();
    out += table;
  }
  return out;
}

TEST(StragglersPage, ShowsWhatIsPlanned) {
  std::ostringstream page;
  page << std::ifstream(kPage).rdbuf();
  const std::string expected = computed(page.str());
  if (std::getenv("MERAK_UPDATE_DOCS"))
    std::ofstream(kPage) << expected;
  else
    EXPECT_EQ(page.str(), expected);
}

} // namespace
} // namespace merak::stragglers
