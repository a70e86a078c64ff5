// The list scheduler against an independent one (golden results and trace) and
// its formula; `auto` against every named schedule on random problems.
#include "passes/Planning/AutoSchedule.h"
#include "passes/Planning/ScheduleCheck.h"

#include "test/unit/planning/GoldenFile.h"

#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

namespace merak::planning {
namespace {

using test::golden;

ListOptions problem(int p, int m, double F, double R, double B, double W,
                    int sets) {
  ListOptions list;
  list.shape.stages = p;
  list.shape.microbatches = m;
  list.shape.recomputeStages.assign(p, true);
  list.shape.recomputeStages[p - 1] = false;
  list.costs.times = {{0, F, R, B, W}};
  list.sets = sets;
  return list;
}

AutoProblem automatic(const ListOptions &list) {
  AutoProblem out;
  out.shape = list.shape;
  out.costs = list.costs;
  out.sets = list.sets;
  return out;
}

TEST(ListSchedule, ResultsEqualGolden) {
  int compared = 0;
  for (const auto &entry : golden()["list_scheduler"]["results"]) {
    ListOptions list = problem(entry["p"], entry["m"], entry["F"], entry["R"],
                               entry["B_in"], entry["W"], entry["K"]);
    Schedule schedule = *listSchedule(list);
    Status status = checkSchedule(schedule);
    EXPECT_TRUE(status.ok()) << status.str();
    Timeline timeline = simulate(schedule, list.costs);
    EXPECT_EQ(timeline.total, entry["total"].get<double>()) << entry;
    for (int sets : timeline.fullSets)
      EXPECT_LE(sets, entry["K"].get<int>());
    // The shifted critical path with the backward in one piece.
    ScheduleOptions shape = list.shape;
    SimulateOptions whole = list.costs;
    whole.times[0].B += whole.times[0].W;
    whole.times[0].W = 0;
    EXPECT_EQ(simulate(*makeSchedule("scp", shape), whole).total,
              entry["scp_total"].get<double>());
    EXPECT_LE(makeAuto(automatic(list))->timeline.total,
              entry["total"].get<double>());
    ++compared;
  }
  EXPECT_EQ(compared, 30);
}

TEST(ListSchedule, TraceEqualsGolden) {
  const auto &entry = golden()["list_scheduler"]["trace"];
  ListOptions list = problem(entry["p"], entry["m"], entry["F"], entry["R"],
                             entry["B_in"], entry["W"], entry["K"]);
  Timeline timeline = simulate(*listSchedule(list), list.costs);
  EXPECT_EQ(timeline.total, entry["total"].get<double>());
  ASSERT_EQ(timeline.stages.size(), entry["stages"].size());
  for (size_t s = 0; s < timeline.stages.size(); ++s) {
    const auto &expected = entry["stages"][s];
    ASSERT_EQ(timeline.stages[s].size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const TimedStep &timed = timeline.stages[s][i];
      EXPECT_EQ(std::string(1, letter(timed.step.action)), expected[i][0]);
      EXPECT_EQ(timed.step.microbatch, expected[i][1]);
      EXPECT_EQ(timed.start, expected[i][2]);
      EXPECT_EQ(timed.end, expected[i][3]);
    }
  }
}

// T = m(F+R+B+W) + (p-2)(F+B) + max(0, B-R) with one activation set.
TEST(ListSchedule, FormulaWithOneSet) {
  int compared = 0;
  for (int p = 3; p <= 7; ++p)
    for (int m = 2 * p; m <= 4 * p; m += p)
      for (double R : {4.0, 7.0, 10.0})
        for (double B : {7.0, 10.0, 12.0, 15.0})
          for (double W : {6.0, 10.0, 12.0}) {
            const double F = 10;
            ListOptions list = problem(p, m, F, R, B, W, 1);
            EXPECT_EQ(simulate(*listSchedule(list), list.costs).total,
                      m * (F + R + B + W) + (p - 2) * (F + B) +
                          std::max(0.0, B - R))
                << p << " " << m << " " << R << " " << B << " " << W;
            ++compared;
          }
  EXPECT_EQ(compared, 540);
}

// Whatever the times and preferences: passes the checker, runs to the end.
TEST(ListSchedule, NoDeadlockAnywhere) {
  std::mt19937 random(41);
  for (int p = 1; p <= 9; ++p)
    for (int m = 1; m <= 4 * p; ++m) {
      ListOptions list;
      list.shape.stages = p;
      list.shape.microbatches = m;
      list.shape.splitBackward = random() % 2;
      for (int s = 0; s < p; ++s) {
        list.shape.recomputeStages.push_back(random() % 2);
        list.costs.times.push_back({0, 1.0 + random() % 5, 1.0 + random() % 5,
                                    1.0 + random() % 5, 1.0 + random() % 5});
      }
      list.costs.forwardTransfer = random() % 4;
      list.sets = int(random() % 4);
      list.preference = Preference(random() % 4);
      Result<Schedule> schedule = listSchedule(list);
      ASSERT_TRUE(schedule.ok()) << schedule.status().str();
      Status status = checkSchedule(*schedule);
      ASSERT_TRUE(status.ok()) << tableStr(*schedule) << status.str();
    }
}

// Stages of unlike times and memory; all that keeps a list from being the same
// with other bounds.
ListOptions unlikeStages(std::mt19937 &random) {
  ListOptions list;
  list.shape.stages = 2 + int(random() % 4);
  list.shape.chunks = 1 + int(random() % 2);
  list.shape.microbatches = list.shape.stages * (1 + int(random() % 3));
  const int parts = list.shape.stages * list.shape.chunks;
  for (int v = 0; v < parts; ++v) {
    if (v < list.shape.stages)
      list.shape.recomputeStages.push_back(random() % 2);
    list.costs.times.push_back({0, 1.0 + random() % 5, 1.0 + random() % 5,
                                1.0 + random() % 5, 1.0 + random() % 5});
    list.costs.memory.push_back({1, 2, 1, 0.5, 0.25});
    list.costs.boundaries.push_back({double(random() % 3), 1, 0, 0});
  }
  if (random() % 2)
    list.costs.weightSums = {{1, 0, Action::W, Action::W, 0, 0}};
  if (random() % 2)
    list.memoryLimit = {4.0 * parts};
  return list;
}

// Also where `auto` has them from a list that it made before.
TEST(AutoSchedule, CandidatesAreTheListsOfTheirNames) {
  const std::map<std::string, Preference> preferences = {
      {"B r F R W", Preference::RecomputeFirst},
      {"B F r R W", Preference::ForwardFirst},
      {"B r W F R", Preference::WeightsEarly},
      {"W B r F R", Preference::WeightsFirst}};
  std::mt19937 random(47);
  int compared = 0, givenUp = 0;
  for (int round = 0; round < 40; ++round) {
    ListOptions list = unlikeStages(random);
    const int p = list.shape.stages, m = list.shape.microbatches;
    if (list.shape.chunks > 1 || p < 4)
      continue;
    list.shape.recomputeStages[p - 1] = false; // one variant
    list.costs.boundaries.clear();
    AutoProblem problem = automatic(list);
    problem.sets = 0;
    problem.names = {"list"};
    problem.memoryLimit = list.memoryLimit;
    Result<AutoChoice> choice = makeAuto(problem);
    if (!choice.ok())
      continue;
    for (const AutoCandidate &candidate : choice->candidates) {
      char text[10];
      int first = 0;
      ASSERT_EQ(std::sscanf(candidate.name.c_str(),
                            "list %9[^,], %d sets, %d in flight", text,
                            &list.sets, &first),
                3);
      const int extra = first - p;
      if (first == m || extra == p - 1) // not known, with slack
        continue;
      list.preference = preferences.at(text);
      list.inFlight.clear();
      for (int s = 0; s < p; ++s)
        list.inFlight.push_back(std::min(m, p - s + extra));
      Result<Schedule> schedule = listSchedule(list);
      ASSERT_TRUE(schedule.ok()) << schedule.status().str();
      const Timeline timeline = simulate(*schedule, list.costs);
      ++compared;
      if (candidate.misfit.rfind("takes longer", 0) == 0) {
        EXPECT_GT(timeline.total, choice->timeline.total) << candidate.name;
        ++givenUp;
        continue;
      }
      EXPECT_EQ(candidate.seconds, timeline.total) << candidate.name;
      EXPECT_EQ(candidate.peakBytes, timeline.peakBytes) << candidate.name;
    }
  }
  EXPECT_GT(compared, 100);
  EXPECT_GT(givenUp, compared / 10);
  EXPECT_LT(givenUp, compared);
}

TEST(ListSchedule, OnlyWhatTakesLongerIsGivenUp) {
  std::mt19937 random(53);
  int made = 0, givenUp = 0;
  for (int round = 0; round < 300; ++round) {
    ListOptions list = unlikeStages(random);
    list.shape.update = random() % 2;
    for (ActionTimes &times : list.costs.times)
      times.U = double(random() % 8);
    for (int s = 0; s < list.shape.stages; ++s)
      list.costs.setup.push_back(double(random() % 9) - 2);
    list.preference = Preference(random() % 4);
    Result<Schedule> whole = listSchedule(list);
    if (!whole.ok())
      continue;
    const double total = simulate(*whole, list.costs).total;
    for (double part : {0.5, 0.9, 0.99, 1.0, 1.1}) {
      list.limit = part * total;
      Result<Schedule> limited = listSchedule(list);
      if (!limited.ok()) {
        EXPECT_LT(part, 1);
        ++givenUp;
        continue;
      }
      EXPECT_EQ(*limited, *whole);
      ++made;
    }
  }
  EXPECT_GT(made, 300);
  EXPECT_GT(givenUp, 300);
}

TEST(ListSchedule, ScopeIsOfListsThatAreTheSame) {
  std::mt19937 random(43);
  int same = 0, of = 0;
  for (int round = 0; round < 100; ++round) {
    ListOptions list = unlikeStages(random);
    const int parts = list.shape.stages * list.shape.chunks;
    struct Made {
      ListOptions options;
      ListScope scope;
      Result<Schedule> schedule;
    };
    std::vector<Made> all;
    list.preference = Preference(random() % 4);
    for (int extra : {0, 1, 3})
      for (int sets : {0, 1, 2, 3, 4}) {
        list.inFlight.assign(parts, 1);
        for (int v = 0; v < parts; ++v)
          list.inFlight[v] = parts - v + extra;
        list.sets = sets;
        ListScope scope;
        Result<Schedule> schedule = listSchedule(list, &scope);
        EXPECT_TRUE(scope.covers(list));
        all.push_back({list, scope, std::move(schedule)});
      }
    for (const Made &one : all)
      for (const Made &other : all) {
        if (&one == &other || !one.scope.covers(other.options))
          continue;
        ++same;
        EXPECT_EQ(one.schedule.ok(), other.schedule.ok());
        if (one.schedule.ok())
          EXPECT_EQ(*one.schedule, *other.schedule);
      }
    of += int(all.size() * (all.size() - 1));
  }
  // Neither never nor always.
  EXPECT_GT(same, of / 20);
  EXPECT_LT(same, of * 19 / 20);
}

// In unit times: what the issue of the shifted critical path promises.
TEST(AutoSchedule, BeatsTheShiftedCriticalPath) {
  const std::map<std::pair<int, int>, double> expected = {
      {{4, 8}, 36}, {{4, 16}, 68}, {{8, 16}, 76}, {{8, 32}, 140}};
  for (const auto &[shape, total] : expected)
    for (int sets : {1, 2}) {
      ListOptions list = problem(shape.first, shape.second, 1, 1, 1, 1, sets);
      EXPECT_EQ(simulate(*listSchedule(list), list.costs).total,
                total - (sets - 1));
      AutoChoice choice = *makeAuto(automatic(list));
      EXPECT_LE(choice.timeline.total, total - (sets - 1));
      for (int most : choice.timeline.fullSets)
        EXPECT_LE(most, sets);
    }
}

struct RandomProblem {
  AutoProblem problem;
  explicit RandomProblem(std::mt19937 &random, int chunks = 1) {
    auto number = [&](int least, int most) {
      return double(least + int(random() % (most - least + 1)));
    };
    ScheduleOptions &shape = problem.shape;
    shape.stages = int(number(chunks > 1 ? 2 : 1, 6));
    shape.microbatches = int(number(1, 16));
    shape.chunks = chunks;
    if (chunks > 1 && random() % 4) // interleaved has no other number
      shape.microbatches = shape.stages * int(number(1, 4));
    shape.prologue = random() % 2;
    shape.update = random() % 2;
    for (int s = 0; s < shape.stages; ++s)
      shape.recomputeStages.push_back(random() % 2);
    for (int v = 0; v < shape.stages * chunks; ++v) {
      problem.costs.times.push_back({number(0, 2), number(1, 9), number(1, 9),
                                     number(1, 9), number(0, 9), number(0, 5)});
      problem.costs.memory.push_back(
          {number(0, 50), number(1, 9), number(0, 20)});
      problem.costs.boundaries.push_back({number(0, 6), number(0, 6), 1, 1});
    }
    if (random() % 2)
      problem.sets = int(number(1, 3));
  }
};

// Never worse than a named schedule that fits, always legal, microbatches 0
// first in every action.
TEST(AutoSchedule, NeverWorseThanANamedOne) {
  std::mt19937 random(23);
  int lists = 0;
  for (int round = 0; round < 150; ++round) {
    AutoProblem problem = RandomProblem(random).problem;
    problem.sets = 0;
    AutoChoice choice = *makeAuto(problem);
    Status status = checkSchedule(choice.schedule);
    ASSERT_TRUE(status.ok()) << status.str();
    for (const std::string &name : scheduleNames()) {
      if (name == "interleaved")
        continue;
      ScheduleOptions shape = problem.shape;
      shape.splitBackward = true;
      Timeline named = simulate(*makeSchedule(name, shape), problem.costs);
      EXPECT_LE(choice.timeline.total, named.total) << name;
    }
    for (const std::vector<Step> &order : choice.schedule.order) {
      std::map<Action, int> next;
      for (const Step &step : order)
        EXPECT_EQ(step.microbatch, next[step.action]++);
    }
    lists += choice.candidates[choice.chosen].name.rfind("list", 0) == 0;
  }
  EXPECT_GT(lists, 75);
}

// Sums over the weight gradients of several stages: W of a part waits for W of
// the part behind, and no choice deadlocks there, as one that does not know of
// them may.
TEST(AutoSchedule, WaitsForSumsOverStages) {
  std::mt19937 random(31);
  int lists = 0, unaware = 0;
  for (int round = 0; round < 90; ++round) {
    AutoProblem problem = RandomProblem(random, 1 + round % 3).problem;
    problem.sets = 0;
    const ScheduleOptions &shape = problem.shape;
    int p = shape.stages;
    AutoChoice without = *makeAuto(problem);
    std::vector<Transfer> &sums = problem.costs.weightSums;
    for (int v = 1; v < p * shape.chunks; ++v)
      if (random() % 2)
        sums.push_back(
            {v % p, (v - 1) % p, Action::W, Action::W, v / p, (v - 1) / p});
    CheckOptions check;
    check.transfers = chainTransfers(without.schedule);
    check.transfers.insert(check.transfers.end(), sums.begin(), sums.end());
    unaware += !checkSchedule(without.schedule, check).ok();
    AutoChoice choice = *makeAuto(problem);
    Status status = checkSchedule(choice.schedule, check);
    ASSERT_TRUE(status.ok()) << status.str();
    lists += choice.candidates[choice.chosen].name.rfind("list", 0) == 0;
  }
  EXPECT_GT(unaware, 5);
  EXPECT_GT(lists, 40);
}

// Under a limit of bytes: the choice keeps it, is still as good as every named
// schedule that keeps it, and there is one exactly when a stage can hold one
// microbatch.
// Weight gradients that wait for each other: no list has all of them, and one
// that has some is the fastest of all.
TEST(AutoSchedule, AListThatStandsStillIsNoCandidate) {
  ListOptions list;
  list.shape.stages = 2;
  list.shape.microbatches = 4;
  list.shape.update = true;
  list.costs.times = {{0, 1, 0, 1, 1, 1}};
  list.costs.weightSums = {{0, 1, Action::W, Action::W, 0, 0},
                           {1, 0, Action::W, Action::W, 0, 0}};
  list.sets = 0;
  Result<Schedule> schedule = listSchedule(list);
  ASSERT_FALSE(schedule.ok());
  EXPECT_EQ(schedule.status().str(),
            "stage 0 stands still after 4 forwards, 4 backwards and 0 weight "
            "gradients of 4 microbatches\n"
            "stage 1 stands still after 4 forwards, 4 backwards and 0 weight "
            "gradients of 4 microbatches");
  Result<AutoChoice> choice = makeAuto(automatic(list));
  ASSERT_FALSE(choice.ok()) << choice->str();
  EXPECT_NE(choice.status().str().find("stands still"), std::string::npos)
      << choice.status().str();
}

TEST(AutoSchedule, KeepsTheMemoryLimit) {
  std::mt19937 random(29);
  int found = 0, refused = 0, named = 0;
  for (int round = 0; round < 200; ++round) {
    AutoProblem problem = RandomProblem(random).problem;
    bool possible = true;
    for (int s = 0; s < problem.shape.stages; ++s) {
      const StageMemory &memory = problem.costs.memory[s];
      double least = memory.fixed + memory.kept + memory.recomputed;
      problem.memoryLimit.push_back(least - 2 + double(random() % 60));
      possible &= problem.memoryLimit.back() >= least;
    }
    Result<AutoChoice> choice = makeAuto(problem);
    ASSERT_EQ(choice.ok(), possible) << choice.status().str();
    (possible ? found : refused) += 1;
    if (!possible) {
      EXPECT_NE(choice.status().str().find("bytes"), std::string::npos);
      continue;
    }
    for (int s = 0; s < problem.shape.stages; ++s)
      EXPECT_LE(choice->timeline.peakBytes[s], problem.memoryLimit[s]);
    for (const AutoCandidate &candidate : choice->candidates)
      if (candidate.misfit.empty()) {
        EXPECT_LE(choice->timeline.total, candidate.seconds);
        named += candidate.name.rfind("list", 0) != 0;
      }
  }
  EXPECT_GT(found, 50);
  EXPECT_GT(refused, 20);
  EXPECT_GT(named, 50);
}

// With several chunks a stage: legal, microbatches 0 first in every action of a
// chunk, never worse than interleaved where that fits, within the limit. Found
// wherever each chunk has room for one microbatch.
TEST(AutoSchedule, NeverWorseThanInterleaved) {
  std::mt19937 random(31);
  int compared = 0, faster = 0, limited = 0, alone = 0;
  for (int round = 0; round < 160; ++round) {
    const int chunks = 2 + 2 * int(random() % 2);
    AutoProblem problem = RandomProblem(random, chunks).problem;
    problem.sets = 0;
    const int p = problem.shape.stages;
    if (round % 2)
      for (int s = 0; s < p; ++s) {
        double least = 0;
        for (int c = 0; c < chunks; ++c) {
          StageMemory &memory = problem.costs.memory[c * p + s];
          memory.untilB = double(random() % 5);
          memory.pending = double(random() % 5);
          least += memory.fixed + memory.kept + memory.recomputed +
                   memory.untilB + memory.pending;
        }
        problem.memoryLimit.push_back(least + double(random() % 40));
      }
    Result<AutoChoice> choice = makeAuto(problem);
    ASSERT_TRUE(choice.ok()) << choice.status().str();
    Status status = checkSchedule(choice->schedule);
    ASSERT_TRUE(status.ok()) << status.str();
    EXPECT_EQ(choice->schedule.chunks, chunks);
    for (int s = 0; s < p && !problem.memoryLimit.empty(); ++s, ++limited)
      EXPECT_LE(choice->timeline.peakBytes[s], problem.memoryLimit[s]);
    for (const std::vector<Step> &order : choice->schedule.order) {
      std::map<std::pair<Action, int>, int> next;
      for (const Step &step : order)
        EXPECT_EQ(step.microbatch, (next[{step.action, step.chunk}]++));
    }
    ScheduleOptions shape = problem.shape;
    shape.splitBackward = true;
    Result<Schedule> named = makeSchedule("interleaved", shape);
    if (!named.ok()) {
      ++alone;
      continue;
    }
    Timeline timeline = simulate(*named, problem.costs);
    bool fits = true;
    for (int s = 0; s < p && !problem.memoryLimit.empty(); ++s)
      fits &= timeline.peakBytes[s] <= problem.memoryLimit[s];
    if (!fits)
      continue;
    EXPECT_LE(choice->timeline.total, timeline.total);
    faster += choice->timeline.total < timeline.total;
    ++compared;
  }
  EXPECT_GT(compared, 40);
  EXPECT_GT(faster, compared / 3);
  EXPECT_GT(limited, 100);
  EXPECT_GT(alone, 5);
}

// Eight stages, 16 microbatches, F = B = W = 1 of a whole stage, transfers of a
// quarter: lists over four parts gain what neither interleaving nor a list of
// whole stages does.
TEST(AutoSchedule, ListsOverChunksBeatBothOfTheOthers) {
  auto best = [](int chunks, const char *name) {
    AutoProblem problem;
    problem.shape.stages = 8;
    problem.shape.microbatches = 16;
    problem.shape.chunks = chunks;
    double part = 1.0 / chunks;
    problem.costs.times = {{0, part, 0, part, part, 0}};
    problem.costs.forwardTransfer = problem.costs.backwardTransfer = 0.25;
    problem.names = {name};
    return makeAuto(problem)->timeline.total;
  };
  EXPECT_DOUBLE_EQ(best(4, "interleaved"), 61);
  EXPECT_DOUBLE_EQ(best(1, "list"), 56.75);
  EXPECT_DOUBLE_EQ(best(2, "list"), 53.25);
  EXPECT_DOUBLE_EQ(best(4, "list"), 51.5);
}

TEST(AutoSchedule, ComparesInterleavedWithChunks) {
  AutoProblem problem;
  problem.shape.stages = 4;
  problem.shape.microbatches = 8;
  problem.shape.chunks = 2;
  problem.costs.times = {{0, 1, 0, 1, 1}};
  problem.names = {"interleaved"};
  AutoChoice named = *makeAuto(problem);
  EXPECT_EQ(named.schedule.name, "interleaved");
  EXPECT_EQ(named.schedule.chunks, 2);
  // Weight gradients in the drain.
  problem.names = {"interleaved", "list"};
  AutoChoice choice = *makeAuto(problem);
  EXPECT_EQ(choice.schedule.name, "auto");
  EXPECT_EQ(choice.schedule.chunks, 2);
  EXPECT_LT(choice.timeline.total, named.timeline.total);
}

TEST(AutoSchedule, ShowsWhatItCompared) {
  ListOptions list = problem(4, 8, 1, 1, 1, 1, 2);
  EXPECT_EQ(
      makeAuto(automatic(list))->str(),
      "  gpipe                                  stage 3 holds 8 activation "
      "sets, at most 2 are allowed\n"
      "  1f1b                                             39  bubble 23.1 %  "
      "in "
      "flight 4 3 2 1\n"
      "  early                                            37  bubble 18.9 %  "
      "in "
      "flight 4 3 2 1\n"
      "  last                                             36  bubble 16.7 %  "
      "in "
      "flight 4 3 2 1\n"
      "  scp                                              36  bubble 16.7 %  "
      "in "
      "flight 4 3 3 1\n"
      "  eager                                            38  bubble 21.1 %  "
      "in "
      "flight 7 5 3 1\n"
      "  zb                                     stage 2 holds 3 activation "
      "sets, at most 2 are allowed\n"
      "* list B r F R W, 2 sets, 4 in flight              35  bubble 14.3 %  "
      "in "
      "flight 4 3 2 1; the best of 40 lists\n");
}

TEST(AutoSchedule, SaysWhyNothingFits) {
  AutoProblem problem;
  problem.shape.stages = 2;
  problem.shape.microbatches = 2;
  problem.costs.times = {ActionTimes()};
  problem.costs.memory = {{10, 5, 0}};
  problem.memoryLimit = {12};
  EXPECT_NE(makeAuto(problem).status().str().find(
                "stage 0 needs 15 bytes for one microbatch, the limit is 12"),
            std::string::npos)
      << makeAuto(problem).status().str();
}

} // namespace
} // namespace merak::planning
