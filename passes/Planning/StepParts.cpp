#include "passes/Planning/StepParts.h"

#include "passes/Planning/LastBackward.h"

#include <algorithm>
#include <tuple>

namespace merak::planning {

// In which action tasks of a list of a microbatch are first made.
static StepAction actionOf(int list) {
  return list == int(ListOf::F)   ? StepAction::F
         : list == int(ListOf::B) ? StepAction::B
                                  : StepAction::W;
}

StepParts::StepParts(const StepTasks &tasks, const StageModel &model,
                     const PipelinePlan &plan, const PipelineShape &shape)
    : tasks(tasks), model(model), plan(plan), shape(shape),
      actions(plan.begin.size() - 1),
      recomputed(plan.recomputed(model, shape)) {
  choose(ListOf::F, StepAction::F);
  choose(ListOf::B, StepAction::B);
  choose(ListOf::W, StepAction::W);
  chooseRepeated();
  readNeeds();
}

int StepParts::homeOf(const StepTask &task) const {
  return partAt(plan.begin, task.at);
}

int StepParts::addMember(int part, StepAction action, const StepMember &like) {
  const int number = int(members.size());
  at(part, action).members.push_back(number);
  for (int task : like.does)
    at(part, action).memberOf[task] = number;
  members.push_back(like);
  members.back().part = part;
  members.back().action = action;
  return number;
}

// Places of what runs by itself. A fused kernel stands where the last of its
// ops does: another form of what it makes comes behind it.
std::vector<int> StepParts::kernelOrder(const PartTasks &own,
                                        ListOf list) const {
  std::map<int, int> placeOf; // by task
  for (size_t i = 0; i < own.tasks.size(); ++i)
    placeOf[own.tasks[i]] = own.runs[i];
  std::vector<std::pair<int, int>> order; // behind which place
  std::vector<int> behind(own.tasks.size());
  for (int i = 0; i < int(own.tasks.size()); ++i) {
    const StepTask &task =
        tasks.lists[size_t(list)][size_t(own.tasks[size_t(i)])];
    behind[size_t(i)] = i;
    if (own.runs[size_t(i)] != i)
      continue;
    if (own.seconds[size_t(i)] <= 0 && !task.communication)
      for (const TaskId &need : task.needs)
        if (auto it = placeOf.find(need.task);
            need.list == int(list) && it != placeOf.end())
          behind[size_t(i)] =
              std::max(behind[size_t(i)],
                       std::max(it->second, behind[size_t(it->second)]));
    order.push_back({behind[size_t(i)], i});
  }
  // Of a place its own kernel first.
  std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) {
    return std::tuple(a.first, a.first != a.second, a.second) <
           std::tuple(b.first, b.first != b.second, b.second);
  });
  std::vector<int> places;
  for (const auto &[after, place] : order)
    places.push_back(place);
  return places;
}

// One for each kernel, with all that it does.
void StepParts::choose(ListOf list, StepAction action) {
  for (int part = 0; part < count(); ++part) {
    const PartTasks &own = tasks.parts[size_t(part)][size_t(list)];
    std::vector<StepMember> made(own.tasks.size());
    for (size_t i = 0; i < own.tasks.size(); ++i)
      made[size_t(own.runs[i])].does.push_back(own.tasks[i]);
    for (int i : kernelOrder(own, list)) {
      const StepTask &task =
          tasks.lists[size_t(list)][size_t(own.tasks[size_t(i)])];
      made[size_t(i)].task = {int(list), own.tasks[size_t(i)]};
      made[size_t(i)].communication = task.communication;
      made[size_t(i)].seconds =
          task.communication ? task.seconds : own.seconds[size_t(i)];
      addMember(part, action, made[size_t(i)]);
    }
  }
}

int StepParts::find(int part, StepAction action, int task) const {
  const std::map<int, int> &of = at(part, action).memberOf;
  auto it = of.find(task);
  return it == of.end() ? -1 : it->second;
}

