// docs/Schedules.md shows what the simulator computes. To rewrite the page
// after a change: MERAK_UPDATE_DOCS=1 planning_test
// --gtest_filter='SchedulesPage*'
#include "passes/Planning/AutoSchedule.h"
#include "passes/Planning/ScheduleCheck.h"

#include <cstdlib>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace merak::planning {
namespace {

const char *kPage = MERAK_SOURCE_DIR "/docs/Schedules.md";

// "p=4" in the words of a comment.
double field(const std::string &comment, const std::string &key,
             double missing = -1) {
  size_t at = comment.find(" " + key + "=");
  if (at == std::string::npos && missing >= 0)
    return missing;
  EXPECT_NE(at, std::string::npos) << comment;
  return std::atof(comment.c_str() + at + key.size() + 2);
}

SimulateOptions timesOf(const std::string &comment, double recompute) {
  ActionTimes times;
  times.F = field(comment, "F");
  times.R = recompute;
  times.B = field(comment, "B");
  times.W = field(comment, "W", 0);
  SimulateOptions options;
  options.times = {times};
  return options;
}

Schedule make(const std::string &name, int p, int m, bool recompute,
              int chunks = 1) {
  ScheduleOptions options;
  options.stages = p;
  options.microbatches = m;
  options.recompute = recompute;
  options.chunks = chunks;
  Result<Schedule> schedule = makeSchedule(name, options);
  EXPECT_TRUE(schedule.ok()) << schedule.status().str();
  return *schedule;
}

// The schedules whose point is the place of the recomputation.
bool recomputesOnPage(const std::string &name) {
  return name == "early" || name == "last" || name == "scp";
}

// What auto chooses where all stages but the last recompute.
Schedule automatic(int p, int m, int sets, const SimulateOptions &costs) {
  AutoProblem problem;
  problem.shape.stages = p;
  problem.shape.microbatches = m;
  problem.shape.recomputeStages.assign(p, true);
  problem.shape.recomputeStages[p - 1] = false;
  problem.costs = costs;
  problem.sets = sets;
  return makeAuto(problem)->schedule;
}

std::string timeline(const std::string &comment) {
  std::istringstream words(comment);
  std::string skip, name;
  words >> skip >> skip >> name;
  double R = field(comment, "R");
  int p = int(field(comment, "p")), m = int(field(comment, "m"));
  Schedule schedule =
      name == "auto"
          ? automatic(p, m, int(field(comment, "K")), timesOf(comment, R))
          : make(name, p, m, R > 0, int(field(comment, "v", 1)));
  Timeline timeline = simulate(schedule, timesOf(comment, R));
  return fmt::format("```\np={} m={}, T = {}, bubble {:.1f} %\n{}```\n",
                     schedule.stages, schedule.microbatches, timeline.total,
                     100 * timeline.idleFraction(), timelineStr(timeline));
}

// A microbatch takes the same work under every schedule: two chunks take half
// the time each, and zb has half of B as its W.
std::string table(const std::string &comment) {
  std::string text = "| p, m |";
  for (const std::string &name : scheduleNames())
    text += fmt::format(" {} |", name);
  text += " auto |\n|---|";
  for (size_t i = 0; i < scheduleNames().size() + 1; ++i)
    text += "---|";
  text += "\n";
  for (auto [p, m] : {std::pair(2, 8), {4, 8}, {4, 16}, {8, 32}}) {
    text += fmt::format("| {}, {} |", p, m);
    for (const std::string &name : scheduleNames()) {
      bool recompute = recomputesOnPage(name) || name == "1f1b";
      int chunks = name == "interleaved" ? 2 : 1;
      Schedule schedule = make(name, p, m, recompute, chunks);
      SimulateOptions costs =
          timesOf(comment, recompute ? field(comment, "R") : 0);
      ActionTimes &times = costs.times[0];
      times.F /= chunks;
      times.B /= name == "zb" ? 2 : chunks;
      times.W = name == "zb" ? times.B : 0;
      text += fmt::format(" {}; {} |", simulate(schedule, costs).total,
                          fmt::join(inFlightPeak(schedule), " "));
    }
    SimulateOptions costs = timesOf(comment, field(comment, "R"));
    costs.times[0].W = costs.times[0].B /= 2;
    Schedule schedule = automatic(p, m, 2, costs);
    text += fmt::format(" {}; {} |\n", simulate(schedule, costs).total,
                        fmt::join(inFlightPeak(schedule), " "));
  }
  return text;
}

// The page with what stands below each comment computed anew.
std::string computed(const std::string &page) {
  std::istringstream lines(page);
  std::string out, line;
  while (std::getline(lines, line)) {
    out += line + "\n";
    bool isTimeline = line.rfind("<!-- timeline ", 0) == 0;
    bool isTable = line.rfind("<!-- table ", 0) == 0;
    if (!isTimeline && !isTable)
      continue;
    out += isTimeline ? timeline(line) : table(line);
    // Skip what stood there: a code block or a table.
    std::streampos before = lines.tellg();
    std::string old;
    bool inBlock = false;
    while (std::getline(lines, old)) {
      if (old == "```" && (inBlock = !inBlock) == false) {
        before = lines.tellg();
        break;
      }
      if (!inBlock && (old.empty() || old[0] != '|'))
        break;
      before = lines.tellg();
    }
    lines.clear();
    lines.seekg(before);
  }
  return out;
}

TEST(SchedulesPage, ShowsWhatTheSimulatorComputes) {
  std::ostringstream page;
  page << std::ifstream(kPage).rdbuf();
  std::string expected = computed(page.str());
  if (std::getenv("MERAK_UPDATE_DOCS"))
    std::ofstream(kPage) << expected;
  else
    EXPECT_EQ(page.str(), expected);
}

TEST(SchedulesPage, HasASectionForEverySchedule) {
  std::ostringstream page;
  page << std::ifstream(kPage).rdbuf();
  std::vector<std::string> names = scheduleNames();
  names.push_back("auto");
  for (const std::string &name : names) {
    EXPECT_NE(page.str().find("\n### " + name + "\n"), std::string::npos)
        << name;
    EXPECT_NE(page.str().find("\n<!-- timeline " + name + " "),
              std::string::npos)
        << name << " has no timeline";
  }
}

// The timelines above the generators, in the order of the names.
TEST(SchedulesPage, CommentsShowWhatTheSimulatorComputes) {
  std::ifstream source(MERAK_SOURCE_DIR "/passes/Planning/Schedule.cpp");
  std::string line, found, expected;
  while (std::getline(source, line))
    if (line.rfind("//   S", 0) == 0)
      found += line.substr(5) + "\n";
  for (const std::string &name : scheduleNames())
    if (name != "interleaved") // too wide, on the page only
      expected += timelineStr(simulate(
          make(name, 2, 4, recomputesOnPage(name)),
          timesOf(name == "zb" ? "<!-- F=1 B=1 W=1 -->" : "<!-- F=1 B=2 -->",
                  1)));
  EXPECT_EQ(found, expected);
}

// Formulas of the page.
TEST(SchedulesPage, Formulas) {
  for (int p = 2; p <= 6; ++p)
    for (int m = std::max(4, p); m <= 3 * p; ++m) {
      auto total = [&](const char *name, double R) {
        ActionTimes times;
        times.R = R;
        SimulateOptions options;
        options.times = {times};
        return simulate(make(name, p, m, R > 0), options).total;
      };
      EXPECT_EQ(total("gpipe", 0), (m + p - 1) * 3.0);
      EXPECT_EQ(total("1f1b", 1), (m + p - 1) * 4.0);
      EXPECT_EQ(total("early", 1), m * 4.0 + (p - 1) * 3.0);
      EXPECT_EQ(total("scp", 1), m * 4.0 + (p - 2) * 3.0);
    }
}

} // namespace
} // namespace merak::planning
