// Slots of values that go between stages, on random pipelines: with them every
// list that can run at all runs, in the time that it takes with slots without
// end, whatever values skip stages and whichever actions read them.
#include "passes/Memory/SlotPlan.h"
#include "passes/Planning/LiveKinds.h"
#include "passes/Planning/ScheduleCheck.h"
#include "passes/Planning/TransferPlaces.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

using namespace merak;
using namespace merak::planning;
using merak::memory::SlotPlan;

namespace {

using Random = std::mt19937;

int below(Random &random, int n) { return int(random() % uint32_t(n)); }

// A value: sent by one action, read by some of the receiver's chunk.
struct Value {
  Transfer transfer;
  std::set<ActionId> keeps; // actions of the sender that touch it
  std::set<ActionId> reads; // actions of the receiver that touch it
};

bool has(const Schedule &schedule, int stage, Action action, int chunk) {
  const std::vector<Step> &order = schedule.order[stage];
  return std::any_of(order.begin(), order.end(), [&](const Step &step) {
    return step.action == action && step.chunk == chunk;
  });
}

// Any later part may read what a forward makes, in F, B or W; gradients go to
// earlier parts.
std::vector<Value> randomValues(Random &random, const Schedule &schedule,
                                int extra) {
  std::vector<Value> values;
  for (const Transfer &transfer : chainTransfers(schedule))
    values.push_back({transfer, {}, {}});
  int p = schedule.stages, parts = schedule.virtualStages();
  while (extra-- > 0) {
    int a = below(random, parts), b = below(random, parts);
    if (a % p == b % p)
      continue;
    Action from = a < b ? Action::F : Action::B, to = from;
    if (below(random, 3) == 0)
      to = below(random, 2) ? Action::B : Action::W;
    values.push_back({{a % p, b % p, from, to, a / p, b / p}, {}, {}});
  }
  for (Value &value : values) {
    const Transfer &t = value.transfer;
    value.keeps.insert({t.fromAction, t.fromChunk});
    value.reads.insert({t.toAction, t.toChunk});
    for (Action later : {Action::B, Action::W}) {
      if (later > t.fromAction && below(random, 3) == 0 &&
          has(schedule, t.fromStage, later, t.fromChunk))
        value.keeps.insert({later, t.fromChunk});
      if (later > t.toAction && below(random, 3) == 0 &&
          has(schedule, t.toStage, later, t.toChunk))
        value.reads.insert({later, t.toChunk});
    }
    // A recomputation that is not early waits for the gradient.
    for (const Step &step : schedule.order[t.toStage])
      if (t.toAction == Action::B && step.action == Action::R && !step.early &&
          step.chunk == t.toChunk)
        value.reads.insert({Action::R, t.toChunk});
  }
  return values;
}

// Steps in a random order that every stage can run.
Schedule randomLists(Random &random, int p, int m, int chunks) {
  Schedule schedule{"random", p, m, chunks, {}};
  schedule.order.resize(p);
  int parts = p * chunks;
  // How many microbatches of each action of a part have run.
  std::vector<int> F(parts), B(parts), W(parts);
  for (int left = 3 * parts * m; left > 0;) {
    int v = below(random, parts);
    std::vector<Step> &order = schedule.order[v % p];
    auto run = [&](Action action, std::vector<int> &done) {
      order.push_back({action, done[v]++, v / p});
      --left;
    };
    switch (below(random, 3)) {
    case 0:
      if (F[v] < m && (v == 0 || F[v - 1] > F[v]))
        run(Action::F, F);
      break;
    case 1:
      if (B[v] < F[v] && (v + 1 == parts || B[v + 1] > B[v]))
        run(Action::B, B);
      break;
    default:
      if (W[v] < B[v])
        run(Action::W, W);
    }
  }
  return schedule;
}

// Runs the lists with the slots of the plan: a stage's steps in order, a
// transfer behind the one before it on its channel, the sender's action and the
// last use of the slot at its target; the sender waits with a slot until the
// transfer out of it is done. Returns the time where steps take one unit and
// the transfers of each value `seconds` of it, none by default; -1: a deadlock.
// `withRoom` false: values have room a call earlier and later, and no more.
double run(const Schedule &schedule, const std::vector<Value> &values,
           bool withRoom, const std::vector<double> &seconds = {}) {
  std::vector<std::vector<int>> node(schedule.stages);
  int count = 0;
  for (int s = 0; s < schedule.stages; ++s)
    for (size_t i = 0; i < schedule.order[s].size(); ++i)
      node[s].push_back(count++);
  int steps = count, m = schedule.microbatches;
  count += int(values.size()) * m;
  std::vector<std::vector<int>> after(count); // what waits for a node
  std::vector<int> open(count, 0);
  auto edge = [&](int from, int to) {
    after[from].push_back(to);
    ++open[to];
  };
  for (const std::vector<int> &nodes : node)
    for (size_t i = 1; i < nodes.size(); ++i)
      edge(nodes[i - 1], nodes[i]);
  std::vector<Transfer> transfers;
  for (const Value &value : values)
    transfers.push_back(value.transfer);
  std::vector<TransferRoom> rooms = roomsOf(schedule, transfers);
  if (!withRoom)
    rooms.assign(rooms.size(), {});
  for (size_t n = 0; n < values.size(); ++n) {
    const Transfer &t = values[n].transfer;
    const std::vector<Step> &sender = schedule.order[t.fromStage];
    const std::vector<Step> &receiver = schedule.order[t.toStage];
    SlotPlan kept = memory::planSlots(sender, values[n].keeps, 0, 1, {},
                                      rooms[n].departures);
    SlotPlan read =
        memory::planSlots(receiver, values[n].reads, 1, 0, rooms[n].arrivals);
    auto transferOf = [&](int i) { return steps + int(n) * m + i; };
    auto place = [](const std::vector<Step> &list,
                    const std::set<ActionId> &ids, int i, bool last) {
      int found = -1;
      for (size_t at = 0; at < list.size(); ++at)
        if (list[at].microbatch == i && ids.count(list[at].id()) &&
            (found < 0 || last))
          found = int(at);
      return found;
    };
    ActionId sends{t.fromAction, t.fromChunk};
    std::vector<int> sent(kept.slots, -1), used(read.slots, -1);
    for (int i = 0; i < m; ++i) {
      int from = node[t.fromStage][place(sender, {sends}, i, false)];
      edge(from, transferOf(i));
      if (i > 0)
        edge(transferOf(i - 1), transferOf(i));
      if (int before = sent[kept.slotOf[i]]; before >= 0)
        edge(transferOf(before), from);
      sent[kept.slotOf[i]] = i;
      // An early recomputation does not wait for the gradient.
      int first = place(receiver, values[n].reads, i, false);
      if (receiver[first].action == Action::R && receiver[first].early)
        first = place(receiver, {{Action::B, t.toChunk}}, i, false);
      edge(transferOf(i), node[t.toStage][first]);
      if (int before = used[read.slotOf[i]]; before >= 0)
        edge(before, transferOf(i));
      used[read.slotOf[i]] =
          node[t.toStage][place(receiver, values[n].reads, i, true)];
    }
  }
  std::vector<double> end(count, 0);
  std::vector<int> ready;
  for (int i = 0; i < count; ++i)
    if (!open[i])
      ready.push_back(i);
  double total = 0;
  for (size_t k = 0; k < ready.size(); ++k) {
    int at = ready[k];
    if (at < steps)
      end[at] += 1;
    else if (!seconds.empty())
      end[at] += seconds[size_t(at - steps) / m];
    total = std::max(total, end[at]);
    for (int next : after[at]) {
      end[next] = std::max(end[next], end[at]);
      if (--open[next] == 0)
        ready.push_back(next);
    }
  }
  return int(ready.size()) == count ? total : -1;
}

double timeOf(const Schedule &schedule, const std::vector<Value> &values) {
  SimulateOptions options;
  options.times = {{1, 1, 1, 1, 1, 1}};
  for (const Value &value : values)
    options.transfers.push_back(value.transfer);
  Timeline timeline = simulate(schedule, options);
  EXPECT_TRUE(timeline.finished);
  return timeline.total;
}

bool canRun(const Schedule &schedule, const std::vector<Value> &values) {
  CheckOptions check;
  for (const Value &value : values)
    check.transfers.push_back(value.transfer);
  return checkSchedule(schedule, check).ok();
}

TEST(TransferSlots, NoListsDeadlockOrWait) {
  Random random(11);
  int ran = 0, deadlocks = 0, slower = 0;
  while (ran < 400) {
    int p = 2 + below(random, 4), chunks = 1 + below(random, 3);
    int m = 1 + below(random, 10);
    Schedule schedule = randomLists(random, p, m, chunks);
    ASSERT_TRUE(checkSchedule(schedule).ok()) << tableStr(schedule);
    std::vector<Value> values = randomValues(random, schedule, 4);
    // A reader that stands before what it reads: no such value.
    if (!canRun(schedule, values))
      continue;
    ++ran;
    double expected = timeOf(schedule, values);
    EXPECT_EQ(run(schedule, values, true), expected) << tableStr(schedule);
    double without = run(schedule, values, false);
    deadlocks += without < 0;
    slower += without > expected;
  }
  // The latest arrivals are what does it.
  EXPECT_GT(deadlocks, 20);
  EXPECT_GT(slower, 20);
}

TEST(TransferSlots, NoNamedScheduleDeadlocksOrWaits) {
  Random random(12);
  int deadlocks = 0;
  for (const std::string &name : scheduleNames())
    for (int p = 2; p <= 6; ++p)
      for (int k = 0; k < 12; ++k) {
        ScheduleOptions make;
        make.stages = p;
        make.chunks = name == "interleaved" ? 1 + k % 4 : 1;
        make.microbatches = p * (1 + below(random, 4));
        make.recompute = k % 3 == 1;
        make.splitBackward = make.update = true;
        Schedule schedule = *makeSchedule(name, make);
        std::vector<Value> values = randomValues(random, schedule, 4);
        if (!canRun(schedule, values))
          continue;
        EXPECT_EQ(run(schedule, values, true), timeOf(schedule, values))
            << tableStr(schedule);
        deadlocks += run(schedule, values, false) < 0;
      }
  EXPECT_GT(deadlocks, 5);
}

// 1F1B that starts each boundary `ahead` microbatches earlier than it has to.
Schedule aheadBy(const std::vector<int> &ahead, int m, bool recompute) {
  ScheduleOptions make;
  make.stages = int(ahead.size()) + 1;
  make.microbatches = m;
  make.recompute = recompute;
  make.splitBackward = make.update = true;
  make.warmup.assign(make.stages, 1);
  for (int s = make.stages - 2; s >= 0; --s)
    make.warmup[s] = make.warmup[s + 1] + 1 + ahead[s];
  for (int &count : make.warmup)
    count = std::min(count, m);
  return *makeSchedule("eager", make);
}

// Values find room as soon as they are sent where they are on their way for as
// long as the list hides: half a microbatch each way for each one that a
// boundary is ahead.
TEST(TransferSlots, TransfersThatAListHidesDoNotWaitForRoom) {
  Random random(14);
  int slower = 0;
  for (int k = 0; k < 200; ++k) {
    std::vector<int> ahead(1 + below(random, 4));
    for (int &count : ahead)
      count = below(random, 3);
    const int m = 4 * int(ahead.size()) + 4 + below(random, 8);
    const bool recompute = below(random, 2);
    Schedule schedule = aheadBy(ahead, m, recompute);
    SimulateOptions options;
    options.times = {{1, 1, 1, 1, 1, 1}};
    for (int count : ahead)
      options.boundaries.push_back(
          {count * (recompute ? 2.0 : 1.5), count * (recompute ? 2.0 : 1.5)});
    std::vector<Value> values;
    std::vector<double> seconds;
    for (const Transfer &t : chainTransfers(schedule)) {
      values.push_back({t, {{t.fromAction, 0}}, {{t.toAction, 0}}});
      if (t.toAction == Action::B && recompute) // not an early one
        values.back().reads.insert({Action::R, 0});
      seconds.push_back(
          options.boundaries[std::min(t.fromStage, t.toStage)].forward);
    }
    const double expected = simulate(schedule, options).total;
    EXPECT_EQ(run(schedule, values, true, seconds), expected)
        << tableStr(schedule);
    const double without = run(schedule, values, false, seconds);
    slower += without < 0 || without > expected;
  }
  EXPECT_GT(slower, 50);
}

// Pipelines that stand one behind the other need the room that each needs by
// itself.
TEST(TransferSlots, PipelinesDoNotShareTheirRoom) {
  Random random(15);
  int longer = 0;
  for (int k = 0; k < 60; ++k) {
    Schedule all;
    std::vector<Transfer> transfers;
    std::vector<TransferRoom> alone;
    for (int pipeline = 0, first = 0; pipeline < 2 + k % 2; ++pipeline) {
      const int m = 6 + below(random, 6), stages = int(all.order.size());
      const Schedule own =
          aheadBy({below(random, 3), below(random, 3)}, m, false);
      const std::vector<Transfer> chain = chainTransfers(own);
      for (TransferRoom &room : roomsOf(own, chain))
        alone.push_back(std::move(room));
      for (Transfer transfer : chain) {
        transfer.fromStage += stages;
        transfer.toStage += stages;
        transfers.push_back(transfer);
      }
      append(own, first, all);
      first += m;
    }
    const std::vector<TransferRoom> together = roomsOf(all, transfers);
    for (size_t t = 0; t < transfers.size(); ++t) {
      const int first = all.order[transfers[t].fromStage].front().microbatch;
      for (size_t i = 0; i < alone[t].arrivals.size(); ++i) {
        EXPECT_EQ(together[t].arrivals[size_t(first) + i],
                  alone[t].arrivals[i]);
        EXPECT_EQ(together[t].departures[size_t(first) + i],
                  alone[t].departures[i]);
        longer += alone[t].departures[i] > 0;
      }
    }
  }
  EXPECT_GT(longer, 100);
}

// The planner counts the copies that the plan has.
TEST(TransferSlots, ThePlannerCountsAsManyCopies) {
  Random random(13);
  for (int k = 0; k < 120; ++k) {
    int p = 2 + below(random, 4), chunks = 1 + below(random, 2);
    Schedule schedule =
        k % 2 ? aheadBy({below(random, 3), below(random, 3), below(random, 3)},
                        4 + below(random, 12), below(random, 2))
              : randomLists(random, p, 1 + below(random, 8), chunks);
    p = schedule.stages;
    std::vector<PerLiveKind<int>> copies = copiesOf(schedule);
    std::vector<Transfer> transfers = chainTransfers(schedule);
    std::vector<TransferRoom> rooms = roomsOf(schedule, transfers);
    for (size_t t = 0; t < transfers.size(); ++t) {
      const Transfer &x = transfers[t];
      bool forward = x.toAction == Action::F;
      const std::vector<Step> &list = schedule.order[x.toStage];
      auto slots = [&](Action last) {
        return memory::planSlots(list,
                                 {{x.toAction, x.toChunk}, {last, x.toChunk}},
                                 1, 0, rooms[t].arrivals)
            .slots;
      };
      const std::vector<Step> &sender = schedule.order[x.fromStage];
      auto sentSlots = [&](Action last) {
        return memory::planSlots(
                   sender, {{x.fromAction, x.fromChunk}, {last, x.fromChunk}},
                   0, 1, {}, rooms[t].departures)
            .slots;
      };
      const PerLiveKind<int> &from = copies[x.fromChunk * p + x.fromStage];
      const PerLiveKind<int> &of = copies[x.toChunk * p + x.toStage];
      if (forward) {
        EXPECT_EQ(from.at(LiveKind::F, false, true), sentSlots(Action::F));
        EXPECT_EQ(from.at(LiveKind::FB, false, true), sentSlots(Action::B));
        EXPECT_EQ(of.at(LiveKind::F, true), slots(Action::F));
        EXPECT_EQ(of.at(LiveKind::FB, true), slots(Action::B));
        EXPECT_EQ(of.at(LiveKind::FW, true), slots(Action::W));
      } else {
        EXPECT_EQ(from.at(LiveKind::B, false, true), sentSlots(Action::B));
        EXPECT_EQ(from.at(LiveKind::BW, false, true), sentSlots(Action::W));
        EXPECT_EQ(of.at(LiveKind::B, true), slots(Action::B));
        EXPECT_EQ(of.at(LiveKind::BW, true), slots(Action::W));
      }
    }
  }
}

} // namespace