// What B and W read of ops that are recomputed, and what these read.
void StepParts::chooseRepeated() {
  const std::vector<StepTask> &forward = tasks.lists[size_t(ListOf::F)];
  for (int part = 0; part < count(); ++part) {
    std::set<int> again; // members of F
    auto want = [&](const TaskId &need, bool byRepeated) {
      if (need.list != int(ListOf::F))
        return;
      const StepTask &task = forward[size_t(need.task)];
      const int member = find(part, StepAction::F, need.task);
      if (member >= 0 && !members[size_t(member)].communication &&
          ((task.anywhere && byRepeated) ||
           (!task.anywhere && task.at >= 0 && recomputed[size_t(task.at)])))
        again.insert(member);
    };
    auto wantAll = [&](int member, bool byRepeated) {
      for (int task : members[size_t(member)].does)
        for (const TaskId &need :
             tasks
                 .lists[size_t(members[size_t(member)].task.list)][size_t(task)]
                 .needs)
          want(need, byRepeated);
    };
    for (StepAction action : {StepAction::B, StepAction::W})
      for (int member : membersOf(part, action))
        wantAll(member, false);
    // Needs stand in front: the set grows only before the iterator.
    for (auto it = again.rbegin(); it != again.rend(); ++it)
      wantAll(*it, true);
    for (int member : again)
      addMember(part, StepAction::R, StepMember(members[size_t(member)]));
  }
}

int StepParts::messageFor(const TaskId &need, int part, StepAction reader) {
  const StepTask &task = tasks.lists[size_t(need.list)][size_t(need.task)];
  const StepAction made = actionOf(need.list);
  const int from = find(homeOf(task), made, need.task);
  if (from < 0 || homeOf(task) == part)
    return -1;
  auto [it, isNew] =
      knownMessages.try_emplace({need, part}, int(messages.size()));
  if (isNew) {
    messages.push_back({from, part, reader, task.bytes});
    at(part, reader).received.push_back(it->second);
    at(homeOf(task), made).sent.push_back(it->second);
  }
  return it->second;
}

StepNeed StepParts::needOf(const StepMember &reader, const TaskId &need) {
  StepNeed out;
  if (need.list == int(ListOf::F)) {
    if (reader.action != StepAction::F)
      out.member = find(reader.part, StepAction::R, need.task);
    if (out.member < 0)
      out.member = find(reader.part, StepAction::F, need.task);
  } else {
    out.member = find(reader.part, actionOf(need.list), need.task);
  }
  // Another part of the same stage has it as it is.
  if (const int made = out.member < 0 ? madeBy(need) : -1;
      made >= 0 && stageOf(members[size_t(made)].part) == stageOf(reader.part))
    out.member = made;
  if (out.member < 0)
    out.message = messageFor(need, reader.part, reader.action);
  return out;
}

// Messages of a channel go in the order in which they are read.
void StepParts::readNeeds() {
  for (StepAction action :
       {StepAction::F, StepAction::R, StepAction::B, StepAction::W})
    for (size_t part = 0; part < actions.size(); ++part)
      for (int member : membersOf(int(part), action)) {
        std::vector<StepNeed> needs;
        const StepMember reader = members[size_t(member)];
        for (int task : reader.does)
          for (const TaskId &need :
               tasks.lists[size_t(reader.task.list)][size_t(task)].needs)
            if (StepNeed of = needOf(reader, need);
                of.message >= 0 || (of.member >= 0 && of.member != member))
              needs.push_back(of);
        members[size_t(member)].needs = std::move(needs);
      }
}

bool StepParts::reads(int reader, int member) const {
  const std::vector<StepNeed> &needs = members[size_t(reader)].needs;
  return std::any_of(needs.begin(), needs.end(), [&](const StepNeed &need) {
    return need.member == member ||
           (need.member > member && members[size_t(need.member)].seconds <= 0 &&
            reads(need.member, member));
  });
}

