#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>

namespace merak::planning {

bool StageProblemBuilder::joins(const ActionOp &op) const {
  if (op.kind != ActionOp::Op)
    return op.kind != ActionOp::Conversion;
  const GraphOp &of = graph.ops[size_t(op.index)];
  return of.viewLike || (of.pointwise && !of.rule.linear.empty());
}

void StageProblemBuilder::makeTasks(std::array<std::vector<Sums>, 3> &sums) {
  for (ListOf list : {ListOf::F, ListOf::B, ListOf::W}) {
    sums[size_t(list)].resize(forwardOps.size());
    messages[size_t(list)].resize(forwardOps.size());
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      runsAt(list).push_back(int(i));
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      for (int member : kernels[size_t(list)].ops[i].members)
        runsAt(list)[size_t(member)] = int(i);
    taskOf[size_t(list)].assign(lists[size_t(list)].ops.size(), -1);
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      makeTask(list, int(i), sums[size_t(list)]);
  }
}

void StageProblemBuilder::makeTask(ListOf list, int number,
                                   std::vector<Sums> &sums) {
  const ActionOp &op = lists[size_t(list)].ops[size_t(number)];
  if (op.at < 0)
    return;
  SubmicrobatchTask task;
  task.op = op.at;
  task.joins = joins(op);
  task.once = tokens && !op.results.empty() && partsOf(list, op) == 1;
  task.seconds = seconds(list, number);
  if (op.kind == ActionOp::Conversion) {
    const Conversion &conversion = outcome.conversions[size_t(op.index)];
    if (isBeside(conversion))
      return messages[size_t(list)][size_t(op.at)].push_back(bytesAs(
          conversion.kind == ConversionKind::ReduceScatter ? conversion.from
                                                           : conversion.to,
          conversion.tensor));
    if (isBetweenSubmicrobatches(conversion)) {
      task.seconds = joinSeconds(conversion);
    } else if (conversion.kind != ConversionKind::Slice &&
               conversion.kind != ConversionKind::Place) {
      task.seconds = collective(conversion);
      task.communication = task.seconds > 0;
    }
  }
  share(list, number, task, sums);
  if (options.tp == 1)
    return;
  task.once |= submicrobatches() == 1;
  readNeeds(list, number, task);
  taskOf[size_t(list)][size_t(number)] =
      int(out.submicrobatches[size_t(list)].size());
  out.submicrobatches[size_t(list)].push_back(std::move(task));
}

void StageProblemBuilder::share(ListOf list, int number,
                                const SubmicrobatchTask &task,
                                std::vector<Sums> &sums) const {
  const double both =
      (task.once ? 1 : submicrobatches()) * task.seconds; // of a microbatch
  if (task.communication) {
    sums[size_t(task.op)].wait += both;
    return;
  }
  const std::vector<int> &members =
      kernels[size_t(list)].ops[size_t(number)].members;
  const auto placeOf = [&](int member) {
    return lists[size_t(list)].ops[size_t(member)].at;
  };
  const auto placed =
      std::count_if(members.begin(), members.end(),
                    [&](int member) { return placeOf(member) >= 0; });
  if (placed == 0)
    sums[size_t(task.op)].compute += both;
  for (int member : members)
    if (const int of = placeOf(member); of >= 0)
      sums[size_t(of)].compute += both / double(placed);
}

void StageProblemBuilder::readNeeds(ListOf list, int number,
                                    SubmicrobatchTask &task) {
  const ActionOps &of = lists[size_t(list)];
  auto read = [&](int value) {
    const ActionValue &from = of.values[size_t(value)];
    if (from.maker < 0)
      return readOther(list, from.tensor, task);
    int at = runsAt(list)[size_t(from.maker)];
    int need = taskOf[size_t(list)][size_t(at < number ? at : from.maker)];
    if (need >= 0 && !std::count(task.needs.begin(), task.needs.end(), need))
      task.needs.push_back(need);
  };
  for (int value : of.ops[size_t(number)].operands)
    read(value);
  for (int member : kernels[size_t(list)].ops[size_t(number)].members)
    if (member != number) {
      for (int value : of.ops[size_t(member)].operands)
        if (of.values[size_t(value)].maker < number)
          read(value);
      if (int need = taskOf[size_t(list)][size_t(member)];
          need >= 0 && member < number)
        task.needs.push_back(need);
    }
}

void StageProblemBuilder::readOther(ListOf list, int tensor,
                                    SubmicrobatchTask &task) const {
  int from = producer[size_t(tensor)];
  if (from < 0 || list == ListOf::F || stageOp[size_t(from)] < 0)
    return;
  if (graph.ops[size_t(from)].phase == Phase::Forward) {
    task.values.push_back(tensor);
    return;
  }
  if (list != ListOf::W)
    return;
  const ActionOps &of = lists[size_t(ListOf::B)];
  for (size_t i = of.ops.size(); i-- > 0;)
    for (int value : of.ops[i].results)
      if (of.values[size_t(value)].tensor == tensor) {
        if (int made = taskOf[size_t(ListOf::B)][i]; made >= 0)
          task.backward.push_back(made);
        return;
      }
}

bool StageProblemBuilder::isGenerated(ListOf list, int op) const {
  const ActionOps &of = lists[size_t(list)];
  while (of.ops[size_t(op)].moves != Moves::No) {
    const int maker = of.values[size_t(of.ops[size_t(op)].operands[0])].maker;
    if (maker < 0)
      return false;
    op = maker;
  }
  const std::vector<int> &at = runs[size_t(list)]; // none of P
  const OpKernels &made =
      kernels[size_t(list)].ops[size_t(at.empty() ? op : at[size_t(op)])];
  return std::any_of(made.kernels.begin(), made.kernels.end(),
                     [](const ActionKernel &kernel) {
                       return kernel.work.name.starts_with("elementwise");
                     });
}

void StageProblemBuilder::makeOnce() {
  auto at = [&](int op) -> StageOp * {
    return op >= 0 ? &out.ops[size_t(op)] : nullptr;
  };
  for (ListOf list : {ListOf::U, ListOf::P})
    for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
      if (StageOp *op = at(lists[size_t(list)].ops[i].at))
        (list == ListOf::U ? op->update : op->prologue) +=
            seconds(list, int(i));
  // Library kernels write what they would add to it; not in a forward pass, of
  // which no copy is made for a loss (passes/Lowering/WriteSums.cpp).
  for (ListOf list : {ListOf::F, ListOf::B, ListOf::W, ListOf::P})
    for (const ActionValue &value : lists[size_t(list)].values)
      if (value.summed && value.maker >= 0 &&
          (list == ListOf::F || isGenerated(list, value.maker)))
        if (StageOp *op = at(lists[size_t(list)].ops[size_t(value.maker)].at))
          op->clear += seconds({.name = "fill", .bytes = value.bytes()});
}

} // namespace merak::planning
