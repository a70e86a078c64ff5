#include "passes/Planning/StepSketch.h"

#include "passes/Planning/OpenBuckets.h"
#include "passes/Planning/StepParts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace merak::planning {

namespace {

// Streams of a stage; those of channels come behind them.
enum { kCompute, kCollectives, kReductions, kChannels };

class StepWriter {
public:
  StepWriter(const StepTasks &tasks, const StageModel &model,
             const PipelineShape &shape, const PipelinePlan &plan,
             const StepLinks &links)
      : tasks(tasks), model(model), shape(shape), plan(plan), links(links),
        parts(tasks, model, plan, shape),
        instances(parts.members.size() * size_t(plan.schedule.microbatches),
                  -1),
        arrived(parts.messages.size() * size_t(plan.schedule.microbatches),
                -1) {}

  StepTimes run() {
    out.rows = shape.stages;
    out.messages.resize(parts.messages.size() *
                        size_t(plan.schedule.microbatches));
    exchanged.resize(size_t(shape.stages));
    for (int stage = 0; stage < shape.stages; ++stage)
      stages.emplace_back();
    for (int stage = 0; stage < shape.stages; ++stage)
      writeMicrobatches(stage);
    for (int stage = 0; stage < shape.stages; ++stage)
      readExchange(stage);
    for (int stage = 0; stage < shape.stages; ++stage)
      writeExchange(stage);
    for (int stage = 0; stage < shape.stages; ++stage)
      writeUpdate(stage);
    return simulateProgram(out);
  }

private:
  // An action of a microbatch, and what it does in its order.
  struct Call {
    StepAction action = StepAction::F;
    int part = 0, microbatch = 0;
    bool early = false;  // R
    bool joined = false; // B, with its W
    std::vector<int> members;
  };
  struct Stage {
    std::vector<Call> calls;
    std::map<std::tuple<bool, int, int, int>, int> channels; // streams
    int lastCompute = -1, lastReduction = -1;                // tasks
    // Of the update: reduced before it, by the task of U; -1: nothing was.
    std::map<int, int> reduced;
  };

  int add(int stage, int stream, double seconds, std::vector<int> needs,
          int message = -1) {
    const int number = int(out.tasks.size());
    if (stream >= 0 && current.call >= 0)
      enter(stage, stream, number, needs);
    out.tasks.push_back({stage, stream, seconds, std::move(needs), message});
    callOf.push_back(current.call);
    if (message >= 0)
      out.messages[size_t(message)].tasks.push_back(number);
    return number;
  }
  // A stream enters a call when those parts of earlier calls are finished on
  // which anything it does there depends (passes/Lowering/InsertEvents.cpp).
  void enter(int stage, int stream, int number, std::vector<int> &needs) {
    std::vector<int> entry, own;
    for (int need : needs)
      split(stage, stream, need, own, entry);
    auto [known, isNew] = current.first.try_emplace(stream, number);
    ends[{stage, current.call, stream}] = number;
    needs = std::move(own);
    std::vector<int> &first =
        isNew ? needs : out.tasks[size_t(known->second)].needs;
    first.insert(first.end(), entry.begin(), entry.end());
  }
  void split(int stage, int stream, int need, std::vector<int> &own,
             std::vector<int> &entry) const {
    const TimedTask &task = out.tasks[size_t(need)];
    const int call = callOf[size_t(need)];
    if (task.row == stage && task.stream < 0) // a name
      for (int other : task.needs)
        split(stage, stream, other, own, entry);
    else if (task.row == stage && task.stream != stream && call >= 0 &&
             call != current.call)
      entry.push_back(ends.at({stage, call, task.stream}));
    else
      own.push_back(need);
  }
  // What takes no time is only a name for what it needs: on a stream of its
  // own.
  int compute(int stage, double seconds, std::vector<int> needs) {
    if (seconds <= 0)
      return add(stage, -1 - int(out.tasks.size()), 0, std::move(needs));
    return stages[size_t(stage)].lastCompute =
               add(stage, kCompute, seconds * shape.slownessOf(stage),
                   std::move(needs));
  }
  int collective(int stage, int stream, double seconds, int level,
                 std::vector<int> needs) {
    out.messages.push_back({{}, false, seconds, 0, level});
    return add(stage, stream, 0, std::move(needs),
               int(out.messages.size()) - 1);
  }

  // ------------------------------------------------------------ microbatches