std::vector<int> StepParts::joined(int part) const {
  const std::vector<int> &b = membersOf(part, StepAction::B),
                         &w = membersOf(part, StepAction::W);
  std::map<int, int> place; // of members, in their list
  auto tasksOf = [&](const std::vector<int> &all) {
    std::vector<IssuedTask> out;
    for (int member : all) {
      place[member] = int(out.size());
      IssuedTask task{members[size_t(member)].seconds,
                      members[size_t(member)].communication,
                      {}};
      for (const StepNeed &need : members[size_t(member)].needs)
        if (auto it = place.find(need.member);
            it != place.end() && members[size_t(need.member)].action ==
                                     members[size_t(member)].action)
          task.needs.push_back(it->second);
      out.push_back(std::move(task));
    }
    return out;
  };
  const std::vector<IssuedTask> ofB = tasksOf(b), ofW = tasksOf(w);
  std::vector<std::vector<int>> backward(w.size());
  for (size_t i = 0; i < w.size(); ++i)
    for (const StepNeed &need : members[size_t(w[i])].needs)
      // What another part's B makes is there when this one's begins.
      if (auto it = place.find(need.member);
          it != place.end() &&
          members[size_t(need.member)].action == StepAction::B)
        backward[i].push_back(it->second);
  std::vector<int> order;
  for (int number : joinedOrder(ofB, ofW, backward))
    order.push_back(number < int(b.size()) ? b[size_t(number)]
                                           : w[size_t(number) - b.size()]);
  return order;
}

// -------------------------------------------------------------- once a step

double StepParts::beforeFirst(int part) const {
  double seconds =
      model.castSeconds(plan.begin[size_t(part)], plan.begin[size_t(part) + 1]);
  for (int i = plan.begin[size_t(part)]; i < plan.begin[size_t(part) + 1];
       ++i) {
    const StageOp &op = model.problem.ops[size_t(i)];
    seconds += op.prologue * shape.microbatches +
               (shape.microbatches > 1 ? op.clear : 0);
  }
  return seconds;
}

bool StepParts::holds(int stage, const StepUpdate &update) const {
  const std::vector<int> &users =
      model.problem.parameters[size_t(update.parameter)].users;
  return std::any_of(users.begin(), users.end(), [&](int user) {
    return stageOf(partAt(plan.begin, user)) == stage;
  });
}

int StepParts::firstHolder(const StepUpdate &update) const {
  int first = shape.stages;
  for (int user : model.problem.parameters[size_t(update.parameter)].users)
    first = std::min(first, stageOf(partAt(plan.begin, user)));
  return first;
}

// Tasks of U that updates of a stage hang on.
std::set<int> StepParts::behindUpdates(int stage) const {
  std::set<int> out;
  for (const StepUpdate &update : tasks.updates)
    if (update.gradient.list == int(ListOf::U) &&
        (stage < 0 || holds(stage, update)))
      out.insert(update.gradient.task);
  for (auto it = out.rbegin(); it != out.rend(); ++it)
    for (const TaskId &need : tasks.lists[int(ListOf::U)][size_t(*it)].needs)
      if (need.list == int(ListOf::U))
        out.insert(need.task);
  return out;
}

std::vector<int> StepParts::updateTasks(int stage) const {
  const std::set<int> own = behindUpdates(stage), all = behindUpdates(-1);
  const std::vector<StepTask> &update = tasks.lists[int(ListOf::U)];
  std::vector<int> out;
  for (int i = 0; i < int(update.size()); ++i)
    if (own.count(i) ||
        (!all.count(i) && stageOf(homeOf(update[size_t(i)])) == stage))
      out.push_back(i);
  return out;
}

int StepParts::madeBy(const TaskId &task) const {
  if (task.list < 0 || task.list == int(ListOf::U))
    return -1;
  const StepAction made = actionOf(task.list);
  return find(homeOf(tasks.lists[size_t(task.list)][size_t(task.task)]), made,
              task.task);
}

