// What moves into idle slots, beside everything that might have.
#include "passes/Planning/FillIdle.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace merak::planning {
namespace {

double takesNoTime(const Filling &) { return 0; }
Filling lateOf(const LateWork &work, IdleSlots slots) {
  return fillLate(work, slots, 1, takesNoTime);
}

// Whether what stays in R is complete in itself, what moves stands in front of
// all that reads it, and no more bytes are kept.
bool isLegal(const LateWork &work, const std::vector<int> &place) {
  double bytes = 0;
  std::set<int> counted;
  for (size_t t = 0; t < work.tasks.size(); ++t) {
    const LateTask &task = work.tasks[t];
    if (place[t] != kStays) {
      if (place[t] > task.before)
        return false;
      for (int value : task.makes)
        bytes -= work.values[size_t(value)].onlyForB
                     ? work.values[size_t(value)].bytes
                     : 0;
    }
    for (size_t maker = 0; maker < work.tasks.size(); ++maker)
      for (int value : work.tasks[maker].makes) {
        if (!std::count(task.reads.begin(), task.reads.end(), value))
          continue;
        if (place[maker] != kStays &&
            (place[t] == kStays || place[maker] > place[t]))
          return false;
        if (place[maker] == kStays && place[t] != kStays &&
            !work.values[size_t(value)].kept && counted.insert(value).second)
          bytes += work.values[size_t(value)].bytes;
      }
  }
  return bytes <= 0;
}

// Each slot takes work in while at least half of it is idle time.
bool fits(const std::vector<double> &idle, const std::vector<int> &place,
          const std::vector<double> &seconds) {
  std::vector<double> left = idle;
  // The last tasks come first.
  for (size_t t = place.size(); t-- > 0;)
    if (place[t] != kStays && seconds[t] > 0) {
      double &room = left[size_t(place[t])];
      if (room <= 0 || room < 0.5 * seconds[t])
        return false;
      room -= seconds[t];
    }
  return true;
}

LateWork randomLate(std::mt19937 &random, int positions) {
  LateWork work;
  const int count = 1 + int(random() % 5);
  for (int t = 0; t < count; ++t) {
    LateTask task{
        double(random() % 4), int(random() % unsigned(positions)), {}, {t}};
    for (int earlier = 0; earlier < t; ++earlier)
      if (random() % 3 == 0)
        task.reads.push_back(earlier);
    work.tasks.push_back(task);
    const bool kept = random() % 2 == 0;
    work.values.push_back(
        {double(1 + random() % 3), kept, kept && random() % 2 == 0});
  }
  return work;
}

std::vector<double> randomIdle(std::mt19937 &random, int positions) {
  std::vector<double> idle;
  for (int i = 0; i < positions; ++i)
    idle.push_back(random() % 2 == 0 ? 0 : double(random() % 5));
  return idle;
}

TEST(FillIdle, RecomputationGoesAsLateAsItMay) {
  // Two tasks, the second reads the first; B reads the second at 3.
  LateWork work{{{2, 5, {}, {0}}, {2, 3, {0}, {1}}},
                {{1, false, false}, {1, true, true}}};
  Filling moves = lateOf(work, IdleSlots({0, 2, 2, 2, 9, 9}));
  EXPECT_EQ(moves.place, (std::vector<int>{2, 3}));
  EXPECT_DOUBLE_EQ(moves.seconds, 4);
  EXPECT_DOUBLE_EQ(moves.late, 0);
  // Half a second is late where the slot is shorter.
  EXPECT_DOUBLE_EQ(lateOf(work, IdleSlots({0, 0, 2, 1.5, 9, 9})).late, 0.5);
}

TEST(FillIdle, WhatWouldHaveToBeKeptStays) {
  // The second does not fit anywhere with the first: a value of 4 bytes would
  // be kept instead of one of 1.
  LateWork work{{{9, 5, {}, {0}}, {2, 3, {0}, {1}}},
                {{4, false, false}, {1, true, true}}};
  EXPECT_FALSE(lateOf(work, IdleSlots({0, 2, 2, 2, 0, 0})).any());
  work.values[0].bytes = 1;
  EXPECT_EQ(lateOf(work, IdleSlots({0, 2, 2, 2, 0, 0})).place,
            (std::vector<int>{kStays, 3}));
}

TEST(FillIdle, NothingMovesThatDoesNotPay) {
  LateWork work{{{2, 1, {}, {0}}}, {{1, true, true}}};
  IdleSlots slots({0, 2});
  auto with = [](double seconds) {
    return [=](const Filling &) { return seconds; };
  };
  EXPECT_FALSE(fillLate(work, slots, 10, with(12)).any());
  // The slots are as they were.
  EXPECT_TRUE(fillLate(work, slots, 10, with(11)).any());
  EXPECT_FALSE(fillLate(work, slots, 10, with(1)).any()); // taken already
  IdleSlots others({0, 0, 3});
  EXPECT_FALSE(fillEarly({{2, 0}}, others, 10, with(12)).any());
  EXPECT_EQ(fillEarly({{2, 0}}, others, 10, with(10)).place,
            (std::vector<int>{2}));
}

// Beside all placements there are: what is chosen is one of the legal ones, and
// none of them moves the same tasks and one more, and so moves the last task of
// R whenever it may move at all.
TEST(FillIdle, RandomRecomputation) {
  std::mt19937 random(5);
  int moved = 0;
  for (int round = 0; round < 500; ++round) {
    const int positions = 1 + int(random() % 4);
    LateWork work = randomLate(random, positions);
    const std::vector<double> idle = randomIdle(random, positions);
    std::vector<double> seconds;
    for (const LateTask &task : work.tasks)
      seconds.push_back(task.seconds);
    const Filling found = lateOf(work, IdleSlots(idle));
    ASSERT_TRUE(isLegal(work, found.place));
    ASSERT_TRUE(fits(idle, found.place, seconds));
    moved += found.any();
    // Without bytes the rule is greedy from the end: the last task moves
    // exactly if any placement moves it.
    for (LateValue &value : work.values)
      value.bytes = 0;
    const Filling freely = lateOf(work, IdleSlots(idle));
    bool lastMay = false, one = true;
    std::vector<int> place(work.tasks.size(), kStays);
    std::function<void(size_t)> all = [&](size_t t) {
      if (t == place.size()) {
        if (!isLegal(work, place) || !fits(idle, place, seconds))
          return;
        lastMay |= place.back() != kStays;
        size_t more = 0, same = 0;
        for (size_t i = 0; i < place.size(); ++i) {
          same += place[i] == freely.place[i];
          more += place[i] != kStays && freely.place[i] == kStays;
        }
        one &= !(more == 1 && same + 1 == place.size());
        return;
      }
      for (place[t] = kStays; place[t] < positions; ++place[t])
        all(t + 1);
      place[t] = kStays;
    };
    all(0);
    EXPECT_EQ(freely.place.back() != kStays, lastMay);
    EXPECT_TRUE(one);
  }
  EXPECT_GT(moved, 50);
}

// By definition: of the sums those of which nothing but they themselves needs
// what they need, and none of that is fixed.
TEST(FillIdle, RandomSlices) {
  std::mt19937 random(9);
  int found = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<EarlyTask> tasks(1 + random() % 8);
    for (size_t t = 0; t < tasks.size(); ++t) {
      for (int earlier = 0; earlier < int(t); ++earlier)
        if (random() % 4 == 0)
          tasks[t].needs.push_back(earlier);
      tasks[t].fixed = random() % 10 == 0;
    }
    for (size_t t = 0; t < tasks.size(); ++t)
      tasks[t].sum =
          std::none_of(tasks.begin(), tasks.end(), [&](const EarlyTask &other) {
            return std::count(other.needs.begin(), other.needs.end(), int(t));
          });
    std::vector<std::vector<int>> expected;
    for (int end = 0; end < int(tasks.size()); ++end) {
      if (!tasks[size_t(end)].sum)
        continue;
      std::set<int> slice;
      std::function<void(int)> add = [&](int t) {
        if (slice.insert(t).second)
          for (int need : tasks[size_t(t)].needs)
            add(need);
      };
      add(end);
      bool alone = true;
      for (int t = 0; t < int(tasks.size()); ++t) {
        alone &= !slice.count(t) || !tasks[size_t(t)].fixed;
        for (int need : tasks[size_t(t)].needs)
          alone &= !slice.count(need) || slice.count(t);
      }
      if (alone)
        expected.emplace_back(slice.begin(), slice.end());
    }
    EXPECT_EQ(slicesOf(tasks), expected);
    found += int(expected.size());
  }
  EXPECT_GT(found, 200);
}

