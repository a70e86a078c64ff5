#include "passes/Planning/StepTasks.h"

#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>
#include <map>

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
  return {list, runs[size_t(list)][size_t(task)]};
}

StepTask StageProblemBuilder::stepTask(ListOf list, int number,
                                       const std::vector<char> &everywhere) {
  const ActionOp &op = lists[size_t(list)].ops[size_t(number)];
  StepTask task;
  task.at = op.at;
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
    if (list == ListOf::U) {
      task.overRanks = apart;
      task.tensor = hasAxisOn(conversion.axes, kTensorAxis);
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

Result<StepTasks> StageProblemBuilder::steps() {
  readTensors();
  readOps();
  listActions(false);
  for (const Conversion &conversion : outcome.conversions)
    if (conversion.life || conversion.kind == ConversionKind::ReduceScatter ||
        isScatteredEach(graph, conversion))
      if (conversion.life || conversion.phase == Phase::Update)
        return Status::error("parameters that are stored in parts");
  std::array<std::vector<Sums>, 3> unused;
  makeLinks();
  makeTensors();
  makeTasks(unused); // and with them `runs`
  for (ListOf list : {ListOf::U}) {
    std::vector<int> &at = runs[size_t(list)];
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      at.push_back(int(i));
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      for (int member : kernels[size_t(list)].ops[i].members)
        at[size_t(member)] = int(i);
  }
  makeParameters();
  std::map<std::string, int> parameters; // by name
  for (size_t p = 0; p < out.parameters.size(); ++p)
    parameters[out.parameters[p].name] = int(p);
  const std::vector<char> everywhere = everywhereOps(graph, outcome);
  StepTasks step;
  for (ListOf list : {ListOf::F, ListOf::B, ListOf::W, ListOf::U})
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      step.lists[size_t(list)].push_back(stepTask(list, int(i), everywhere));
  std::map<int, int> gradients; // values of U, by tensor
  const ActionOps &update = lists[size_t(ListOf::U)];
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
                                const StageCostOptions &options) {
  return StageProblemBuilder(graph, assignment, outcome, options).steps();
}

} // namespace merak::planning