// Whether all that a task of U reads was left by the stage's own backward pass,
// or adds up what was.
bool StepParts::isOfStage(int stage, const TaskId &task,
                          StepReduction &into) const {
  if (task.list == int(ListOf::U)) {
    const StepTask &of = tasks.lists[int(ListOf::U)][size_t(task.task)];
    if (!of.sums)
      return false;
    for (const TaskId &need : of.needs)
      if (!isOfStage(stage, need, into))
        return false;
    into.sums.push_back(task.task);
    return true;
  }
  const int member = madeBy(task);
  if (member < 0 || stageOf(members[size_t(member)].part) != stage)
    return false;
  into.members.push_back(member);
  return true;
}

std::vector<StepReduction> StepParts::reductionsOf(int stage) const {
  std::vector<StepReduction> gradients, others;
  const std::vector<StepTask> &update = tasks.lists[int(ListOf::U)];
  std::set<int> ofUpdates;
  for (const StepUpdate &of : tasks.updates)
    if (of.gradient.list == int(ListOf::U))
      ofUpdates.insert(of.gradient.task);
  for (int i : updateTasks(stage)) {
    const StepTask &task = update[size_t(i)];
    const std::function<double(double)> &seconds =
        task.tensor ? shape.reduce.tensorSeconds : shape.reduce.seconds;
    if (!task.overRanks || !seconds || !shape.reduce.early)
      continue;
    StepReduction reduction;
    reduction.task = i;
    reduction.bytes = task.bytes;
    reduction.tensor = task.tensor;
    bool own = true;
    for (const TaskId &need : task.needs)
      own &= isOfStage(stage, need, reduction);
    if (!own)
      continue;
    for (int member : reduction.members)
      reduction.gradient |= members[size_t(member)].action == StepAction::B ||
                            members[size_t(member)].action == StepAction::W;
    (reduction.gradient ? gradients : others).push_back(std::move(reduction));
  }
  if (!gradients.empty())
    gradients.insert(gradients.begin(), others.begin(), others.end());
  return gradients;
}

std::set<int>
StepParts::lateGradients(int stage, const std::map<int, int> &reduced) const {
  const std::vector<StepTask> &update = tasks.lists[int(ListOf::U)];
  std::set<int> out, read;
  for (const StepTask &task : update)
    for (const TaskId &need : task.needs)
      if (need.list == int(ListOf::U))
        read.insert(need.task);
  for (const StepUpdate &of : tasks.updates)
    if (const int task = of.gradient.task;
        of.gradient.list == int(ListOf::U) && holds(stage, of) &&
        update[size_t(task)].overRanks && !reduced.count(task) &&
        !read.count(task))
      out.insert(task);
  return out;
}

std::vector<StepExchange> StepParts::exchangesOf(int stage) const {
  std::vector<StepExchange> out;
  std::set<int> known;
  auto add = [&](const TaskId &task, double copy) {
    const int member = madeBy(task);
    if (member >= 0 && stageOf(members[size_t(member)].part) != stage &&
        known.insert(member).second)
      out.push_back({member, taskOf(member).bytes, copy});
  };
  double copy = model.problem.smallKernel;
  for (const StepUpdate &update : tasks.updates)
    if (holds(stage, update)) {
      const double seconds =
          model.problem.parameters[size_t(update.parameter)].exchangeSeconds;
      copy = std::max(copy, seconds);
      add(update.gradient, seconds);
    }
  for (int i : updateTasks(stage))
    for (const TaskId &need : tasks.lists[int(ListOf::U)][size_t(i)].needs)
      add(need, copy);
  return out;
}

int StepParts::zeroRuns(int stage, bool split) const {
  int runs = 0;
  for (int whole = 0; whole < (split ? 2 : 1); ++whole) {
    bool before = false;
    for (const StepUpdate &update : tasks.updates) {
      const StageParameter &parameter =
          model.problem.parameters[size_t(update.parameter)];
      const bool zero =
          firstHolder(update) != stage || parameter.split != bool(whole);
      runs += zero && !before;
      before = zero;
    }
  }
  return runs;
}

} // namespace merak::planning