// Each slice goes to the first slot that may take it, so that no slot in front
// of it has room left for it.
TEST(FillIdle, RandomGradientsGoEarly) {
  std::mt19937 random(13);
  for (int round = 0; round < 500; ++round) {
    const int positions = 1 + int(random() % 5);
    const std::vector<double> idle = randomIdle(random, positions);
    std::vector<EarlySlice> slices(1 + random() % 5);
    for (EarlySlice &slice : slices)
      slice = {double(1 + random() % 4), int(random() % unsigned(positions))};
    IdleSlots slots(idle);
    const Filling moves = fillEarly(slices, slots, 1, takesNoTime);
    std::vector<double> left = idle;
    double seconds = 0, late = 0;
    for (size_t i = 0; i < slices.size(); ++i) {
      int first = kStays;
      for (int at = slices[i].after; at < positions && first == kStays; ++at)
        if (left[size_t(at)] > 0 && left[size_t(at)] >= 0.5 * slices[i].seconds)
          first = at;
      ASSERT_EQ(moves.place[i], first);
      if (first == kStays)
        continue;
      left[size_t(first)] -= slices[i].seconds;
      seconds += slices[i].seconds;
    }
    for (double rest : left)
      late += std::max(0.0, -rest);
    EXPECT_DOUBLE_EQ(moves.seconds, seconds);
    EXPECT_DOUBLE_EQ(moves.late, late);
  }
}

} // namespace
} // namespace merak::planning
