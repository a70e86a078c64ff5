#include "passes/Planning/StepTasks.h"

#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>
#include <map>
#include <set>

namespace merak::planning {

// The task that makes a value, or that stores it where a collective cannot add
// to what is there.
TaskId StageProblemBuilder::makerOf(int list, int value) {
  const ActionOps &of = lists[size_t(list)];
  const ActionValue &made = of.values[size_t(value)];
  if (made.maker < 0) {
    auto origin = origins[size_t(list)].find(value);
    return origin == origins[size_t(list)].end()
               ? TaskId()
               : makerOf(int(origin->second.list), origin->second.value);
  }
  int task = made.maker;
  if (made.summed)
    for (int user : made.users)
      if (of.ops[size_t(user)].kind == ActionOp::Copy &&
          of.ops[size_t(user)].results.empty())
        task = user;
  return {list,
          list == int(ListOf::U) ? runs[size_t(list)][size_t(task)] : task};
}

// A task is where its op is; what is made anywhere, where it is read.
std::vector<std::set<int>>
StageProblemBuilder::partsOfTasks(const std::vector<StepTask> &all, int list,
                                  const std::vector<int> &begin) {
  std::vector<std::set<int>> on(all.size());
  for (size_t i = all.size(); i-- > 0;) {
    if (!all[i].anywhere || on[i].empty())
      on[i].insert(partAt(begin, all[i].at));
    for (const TaskId &need : all[i].needs)
      if (need.list == list && all[size_t(need.task)].anywhere)
        on[size_t(need.task)].insert(on[i].begin(), on[i].end());
  }
  return on;
}

// The ops of a list that a part has, as a list of its own: what comes from
// others lies in memory, and so does what others read.
ActionOps StageProblemBuilder::cut(ListOf list, int part,
                                   const std::vector<std::set<int>> &on,
                                   std::vector<int> &chosen) const {
  const ActionOps &all = lists[size_t(list)];
  ActionOps out;
  std::map<int, int> known; // values
  auto has = [&](int op) { return on[size_t(op)].count(part) > 0; };
  auto valueOf = [&](int value, int maker) {
    auto [it, isNew] = known.try_emplace(value, int(out.values.size()));
    if (isNew) {
      out.values.push_back(all.values[size_t(value)]);
      ActionValue &made = out.values.back();
      // What is made anywhere is there for all of its users.
      if (made.maker >= 0)
        for (int user : made.users)
          made.kept |= !std::includes(
              on[size_t(made.maker)].begin(), on[size_t(made.maker)].end(),
              on[size_t(user)].begin(), on[size_t(user)].end());
      made.users.clear();
      made.maker = maker;
    }
    return it->second;
  };
  for (size_t i = 0; i < all.ops.size(); ++i) {
    if (!has(int(i)))
      continue;
    const int number = int(out.ops.size());
    ActionOp op = all.ops[i];
    for (int &value : op.operands) {
      value = valueOf(value, -1);
      out.values[size_t(value)].users.push_back(number);
    }
    for (int &value : op.results)
      value = valueOf(value, number);
    out.ops.push_back(std::move(op));
    chosen.push_back(int(i));
  }
  return out;
}

PartTasks StageProblemBuilder::partTasks(ListOf list, int part,
                                         const std::vector<std::set<int>> &on) {
  PartTasks out;
  const ActionOps own = cut(list, part, on, out.tasks);
  const ListKernels made = kernelsOf(
      graph, outcome, own, list,
      {device.backend != "cpu", double(options.microbatches), tokens});
  for (size_t i = 0; i < own.ops.size(); ++i) {
    out.runs.push_back(int(i));
    double sum = 0;
    for (const ActionKernel &kernel : made.ops[i].kernels)
      sum += seconds(kernel, 1);
    out.seconds.push_back(sum);
  }
  for (size_t i = 0; i < own.ops.size(); ++i)
    for (int member : made.ops[i].members)
      out.runs[size_t(member)] = int(i);
  return out;
}

StepTask StageProblemBuilder::stepTask(ListOf list, int number,
                                       const std::vector<char> &everywhere) {
  const ActionOp &op = lists[size_t(list)].ops[size_t(number)];
  StepTask task;
  task.at = op.at;
  if (list == ListOf::U)
    task.seconds = seconds(list, number);
  for (int value : op.results)
    task.bytes += lists[size_t(list)].values[size_t(value)].bytes();
  task.anywhere =
      op.kind == ActionOp::Load || op.kind == ActionOp::Fill ||
      (op.kind == ActionOp::Op && everywhere[size_t(op.index)] != 0);
  if (op.kind == ActionOp::Conversion) {
    const Conversion &conversion = outcome.conversions[size_t(op.index)];
    const bool apart = groupOf(conversion.axes).devices.size() > 1 &&
                       conversion.kind != ConversionKind::Slice;
    const bool sum = conversion.kind == ConversionKind::AllReduceSum ||
                     conversion.kind == ConversionKind::AllReduceMax;
    if (list == ListOf::U && apart && sum) {
      const Group group = groupOf(conversion.axes);
      task.overRanks = true;
      task.tensor = hasAxisOn(conversion.axes, kTensorAxis);
      task.seconds = costmodel::collectiveSeconds(
          costmodel::Collective::AllReduce, task.bytes, group.devices,
          options.cluster, group.sharing);
    } else if (apart) {
      task.seconds = collective(conversion);
      task.communication = task.seconds > 0;
    }
  }
  if (list == ListOf::U && !op.results.empty())
    task.sums = op.kind == ActionOp::Op && isOfBackward(op.results[0]);
  auto read = [&](int reader) {
    for (int value : lists[size_t(list)].ops[size_t(reader)].operands)
      if (TaskId need = makerOf(int(list), value);
          need.list >= 0 && need != TaskId{int(list), number})
        task.needs.push_back(need);
  };
  read(number);
  if (list == ListOf::U)
    for (int member : kernels[size_t(list)].ops[size_t(number)].members)
      read(member);
  std::sort(task.needs.begin(), task.needs.end());
  task.needs.erase(std::unique(task.needs.begin(), task.needs.end()),
                   task.needs.end());
  // What stands behind is a fused op's: it is there in another form.
  std::erase_if(task.needs, [&](const TaskId &need) {
    return need.list == int(list) && need.task > number;
  });
  return task;
}

Result<StepTasks> StageProblemBuilder::steps(const std::vector<int> &begin) {
  readTensors();
  readOps();
  converts = convertedOnce(graph, outcome, options.convertOnce);
  listActions(false);
  for (const Conversion &conversion : outcome.conversions)
    if (conversion.life || (conversion.phase == Phase::Update &&
                            (conversion.kind == ConversionKind::ReduceScatter ||
                             isOfEach(graph, conversion))))
      return Status::error("parameters that are stored in parts");
  std::array<std::vector<Sums>, 3> unused;
  makeLinks();
  makeTensors();
  makeTasks(unused); // and with them `runs`
  const ActionOps &update = lists[size_t(ListOf::U)];
  std::vector<int> &runsOfUpdate = runs[size_t(ListOf::U)];
  for (size_t i = 0; i < update.ops.size(); ++i)
    runsOfUpdate.push_back(int(i));
  for (size_t i = 0; i < update.ops.size(); ++i)
    for (int member : kernels[size_t(ListOf::U)].ops[i].members)
      runsOfUpdate[size_t(member)] = int(i);
  makeParameters();
  std::map<std::string, int> parameters; // by name
  for (size_t p = 0; p < out.parameters.size(); ++p)
    parameters[out.parameters[p].name.str()] = int(p);
  const std::vector<char> everywhere = everywhereOps(graph, outcome);
  StepTasks step;
  for (ListOf list : {ListOf::F, ListOf::B, ListOf::W, ListOf::U})
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      step.lists[size_t(list)].push_back(stepTask(list, int(i), everywhere));
  step.parts.resize(begin.size() - 1);
  for (ListOf list : {ListOf::F, ListOf::B, ListOf::W}) {
    const std::vector<std::set<int>> on =
        partsOfTasks(step.lists[size_t(list)], int(list), begin);
    for (size_t part = 0; part < step.parts.size(); ++part)
      step.parts[part][size_t(list)] = partTasks(list, int(part), on);
  }
  std::map<int, int> gradients; // values of U, by tensor
  for (size_t v = 0; v < update.values.size(); ++v)
    if (update.values[v].updates)
      gradients[update.values[v].tensor] = int(v);
  for (const GraphOp &op : graph.ops)
    if (op.isUpdate())
      if (auto p = parameters.find(graph.tensors[size_t(op.operands[0])].name);
          p != parameters.end())
        if (auto value = gradients.find(op.operands[1]);
            value != gradients.end())
          step.updates.push_back(
              {p->second, makerOf(int(ListOf::U), value->second)});
  return step;
}

Result<StepTasks> makeStepTasks(const Graph &graph,
                                const Assignment &assignment,
                                const Outcome &outcome,
                                const StageCostOptions &options,
                                const std::vector<int> &begin) {
  return StageProblemBuilder(graph, assignment, outcome, options).steps(begin);
}

} // namespace merak::planning
