#include "passes/Planning/ReplayedTables.h"
#include "passes/Planning/StageProblemBuilder.h"

#include <algorithm>
#include <set>

namespace merak::planning {

void StageProblemBuilder::addUsers(int t, const std::vector<char> &everywhere,
                                   std::vector<int> &of) const {
  for (int user : users[size_t(t)])
    if (options.train && everywhere[size_t(user)])
      for (int made : graph.ops[size_t(user)].results)
        addUsers(made, everywhere, of);
    else if (stageOp[size_t(user)] >= 0 && !isLate(user) &&
             graph.ops[size_t(user)].phase == Phase::Forward)
      of.push_back(stageOp[size_t(user)]);
}

bool StageProblemBuilder::isSplit(const layout::Layout &layout,
                                  const std::string &axis) {
  for (const layout::DimLayout &dim : layout.dims)
    for (const layout::Factor &factor : dim.factors)
      if (hasAxisOn(factor.axes, axis))
        return true;
  return false;
}

double StageProblemBuilder::bytesAs(const layout::Layout &layout, int t) const {
  double all = graph.tensors[size_t(t)].elementBytes;
  for (int64_t size : layout.localShape(mesh))
    all *= double(size);
  return all;
}

int StageProblemBuilder::storedBehind(const Conversion &conversion) const {
  if (!conversion.life)
    return -1;
  const int maker = producer[size_t(conversion.tensor)];
  return maker < 0 ? conversion.tensor : graph.ops[size_t(maker)].operands[0];
}

void StageProblemBuilder::addGathered(int t,
                                      const std::vector<char> &everywhere,
                                      StageParameter &parameter) {
  std::map<int, StageParameter::Copy> copies; // by what is gathered
  for (int c : gathers[t]) {
    const Conversion &conversion = outcome.conversions[size_t(c)];
    if (!conversion.isGatheredOnce())
      continue;
    const double whole = bytesAs(conversion.to, conversion.tensor);
    StageParameter::Copy &copy = copies[conversion.tensor];
    copy.bytes = std::max(copy.bytes, whole);
    for (int user : gatherUsers[c])
      if (options.train && everywhere[size_t(user)])
        for (int made : graph.ops[size_t(user)].results)
          addUsers(made, everywhere, copy.users);
      else if (stageOp[size_t(user)] >= 0)
        copy.users.push_back(stageOp[size_t(user)]);
    if (!isOverReplicas(conversion)) {
      parameter.ownSeconds += wholeCollective(conversion);
      continue;
    }
    copy.message += whole;
    if (std::any_of(gatherUsers[c].begin(), gatherUsers[c].end(),
                    [&](int user) {
                      return graph.ops[size_t(user)].phase == Phase::Backward;
                    }))
      copy.again += whole;
    if (conversion.tensor != t)
      copy.castSeconds += seconds(
          {.name = "elementwise",
           .bytes = bytes(t) + bytesAs(conversion.from, conversion.tensor)});
  }
  for (auto &[tensor, copy] : copies)
    parameter.copies.push_back(std::move(copy));
}

void StageProblemBuilder::addConverted(int t,
                                       const std::vector<char> &everywhere,
                                       StageParameter &parameter) const {
  std::vector<int> first; // tensors, of the copies
  for (int user : users[size_t(t)]) {
    if (!converts[size_t(user)])
      continue;
    const int made = graph.ops[size_t(user)].results[0];
    size_t c = 0;
    while (c < first.size() && (graph.tensors[size_t(first[c])].elementBytes !=
                                    graph.tensors[size_t(made)].elementBytes ||
                                !(outcome.tensors[size_t(first[c])] ==
                                  outcome.tensors[size_t(made)])))
      ++c;
    if (c == first.size()) {
      first.push_back(made);
      StageParameter::Copy copy;
      copy.bytes = bytes(made);
      copy.castSeconds =
          seconds({.name = "elementwise", .bytes = bytes(t) + bytes(made)});
      parameter.copies.push_back(std::move(copy));
    }
    addUsers(
        made, everywhere,
        parameter.copies[parameter.copies.size() - first.size() + c].users);
  }
}

// Of what is converted once (copies from `first` on) one is kept from step to
// step, which the update writes and nothing converts (passes/Lowering,
// KeepCopies): its bytes.
double StageProblemBuilder::keepCopy(StageParameter &parameter, size_t first) {
  if (first >= parameter.copies.size())
    return 0;
  StageParameter::Copy &kept = parameter.copies[first];
  kept.castSeconds = 0;
  return kept.bytes;
}

std::vector<TensorUse> StageProblemBuilder::gradientUses(int update) const {
  std::vector<TensorUse> uses{{update, 1}};
  for (size_t i = 0; i < uses.size(); ++i) {
    const int maker = makerAt(uses[i]);
    if (maker >= 0 && isSumOfGradients(graph.ops[size_t(maker)])) {
      uses.push_back({maker, 0});
      uses.push_back({maker, 1});
    }
  }
  return uses;
}

void StageProblemBuilder::addSummands(int update,
                                      StageParameter &parameter) const {
  for (const TensorUse &use : gradientUses(update)) {
    int maker = makerAt(use);
    if (maker >= 0 && isSumOfGradients(graph.ops[size_t(maker)]))
      continue;
    // What changes its type belongs to the op that it comes from.
    while (maker >= 0 && graph.ops[size_t(maker)].epilogue == Epilogue::Cast)
      maker = makerAt({maker, 0});
    const int of = maker < 0 ? -1 : graph.ops[size_t(maker)].gradientOf;
    if (of >= 0 && stageOp[size_t(of)] >= 0)
      parameter.summands.push_back(stageOp[size_t(of)]);
  }
}

void StageProblemBuilder::addScattered(int update, StageParameter &parameter) {
  const int gradient = graph.ops[size_t(update)].operands[1];
  layout::Layout layout = outcome.tensors[size_t(gradient)];
  for (const TensorUse &use : gradientUses(update))
    for (int c : outcome.ops[size_t(use.op)]
                     .operands[size_t(use.operand)]
                     .conversions) {
      const Conversion &conversion = outcome.conversions[size_t(c)];
      if (conversion.kind != ConversionKind::ReduceScatter)
        continue;
      parameter.scattered = true;
      if (isOfEach(graph, conversion)) {
        layout = conversion.to;
      } else if (isOverReplicas(conversion)) {
        parameter.scatterMessage = bytesAs(conversion.from, gradient);
        parameter.partBytes = bytesAs(conversion.to, gradient);
      } else {
        parameter.ownSeconds += wholeCollective(conversion);
      }
    }
  if (parameter.scattered)
    parameter.gradientBytes = bytesAs(layout, gradient);
}

void StageProblemBuilder::findStored() {
  for (size_t c = 0; c < outcome.conversions.size(); ++c)
    if (int t = storedBehind(outcome.conversions[c]); t >= 0)
      gathers[t].push_back(int(c));
  if (!gathers.empty())
    for (size_t i = 0; i < graph.ops.size(); ++i)
      for (const OperandUse &use : outcome.ops[i].operands)
        for (int c : use.conversions)
          if (outcome.conversions[size_t(c)].isGatheredOnce())
            gatherUsers[c].push_back(int(i));
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (const GraphOp &op = graph.ops[i];
        op.isUpdate() && stored.count(op.operands[0]))
      storedUpdates[op.operands[0]] = int(i);
}

bool StageProblemBuilder::isOfBackward(int value) const {
  const ActionOps &list = lists[size_t(ListOf::U)];
  const int maker = list.values[size_t(value)].maker;
  if (maker < 0)
    return true;
  const GraphOp *op = list.opOf(graph, maker);
  const std::vector<int> &operands = list.ops[size_t(maker)].operands;
  // A value with itself is not the sum of two.
  return op && op->epilogue == Epilogue::Bias && operands.size() > 1 &&
         operands[0] != operands[1] &&
         std::all_of(operands.begin(), operands.end(),
                     [&](int operand) { return isOfBackward(operand); });
}

// Rows that are looked up, and again those of all replicas in the update, and a
// stripe of the table are read and written. How many steps they are owed nobody
// knows: arithmetic is left out, as of other updates.
void StageProblemBuilder::addReplays(int table, double gradient,
                                     StageParameter &parameter) const {
  const double moved = 2 * (1 + options.statePerParameter);
  parameter.updateSeconds +=
      seconds({.name = options.updateKernel,
               .bytes = moved * (2 * gradient +
                                 parameter.bytes / double(kReplaySteps))});
  // Of each row which step it has taken last, and what the last steps were.
  const auto rows = double(graph.tensors[size_t(table)].shape.front());
  parameter.stateBytes += 4 * rows + 16 * double(kReplaySteps);
}

void StageProblemBuilder::makeParameters() {
  findStored();
  const std::vector<char> everywhere = everywhereOps(graph, outcome);
  std::map<int, int> rowsOf; // by table with a row-sparse gradient: its rows
  std::set<int> replayed;    // of these, tables whose rows are owed steps
  std::map<int, int> updateOf;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const GraphOp &op = graph.ops[i];
    if (op.isUpdate() && op.operands.size() > 2)
      rowsOf[op.operands[0]] = op.operands[1];
    if (op.isUpdate() && op.kernel == kReplayedUpdate)
      replayed.insert(op.operands[0]);
    if (op.isUpdate() && op.operands.size() > 1)
      updateOf[op.operands[0]] = int(i);
  }
  std::vector<char> trained(graph.tensors.size(), 0), partial = trained;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (graph.ops[i].phase != Phase::Update)
      continue;
    bool summed = false; // over the ranks of a replica
    for (const OperandUse &use : outcome.ops[i].operands)
      for (int c : use.conversions)
        summed |= overTensor(outcome.conversions[c]);
    for (int t : graph.ops[i].operands)
      if (graph.tensors[t].parameter) {
        trained[t] = 1;
        partial[t] = summed;
      }
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (!graph.tensors[t].parameter)
      continue;
    StageParameter parameter;
    parameter.name = graph.tensors[t].name;
    addUsers(int(t), everywhere, parameter.users);
    if (parameter.users.empty())
      continue;
    std::sort(parameter.users.begin(), parameter.users.end());
    parameter.users.erase(
        std::unique(parameter.users.begin(), parameter.users.end()),
        parameter.users.end());
    parameter.bytes = bytes(int(t));
    addGathered(int(t), everywhere, parameter);
    const size_t gathered = parameter.copies.size();
    addConverted(int(t), everywhere, parameter);
    if (options.train && trained[t]) {
      const auto rows = rowsOf.find(int(t));
      const bool sparse = rows != rowsOf.end();
      const double gradient = sparse ? bytes(rows->second) : parameter.bytes;
      // Of a row-sparse gradient the slices are kept until the update makes the
      // rows of them.
      parameter.gradientBytes = sparse ? 2 * gradient : gradient;
      parameter.stateBytes = parameter.bytes * options.statePerParameter;
      parameter.split = bytes(int(t)) < double(graph.tensors[t].bytes());
      parameter.tensorPartial = partial[t];
      parameter.normSeconds =
          seconds({.name = "square_sum", .bytes = gradient + 4});
      parameter.exchangeSeconds =
          seconds({.name = "copy", .bytes = 2 * gradient});
      parameter.updateSeconds =
          seconds({.name = options.updateKernel,
                   .bytes = gradient * options.updateTraffic +
                            (sparse ? 0 : keepCopy(parameter, gathered))});
      if (replayed.count(int(t)))
        addReplays(int(t), gradient, parameter);
      if (auto update = storedUpdates.find(int(t));
          update != storedUpdates.end())
        addScattered(update->second, parameter);
      else if (isSplit(outcome.tensors[t], kDataAxis))
        parameter.scattered = true; // no replica has another's part
      if (auto update = updateOf.find(int(t));
          update != updateOf.end() && !sparse)
        addSummands(update->second, parameter);
      // Every replica has all rows: they are not summed.
      parameter.scattered |= sparse;
    } else {
      keepCopy(parameter, gathered);
    }
    out.parameters.push_back(std::move(parameter));
  }
}

} // namespace merak::planning