  void writeMicrobatches(int stage) {
    readCalls(stage);
    const std::vector<StepReduction> reductions = parts.reductionsOf(stage);
    joinLast(stage, reductions);
    double before = 0;
    for (int part = stage; part < parts.count(); part += shape.stages)
      before += parts.beforeFirst(part);
    if (before > 0)
      compute(stage, before, {});
    int number = 0;
    for (const Call &call : stages[size_t(stage)].calls) {
      current = {number++, {}};
      writeCall(stage, call);
    }
    current = {};
    writeReductions(stage, reductions);
  }

  void readCalls(int stage) {
    std::vector<Call> &calls = stages[size_t(stage)].calls;
    bool splits = false;
    for (const Step &step : plan.schedule.order[size_t(stage)])
      splits |= step.action == Action::W;
    auto put = [&](StepAction action, const Step &step) {
      const int part = step.chunk * shape.stages + stage;
      calls.push_back({action, part, step.microbatch, step.early,
                       /*joined=*/false, parts.membersOf(part, action)});
    };
    for (const Step &step : plan.schedule.order[size_t(stage)]) {
      if (step.action == Action::F)
        put(StepAction::F, step);
      if (step.action == Action::R)
        put(StepAction::R, step);
      if (step.action == Action::B)
        put(StepAction::B, step);
      if (step.action == Action::W || (step.action == Action::B && !splits))
        put(StepAction::W, step);
    }
  }

  int lastCall(int stage, StepAction action, int part) const {
    const std::vector<Call> &calls = stages[size_t(stage)].calls;
    for (size_t i = calls.size(); i-- > 0;)
      if (calls[i].action == action && calls[i].part == part)
        return int(i);
    return -1;
  }

  // W goes into the waits of the last B where that sends nothing.
  void joinLast(int stage, const std::vector<StepReduction> &reductions) {
    std::vector<Call> &calls = stages[size_t(stage)].calls;
    std::set<int> at;
    for (const StepReduction &reduction : reductions)
      for (int number : reduction.members)
        if (const StepMember &member = parts.members[size_t(number)];
            member.action == StepAction::W)
          at.insert(lastCall(stage, StepAction::W, member.part));
    for (auto it = at.rbegin(); it != at.rend(); ++it) {
      const int w = *it;
      if (w < 1 || calls[size_t(w - 1)].action != StepAction::B ||
          calls[size_t(w - 1)].part != calls[size_t(w)].part ||
          calls[size_t(w - 1)].microbatch != calls[size_t(w)].microbatch ||
          !parts.sentBy(calls[size_t(w)].part, StepAction::B).empty())
        continue;
      calls[size_t(w - 1)].members = parts.joined(calls[size_t(w)].part);
      calls[size_t(w - 1)].joined = true;
      calls.erase(calls.begin() + w);
    }
  }

  // Of a message or a member.
  size_t instance(int number, int microbatch) const {
    return size_t(number) * size_t(plan.schedule.microbatches) +
           size_t(microbatch);
  }
  int channelOf(int stage, bool send, const StepMessage &message) {
    std::map<std::tuple<bool, int, int, int>, int> &known =
        stages[size_t(stage)].channels;
    const StepMember &from = parts.members[size_t(message.from)];
    return known
        .try_emplace({send, from.part, message.to,
                      int(from.action) * kStepActions + int(message.reader)},
                     kChannels + int(known.size()))
        .first->second;
  }
  void receive(int stage, const Call &call, StepAction reader) {
    for (int number : parts.receivedBy(call.part, reader)) {
      const StepMessage &message = parts.messages[size_t(number)];
      int &known = arrived[instance(number, call.microbatch)];
      if (known < 0) // else by R
        known = add(stage, channelOf(stage, false, message), 0, {},
                    int(instance(number, call.microbatch)));
    }
  }

