#include "passes/Planning/StageProblemBuilder.h"
#include "passes/Planning/KeptViews.h"

#include <algorithm>

namespace merak::planning {

StageProblem StageProblemBuilder::build(ListedKernels &listed) {
  readTensors();
  readOps();
  converts = convertedOnce(graph, outcome, options.convertOnce);
  lists = std::move(listed.lists);
  kernels = std::move(listed.kernels);
  listActions(listed.known);
  out.train = options.train;
  makeLinks();
  makeTensors();
  makeOps();
  makeParameters();
  out.smallKernel = seconds({.name = "fill", .bytes = sizeof(float)});
  listed = {std::move(lists), std::move(kernels), true};
  return std::move(out);
}

void StageProblemBuilder::readTensors() {
  size_t n = graph.tensors.size();
  producer.assign(n, -1);
  users.resize(n);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    for (int t : graph.ops[i].results)
      producer[t] = int(i);
    for (int t : graph.ops[i].operands)
      if (users[t].empty() || users[t].back() != int(i))
        users[t].push_back(int(i));
  }
  for (size_t t = 0; t < n; ++t) {
    double elements = 1;
    for (int64_t size : outcome.tensors[t].localShape(mesh))
      elements *= double(size);
    local.push_back(elements);
  }
  hasGradient.assign(n, 0);
  for (size_t t = 0; t < n; ++t)
    hasGradient[t] = graph.tensors[t].parameter;
  for (const GraphOp &op : graph.ops) {
    bool depends = false;
    for (int t : op.operands)
      depends |= bool(hasGradient[t]);
    for (int t : op.results)
      hasGradient[t] = depends && graph.tensors[t].isFloat;
  }
}

void StageProblemBuilder::readOps() {
  stageOp.assign(graph.ops.size(), -1);
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (graph.ops[i].phase == Phase::Forward) {
      stageOp[i] = int(forwardOps.size());
      forwardOps.push_back(int(i));
    }
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (graph.ops[i].phase == Phase::Backward && !isLate(int(i))) {
      int of = graph.ops[i].gradientOf;
      stageOp[i] = of >= 0 ? stageOp[of] : int(forwardOps.size()) - 1;
    }
}

void StageProblemBuilder::listActions(bool known) {
  const bool gpu = device.backend != "cpu";
  if (!known)
    lists = actionOps(graph, outcome, mesh, places(), gpu, converts, origins);
  for (int list = 0; list < (known ? 0 : kLists); ++list)
    kernels[size_t(list)] =
        kernelsOf(graph, outcome, lists[size_t(list)], ListOf(list),
                  {gpu, double(options.microbatches), tokens});
  inRegisters.assign(graph.tensors.size(), 0);
  for (ListOf list : {ListOf::F, ListOf::B, ListOf::W}) {
    const ActionOps &of = lists[size_t(list)];
    for (size_t v = 0; v < of.values.size(); ++v)
      if (of.values[v].maker >= 0 && kernels[size_t(list)].inRegisters[v])
        inRegisters[size_t(of.values[v].tensor)] = 1;
  }
}

std::vector<int> StageProblemBuilder::places() const {
  std::vector<int> at = stageOp;
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (at[i] < 0)
      for (int t : graph.ops[i].operands)
        at[i] = std::max(at[i], placeOf(t, at));
  return at;
}

int StageProblemBuilder::placeOf(int t, const std::vector<int> &at) const {
  if (producer[t] >= 0)
    return at[size_t(producer[t])];
  if (graph.tensors[size_t(t)].parameter)
    for (int user : users[size_t(t)])
      if (stageOp[size_t(user)] >= 0)
        return stageOp[size_t(user)];
  return -1;
}

int StageProblemBuilder::partsOf(const ActionValue &value) const {
  return tokens && !value.ofSubmicrobatch ? 1 : submicrobatches();
}

int StageProblemBuilder::partsOf(ListOf list, const ActionOp &op) const {
  for (int value : op.results)
    if (int parts = partsOf(lists[size_t(list)].values[size_t(value)]);
        parts > 1)
      return parts;
  return op.results.empty() ? submicrobatches() : 1;
}