  void writeCall(int stage, const Call &call) {
    receive(stage, call, call.action);
    if (call.joined)
      receive(stage, call, StepAction::W);
    std::vector<int> gradients;
    if (call.action == StepAction::R && !call.early) {
      receive(stage, call, StepAction::B);
      for (int number : parts.receivedBy(call.part, StepAction::B))
        gradients.push_back(arrived[instance(number, call.microbatch)]);
    }
    for (size_t i = 0; i < call.members.size(); ++i)
      writeMember(stage, call, i, gradients);
    send(stage, call, call.action);
    if (call.joined)
      send(stage, call, StepAction::W);
  }
  void send(int stage, const Call &call, StepAction action) {
    for (int number : parts.sentBy(call.part, action)) {
      const StepMessage &message = parts.messages[size_t(number)];
      const int meeting = int(instance(number, call.microbatch));
      const int to = message.to % shape.stages;
      TimedMessage &timed = out.messages[size_t(meeting)];
      timed.transfer = true;
      timed.latency = links.latency(stage, to);
      timed.seconds = links.transfer(message.bytes, stage, to);
      timed.level = links.level(stage, to);
      add(stage, channelOf(stage, true, message), 0,
          {instances[instance(message.from, call.microbatch)]}, meeting);
      std::vector<int> &ends = out.messages[size_t(meeting)].tasks;
      if (out.tasks[size_t(ends.front())].row != stage)
        std::swap(ends.front(), ends.back()); // the sender first
    }
  }

  // Whether what runs right behind a member reads it.
  bool isAwaited(const Call &call, size_t place) const {
    for (size_t next = place + 1; next < call.members.size(); ++next)
      if (parts.members[size_t(call.members[next])].seconds > 0)
        return parts.reads(call.members[next], call.members[place]);
    return false;
  }

  void writeMember(int stage, const Call &call, size_t place,
                   const std::vector<int> &gradients) {
    const int number = call.members[place];
    const StepMember &member = parts.members[size_t(number)];
    std::vector<int> needs = gradients;
    for (const StepNeed &need : member.needs) {
      const int of = need.message >= 0
                         ? arrived[instance(need.message, call.microbatch)]
                         : instances[instance(need.member, call.microbatch)];
      if (of >= 0)
        needs.push_back(of);
    }
    int made;
    if (member.communication && member.action != StepAction::R) {
      const bool awaited = !needs.empty() && isAwaited(call, place);
      made = collective(stage, awaited ? kCompute : kCollectives,
                        member.seconds, links.tensorLevel, std::move(needs));
    } else {
      made = compute(stage, member.seconds, std::move(needs));
    }
    instances[instance(number, call.microbatch)] = made;
  }

  // Beside the last calls, in the order in which they are ready. What is final
  // before the backward pass begins goes along with the first of them.
  void writeReductions(int stage,
                       const std::vector<StepReduction> &reductions) {
    struct Ready {
      const StepReduction *reduction;
      int place; // of the task behind which it is issued
    };
    std::vector<Ready> ready;
    for (const StepReduction &reduction : reductions) {
      int place = -1;
      for (int member : reduction.members)
        if (reduction.gradient)
          place = std::max(place, lastOf(stage, member));
      ready.push_back({&reduction, place});
    }
    std::stable_sort(
        ready.begin(), ready.end(),
        [](const Ready &a, const Ready &b) { return a.place < b.place; });
    struct Bucket {
      double bytes = 0;
      bool tensor = false;
      std::vector<int> needs;
      int place = -1;
      std::vector<int> of; // tasks of U
    };
    std::vector<Bucket> buckets;
    OpenBuckets<bool> openBuckets;
    for (const Ready &next : ready) {
      const StepReduction &reduction = *next.reduction;
      const size_t bucket = openBuckets.place(
          reduction.tensor, reduction.bytes >= shape.reduce.bucketBytes,
          buckets.size(), [&](size_t b) {
            return buckets[b].bytes + reduction.bytes <=
                   shape.reduce.bucketBytes;
          });
      if (bucket == buckets.size())
        buckets.push_back({0, reduction.tensor, {}, -1, {}});
      Bucket *open = &buckets[bucket];
      open->bytes += reduction.bytes;
      open->place = std::max(open->place, next.place);
      open->of.push_back(reduction.task);
      std::vector<int> needs;
      for (int member : reduction.members)
        if (int of = lastOf(stage, member); of >= 0)
          needs.push_back(of);
      for (int sum : reduction.sums)
        needs = {compute(
            stage, tasks.lists[int(ListOf::U)][size_t(sum)].seconds, needs)};
      open->needs.insert(open->needs.end(), needs.begin(), needs.end());
    }
    std::stable_sort(
        buckets.begin(), buckets.end(),
        [](const Bucket &a, const Bucket &b) { return a.place < b.place; });
    for (Bucket &bucket : buckets) {
      const int made = collective(stage, kReductions,
                                  reduceSeconds(bucket.bytes, bucket.tensor),
                                  links.stageLevel, std::move(bucket.needs));
      stages[size_t(stage)].lastReduction = made;
      for (int task : bucket.of)
        stages[size_t(stage)].reduced[task] = made;
    }
    for (const StepReduction &reduction : reductions)
      for (int sum : reduction.sums)
        stages[size_t(stage)].reduced.try_emplace(sum, -1);
  }
  // The task of a member in the last call that has it.
  int lastOf(int stage, int number) const {
    const StepMember &member = parts.members[size_t(number)];
    int last = -1;
    for (const Call &call : stages[size_t(stage)].calls)
      if (call.part == member.part)
        last = std::max(last, instances[instance(number, call.microbatch)]);
    return last;
  }
  double reduceSeconds(double bytes, bool tensor) const {
    const std::function<double(double)> &seconds =
        tensor ? shape.reduce.tensorSeconds : shape.reduce.seconds;
    return seconds ? seconds(bytes) : 0;
  }