double StageProblemBuilder::seconds(const costmodel::Kernel &kernel) const {
  return costmodel::kernelSeconds(device, kernel) / hostShare;
}

double StageProblemBuilder::seconds(const ActionKernel &of, int parts) const {
  costmodel::Kernel kernel = of.work;
  kernel.bytes = of.wholeBytes + (kernel.bytes - of.wholeBytes) / parts;
  // Submicrobatches of tokens are split by their layouts.
  kernel.flops /= tokens ? 1 : parts;
  if (kernel.m > 0 && parts > 1) {
    double &split = kernel.m >= kernel.n ? kernel.m : kernel.k;
    split = std::max(1.0, split / parts);
  }
  return seconds(kernel);
}

double StageProblemBuilder::seconds(ListOf list, int op) const {
  const int parts = partsOf(list, lists[size_t(list)].ops[size_t(op)]);
  double sum = 0;
  for (const ActionKernel &kernel :
       kernels[size_t(list)].ops[size_t(op)].kernels)
    sum += seconds(kernel, parts);
  return sum;
}

void StageProblemBuilder::makeTensors() {
  reduced.assign(graph.tensors.size(), 0);
  out.tensors.reserve(graph.tensors.size());
  for (const Conversion &conversion : outcome.conversions)
    if (actionOf(conversion) >= 0 && collective(conversion) > 0)
      reduced[conversion.tensor] = 1;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    StageTensor tensor;
    // What else there is nobody speaks of, and all of it are many strings.
    if (producer[t] >= 0 && graph.ops[producer[t]].phase == Phase::Forward)
      tensor.name = graph.tensors[t].name;
    tensor.bytes = bytes(int(t));
    tensor.available = isSource(int(t));
    tensor.fused = stays(int(t));
    if (options.train && hasGradient[t] && !tensor.available)
      tensor.gradientBytes = tensor.bytes;
    out.tensors.push_back(std::move(tensor));
  }
  const std::vector<char> views = viewsTakenAgain(graph, outcome, mesh);
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (views[i])
      out.tensors[size_t(graph.ops[i].results[0])].viewOf =
          graph.ops[i].operands[0];
}

void StageProblemBuilder::makeOps() {
  out.overlap = submicrobatches() > 1 ? options.overlap : 0;
  std::array<std::vector<Sums>, 3> sums;
  makeTasks(sums);
  const std::vector<char> everywhere = everywhereOps(graph, outcome);
  const std::vector<std::string> keys = forwardNames(graph);
  out.ops.reserve(forwardOps.size());
  for (size_t k = 0; k < forwardOps.size(); ++k) {
    const GraphOp &op = graph.ops[forwardOps[k]];
    StageOp stage;
    stage.name = op.name;
    stage.key = keys[size_t(forwardOps[k])];
    stage.piece = op.piece;
    if (isLate(forwardOps[k])) {
      stage.everywhere = true;
      stage.results = op.results;
      out.ops.push_back(std::move(stage));
      continue;
    }
    stage.forward = sums[0][k].compute + sums[0][k].wait;
    stage.backward = sums[1][k].compute + sums[1][k].wait;
    stage.weight = sums[2][k].compute + sums[2][k].wait;
    stage.communication = sums[0][k].wait + sums[1][k].wait + sums[2][k].wait;
    stage.waitsForward = sums[0][k].wait;
    stage.waitsBackward = sums[1][k].wait;
    stage.recompute = sums[0][k].compute;
    stage.gathersForward = messages[0][k];
    stage.gathersBackward = messages[1][k];
    stage.scatters = messages[2][k];
    stage.operands = op.operands;
    stage.results = op.results;
    for (int t : op.results)
      stage.checkpoint |= bool(reduced[t]);
    stage.everywhere = options.train && everywhere[forwardOps[k]];
    out.ops.push_back(std::move(stage));
  }
  keepForGradients();
  keepForJoins();
  makeOnce();
}

} // namespace merak::planning