  // ------------------------------------------------------------ once a step

  // What other stages made that the update of `stage` reads.
  void readExchange(int stage) {
    for (const StepExchange &exchange : parts.exchangesOf(stage))
      exchanged[size_t(parts.members[size_t(exchange.member)].part %
                       shape.stages)]
          .push_back({stage, exchange});
  }
  void writeExchange(int stage) {
    for (const auto &[to, exchange] : exchanged[size_t(stage)]) {
      const int copy =
          compute(stage, exchange.seconds, {lastOf(stage, exchange.member)});
      out.messages.push_back({{},
                              true,
                              links.transfer(exchange.bytes, stage, to),
                              links.latency(stage, to),
                              links.level(stage, to)});
      const int message = int(out.messages.size()) - 1;
      add(stage, exchangeChannel(stage, true, to), 0, {copy}, message);
      exchangedTask[{to, exchange.member}] =
          add(to, exchangeChannel(to, false, stage), 0, {}, message);
    }
  }

  int exchangeChannel(int stage, bool send, int peer) {
    std::map<std::tuple<bool, int, int, int>, int> &known =
        stages[size_t(stage)].channels;
    return known
        .try_emplace({send, peer, peer, -1}, kChannels + int(known.size()))
        .first->second;
  }

  void writeUpdate(int stage) {
    Stage &own = stages[size_t(stage)];
    std::vector<int> start;
    if (own.lastReduction >= 0)
      start.push_back(own.lastReduction);
    if (own.lastCompute >= 0)
      start.push_back(own.lastCompute);
    const int begin = compute(stage, 0, start);
    const std::vector<StepTask> &all = tasks.lists[int(ListOf::U)];
    std::map<int, int> made; // by task of U
    const std::set<int> late = parts.lateGradients(stage, own.reduced);
    // Streams enter the update each by itself: that of collectives when the
    // last call has computed, if one of them needs what the update makes.
    bool waits = bool(shape.stageNorm);
    for (int number : parts.updateTasks(stage))
      if (const StepTask &task = all[size_t(number)];
          (task.overRanks || task.communication) && !own.reduced.count(number))
        for (const TaskId &need : task.needs)
          waits |= need.list == int(ListOf::U);
    const int entry = waits ? own.lastCompute : -1;
    for (int number : parts.updateTasks(stage)) {
      const StepTask &task = all[size_t(number)];
      if (auto it = own.reduced.find(number); it != own.reduced.end()) {
        made[number] = it->second >= 0 ? it->second : begin;
        continue;
      }
      const bool meets = task.overRanks || task.communication;
      std::vector<int> needs;
      if (!meets)
        needs.push_back(begin);
      else if (entry >= 0)
        needs.push_back(entry);
      for (const TaskId &need : task.needs)
        addNeed(stage, need, made, needs);
      if (task.overRanks && late.count(number)) {
        joinLate(stage, number, late, needs, made);
        continue;
      }
      made[number] = meets ? collective(stage, kCollectives, task.seconds,
                                        links.stageLevel, std::move(needs))
                           : compute(stage, task.seconds, std::move(needs));
    }
    writeNorm(stage, begin, made);
  }
  // Gradients that the update makes are reduced in buckets too, at the last.
  void joinLate(int stage, int number, const std::set<int> &late,
                const std::vector<int> &needs, std::map<int, int> &made) {
    const std::vector<StepTask> &all = tasks.lists[int(ListOf::U)];
    const bool tensor = all[size_t(number)].tensor;
    double bytes = 0;
    std::vector<int> members;
    for (int other : late)
      if (all[size_t(other)].tensor == tensor) {
        members.push_back(other);
        bytes += all[size_t(other)].bytes;
      }
    std::vector<int> &waits = lateNeeds[{stage, tensor}];
    waits.insert(waits.end(), needs.begin(), needs.end());
    if (number != members.back())
      return;
    const int reduced =
        collective(stage, kCollectives, reduceSeconds(bytes, tensor),
                   links.stageLevel, waits);
    for (int member : members)
      made[member] = reduced;
  }
  void addNeed(int stage, const TaskId &need, std::map<int, int> &made,
               std::vector<int> &needs) {
    if (need.list == int(ListOf::U)) {
      if (auto it = made.find(need.task); it != made.end())
        needs.push_back(it->second);
      return;
    }
    const int member = parts.madeBy(need);
    if (auto it = exchangedTask.find({stage, member});
        it != exchangedTask.end())
      needs.push_back(it->second);
    else if (member >= 0)
      if (const int last = lastOf(stage, member); last >= 0)
        needs.push_back(last);
  }

  void writeNorm(int stage, int begin, std::map<int, int> &made) {
    const StageProblem &problem = model.problem;
    bool split = false;
    double vector = 0;
    std::vector<const StepUpdate *> held;
    for (const StepUpdate &update : tasks.updates) {
      const StageParameter &parameter =
          problem.parameters[size_t(update.parameter)];
      vector += 4;
      if (!parts.holds(stage, update))
        continue;
      held.push_back(&update);
      if (parts.firstHolder(update) != stage)
        continue;
      split |= parameter.split;
      std::vector<int> needs = {begin};
      addNeed(stage, update.gradient, made, needs);
      compute(stage, parameter.normSeconds, std::move(needs));
    }
    if (tasks.updates.empty())
      return;
    for (int run = parts.zeroRuns(stage, split); run > 0; --run)
      compute(stage, problem.smallKernel, {begin});
    int norm = stages[size_t(stage)].lastCompute;
    if (split && shape.tensorNorm) {
      norm = collective(stage, kCompute, shape.tensorNorm(vector),
                        links.tensorLevel, {norm});
      norm = compute(stage, problem.smallKernel, {norm});
    }
    if (shape.stageNorm)
      norm = meetStages(stage, shape.stageNorm(vector), norm);
    compute(stage, problem.smallKernel, {norm});
    for (const StepUpdate *update : held)
      compute(stage,
              problem.parameters[size_t(update->parameter)].updateSeconds, {});
  }
  int meetStages(int stage, double seconds, int norm) {
    if (stageNorm < 0) {
      stageNorm = int(out.messages.size());
      out.messages.push_back(
          {{}, false, seconds, 0, links.level(0, shape.stages - 1)});
    }
    return add(stage, kCollectives, 0, {norm}, stageNorm);
  }

  const StepTasks &tasks;
  const StageModel &model;
  const PipelineShape &shape;
  const PipelinePlan &plan;
  const StepLinks &links;
  StepParts parts;
  std::vector<Stage> stages;
  // The call that is being written; none: the end of the step.
  struct {
    int call = -1;
    std::map<int, int> first; // tasks, by stream
  } current;
  std::vector<int> callOf;                       // by task
  std::map<std::tuple<int, int, int>, int> ends; // by stage, call, stream
  // Tasks by microbatch of a member, of a message's receiver; -1: not written.
  std::vector<int> instances, arrived;
  // By the stage that sends: to which one, and what.
  std::vector<std::vector<std::pair<int, StepExchange>>> exchanged;
  // By the stage that receives, and member.
  std::map<std::pair<int, int>, int> exchangedTask;
  // Of late gradients, by stage and whether over the ranks of a replica too.
  std::map<std::pair<int, bool>, std::vector<int>> lateNeeds;
  int stageNorm = -1; // message
  StreamProgram out;
};

} // namespace

StepTimes sketchStep(const StepTasks &tasks, const StageModel &model,
                     const PipelineShape &shape, const PipelinePlan &plan,
                     const StepLinks &links) {
  return StepWriter(tasks, model, shape, plan, links).run();
}

} // namespace merak::planning
