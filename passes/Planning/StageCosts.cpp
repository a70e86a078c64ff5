#include "passes/Planning/StageCosts.h"

#include "passes/Planning/ActionKernels.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <set>

namespace merak::planning {

// Sizes of buckets that are looked at, bytes; powers of two between them.
constexpr double kSmallestBucket = 4 << 10, kLargestBucket = 1 << 30;
// Two messages become one if that saves more than this part of their time.
constexpr double kWorthJoining = 0.25;

std::string Degrees::str() const {
  return fmt::format("pp={} dp={} tp={}, {} microbatches", pp, dp, tp,
                     microbatches);
}

namespace {

class Builder {
public:
  Builder(const Graph &graph, const Assignment &assignment,
          const Outcome &outcome, const StageCostOptions &options)
      : graph(graph), outcome(outcome), options(options),
        device(options.cluster.device()), rate(options.cluster.rate(0)),
        mesh(assignment.axisMap()), stored(assignment.stored),
        tokens(mesh.erase(kSubmicrobatchAxis) > 0) {
    int64_t stride = 1;
    for (size_t a = assignment.mesh.size(); a-- > 0;)
      if (const AxisSize &axis = assignment.mesh[a];
          isOn(axis.name, kDataAxis) || isOn(axis.name, kTensorAxis)) {
        strides[axis.name] = stride;
        stride *= axis.size;
      }
  }

  StageProblem build(ListedKernels &listed) {
    readTensors();
    readOps();
    lists = std::move(listed.lists);
    kernels = std::move(listed.kernels);
    listActions(listed.known);
    out.train = options.train;
    makeLinks();
    makeTensors();
    makeOps();
    makeParameters();
    out.smallKernel = seconds({.name = "fill", .bytes = sizeof(float)}, 1);
    listed = {std::move(lists), std::move(kernels), true};
    return std::move(out);
  }

private:
  void readTensors() {
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

  double bytes(int t) const { return local[t] * graph.tensors[t].elementBytes; }
  // With the update; its time is not worth counting.
  bool isLate(int op) const { return outcome.ops[op].late; }
  bool isSource(int t) const {
    const GraphTensor &tensor = graph.tensors[t];
    return tensor.input || tensor.parameter || tensor.constant;
  }

  // Which stage op of the problem each graph op belongs to.
  void readOps() {
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

  // ---------------------------------------------------------------- compute

  void listActions(bool known) {
    const bool gpu = device.backend != "cpu";
    if (!known)
      lists = actionOps(graph, outcome, mesh, places(), gpu);
    for (int list = 0; list < (known ? 0 : kLists); ++list)
      kernels[size_t(list)] =
          kernelsOf(graph, outcome, lists[size_t(list)], ListOf(list),
                    {gpu, double(options.microbatches)});
    inRegisters.assign(graph.tensors.size(), 0);
    for (ListOf list : {ListOf::F, ListOf::B, ListOf::W}) {
      const ActionOps &of = lists[size_t(list)];
      for (size_t v = 0; v < of.values.size(); ++v)
        if (of.values[v].maker >= 0 && kernels[size_t(list)].inRegisters[v])
          inRegisters[size_t(of.values[v].tensor)] = 1;
    }
  }
  bool stays(int t) const { return inRegisters[size_t(t)]; }

  // The forward op beside which each op runs: what comes with the update,
  // beside the last one that it hangs on.
  std::vector<int> places() const {
    std::vector<int> at = stageOp;
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (at[i] < 0)
        for (int t : graph.ops[i].operands)
          at[i] = std::max(at[i], placeOf(t, at));
    return at;
  }
  int placeOf(int t, const std::vector<int> &at) const {
    if (producer[t] >= 0)
      return at[size_t(producer[t])];
    if (graph.tensors[size_t(t)].parameter)
      for (int user : users[size_t(t)])
        if (stageOp[size_t(user)] >= 0)
          return stageOp[size_t(user)];
    return -1;
  }

  // A half at a time: twice the launches, submicrobatches of the shape.
  int submicrobatches() const {
    return options.overlap > 0 && options.tp > 1 ? 2 : 1;
  }
  // What needs all tokens runs once for both submicrobatches of them.
  int partsOf(const ActionValue &value) const {
    return tokens && !value.ofSubmicrobatch ? 1 : submicrobatches();
  }
  int partsOf(ListOf list, const ActionOp &op) const {
    for (int value : op.results)
      if (int parts = partsOf(lists[size_t(list)].values[size_t(value)]);
          parts > 1)
        return parts;
    return op.results.empty() ? submicrobatches() : 1;
  }

  // Of one part of a microbatch.
  double seconds(costmodel::Kernel kernel, int parts) const {
    kernel.bytes /= parts;
    // Submicrobatches of tokens are split by their layouts.
    kernel.flops /= tokens ? 1 : parts;
    if (kernel.m > 0 && parts > 1) {
      double &split = kernel.m >= kernel.n ? kernel.m : kernel.k;
      split = std::max(1.0, split / parts);
    }
    return costmodel::kernelSeconds(device, kernel) / rate;
  }
  double seconds(ListOf list, int op) const {
    const int parts = partsOf(list, lists[size_t(list)].ops[size_t(op)]);
    double sum = 0;
    for (const costmodel::Kernel &kernel :
         kernels[size_t(list)].ops[size_t(op)].kernels)
      sum += seconds(kernel, parts);
    return sum;
  }

  // ---------------------------------------------------------- communication

  // Joins and cuts of the submicrobatches of tokens, on one device.
  static bool isBetweenSubmicrobatches(const Conversion &conversion) {
    return conversion.axes.size() == 1 &&
           conversion.axes[0] == kSubmicrobatchAxis;
  }
  double joinSeconds(const Conversion &conversion) const {
    if (conversion.kind == ConversionKind::Slice)
      return 0;
    costmodel::Kernel kernel;
    kernel.name =
        conversion.kind == ConversionKind::AllGather ? "concat" : "add";
    kernel.bytes = 2 * bytes(conversion.tensor);
    return costmodel::kernelSeconds(device, kernel) / rate;
  }

  // Of one part of a microbatch.
  double collective(const Conversion &conversion) const {
    using Kind = costmodel::Collective;
    int64_t n = 1;
    for (const std::string &axis : conversion.axes) {
      auto it = mesh.find(axis);
      n *= it == mesh.end() ? 1 : it->second;
    }
    if (n <= 1 || conversion.bytes <= 0)
      return 0;
    // The buffer behind the bytes that a ring sends.
    double share = double(n - 1) / double(n);
    Kind kind = Kind::AllGather;
    double buffer = conversion.bytes / share / (tokens ? 1 : submicrobatches());
    switch (conversion.kind) {
    case ConversionKind::AllReduceSum:
    case ConversionKind::AllReduceMax:
      kind = Kind::AllReduce;
      buffer /= 2;
      break;
    case ConversionKind::ReduceScatter:
      kind = Kind::ReduceScatter;
      break;
    case ConversionKind::AllToAll:
      kind = Kind::AllToAll;
      break;
    default:
      break;
    }
    const Group group = groupOf(conversion.axes);
    return costmodel::collectiveSeconds(kind, buffer, group.devices,
                                        options.cluster, group.sharing);
  }

  // The first device's group over axes, and how many groups leave a node
  // together: with dp = 2 and tp = 4 those over tp are {0, 1, 2, 3}, those over
  // dp {0, 4}, four of them side by side.
  struct Group {
    std::vector<int64_t> devices = {0};
    int64_t sharing = 1;
  };
  Group groupOf(const std::vector<std::string> &axes) const {
    Group group;
    int64_t least = options.cluster.count;
    for (const std::string &axis : axes) {
      auto stride = strides.find(axis);
      auto size = mesh.find(axis);
      if (stride == strides.end() || size == mesh.end() || size->second == 1)
        continue;
      least = std::min(least, stride->second);
      const size_t before = group.devices.size();
      for (int64_t i = 1; i < size->second; ++i)
        for (size_t k = 0; k < before; ++k)
          group.devices.push_back(
              std::min(group.devices[k] + i * stride->second,
                       options.cluster.count - 1));
    }
    std::sort(group.devices.begin(), group.devices.end());
    group.sharing = std::min(options.cluster.perNode, least);
    return group;
  }

  // Collectives over replicas.
  void makeLinks() {
    for (const auto &[axis, stride] : strides)
      if (isOn(axis, kDataAxis) && mesh.at(axis) > 1)
        dataAxes.push_back(axis);
    if (dataAxes.empty())
      return;
    auto machine = std::make_shared<const costmodel::Cluster>(options.cluster);
    auto over = [&](costmodel::Collective kind) {
      return [kind, machine, group = groupOf(dataAxes)](double bytes) {
        return costmodel::collectiveSeconds(kind, bytes, group.devices,
                                            *machine, group.sharing);
      };
    };
    out.links.gather = over(costmodel::Collective::AllGather);
    out.links.scatter = over(costmodel::Collective::ReduceScatter);
    out.links.bucketBytes = options.reduction.bucketBytes.value_or(
        worthJoining(over(costmodel::Collective::AllReduce)));
    out.links.beside = options.reduction.early;
  }
  // Of a stored parameter or its gradient, over all replicas.
  bool isOverReplicas(const Conversion &conversion) const {
    std::vector<std::string> axes = conversion.axes;
    std::sort(axes.begin(), axes.end());
    return !dataAxes.empty() && axes == dataAxes;
  }
  bool isBeside(const Conversion &conversion) const {
    return isOverReplicas(conversion) &&
           (isScatteredEach(graph, conversion) ||
            (conversion.life == GatherLife::Use &&
             conversion.kind == ConversionKind::AllGather));
  }

  // Of what is not cut into submicrobatches.
  double wholeCollective(const Conversion &conversion) const {
    return collective(conversion) * (tokens ? 1 : submicrobatches());
  }

  // The action that waits for a conversion: 0 forward, 1 input gradient, 2
  // weight gradient; -1: none of a microbatch.
  int actionOf(const Conversion &conversion) const {
    if (conversion.phase == Phase::Update || conversion.prologue ||
        conversion.isGatheredOnce() ||
        conversion.kind == ConversionKind::Slice ||
        conversion.kind == ConversionKind::Accumulate ||
        (conversion.op >= 0 && isLate(conversion.op)))
      return -1;
    if (conversion.phase == Phase::Forward)
      return 0;
    bool weight =
        conversion.op >= 0 && (graph.ops[conversion.op].weightGradient ||
                               isScatteredEach(graph, conversion));
    return weight ? 2 : 1;
  }

  // --------------------------------------------------------------- problem

  void makeTensors() {
    reduced.assign(graph.tensors.size(), 0);
    for (const Conversion &conversion : outcome.conversions)
      if (actionOf(conversion) >= 0 && collective(conversion) > 0)
        reduced[conversion.tensor] = 1;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      StageTensor tensor;
      tensor.name = graph.tensors[t].name;
      tensor.bytes = bytes(int(t));
      tensor.available = isSource(int(t));
      tensor.fused = stays(int(t));
      if (options.train && hasGradient[t] && !tensor.available)
        tensor.gradientBytes = tensor.bytes;
      out.tensors.push_back(std::move(tensor));
    }
  }

  // Per forward op, of F, B and W: what is computed, what is waited for.
  struct Sums {
    double compute = 0, wait = 0;
  };

  // One result element for each of an operand: see ChainWriter.
  bool joins(const ActionOp &op) const {
    if (op.kind != ActionOp::Op)
      return op.kind != ActionOp::Conversion;
    const GraphOp &of = graph.ops[size_t(op.index)];
    return of.viewLike || (of.pointwise && !of.rule.linear.empty());
  }

  // The tasks of F, B and W in their order, and their sums.
  void makeTasks(std::array<std::vector<Sums>, 3> &sums) {
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
  std::vector<int> &runsAt(ListOf list) { return runs[size_t(list)]; }

  void makeTask(ListOf list, int number, std::vector<Sums> &sums) {
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
        return messages[size_t(list)][size_t(op.at)].push_back(
            bytesAs(list == ListOf::W ? conversion.from : conversion.to,
                    conversion.tensor));
      if (isBetweenSubmicrobatches(conversion)) {
        task.seconds = joinSeconds(conversion);
      } else if (conversion.kind != ConversionKind::Slice) {
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

  // Ops that share a kernel share its time.
  void share(ListOf list, int number, const SubmicrobatchTask &task,
             std::vector<Sums> &sums) const {
    const double both =
        (task.once ? 1 : submicrobatches()) * task.seconds; // of a microbatch
    if (task.communication) {
      sums[size_t(task.op)].wait += both;
      return;
    }
    std::vector<int> at;
    for (int member : kernels[size_t(list)].ops[size_t(number)].members)
      if (int of = lists[size_t(list)].ops[size_t(member)].at; of >= 0)
        at.push_back(of);
    if (at.empty())
      at = {task.op};
    for (int of : at)
      sums[size_t(of)].compute += both / double(at.size());
  }

  void readNeeds(ListOf list, int number, SubmicrobatchTask &task) {
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
  // What F or B left.
  void readOther(ListOf list, int tensor, SubmicrobatchTask &task) const {
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

  // Once a step, by forward op: what the update computes besides the optimizer,
  // what sums over microbatches are cleared with before, and what the prologue
  // makes of each microbatch.
  void makeOnce() {
    auto at = [&](int op) -> StageOp * {
      return op >= 0 ? &out.ops[size_t(op)] : nullptr;
    };
    for (ListOf list : {ListOf::U, ListOf::P})
      for (size_t i = 0; i < lists[size_t(list)].ops.size(); ++i)
        if (StageOp *op = at(lists[size_t(list)].ops[i].at))
          (list == ListOf::U ? op->update : op->prologue) +=
              seconds(list, int(i));
    for (ListOf list : {ListOf::F, ListOf::B, ListOf::W, ListOf::P})
      for (const ActionValue &value : lists[size_t(list)].values)
        if (value.summed && value.maker >= 0)
          if (StageOp *op = at(lists[size_t(list)].ops[size_t(value.maker)].at))
            op->clear += seconds({.name = "fill", .bytes = value.bytes()}, 1);
  }

  void makeOps() {
    out.overlap = submicrobatches() > 1 ? options.overlap : 0;
    std::array<std::vector<Sums>, 3> sums;
    makeTasks(sums);
    const std::vector<char> everywhere = everywhereOps(graph, outcome);
    const std::vector<std::string> keys = forwardNames(graph);
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

  // Ops of the forward pass that run after it, and those whose gradients go
  // over the microbatches before the others.
  void keepForJoins() {
    out.joins = outcome.joins;
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const OpOutcome &of = outcome.ops[i];
      if (stageOp[i] < 0 || (!of.join && !of.afterJoin))
        continue;
      if (out.joinEnd == 0)
        out.joinBegin = stageOp[i];
      out.joinBegin = std::min(out.joinBegin, stageOp[i]);
      out.joinEnd = std::max(out.joinEnd, stageOp[i] + 1);
      for (int t : graph.ops[i].operands)
        if (producer[t] >= 0 && graph.ops[producer[t]].phase == Phase::Forward)
          out.ops[stageOp[i]].kept.push_back(t);
    }
    for (StageOp &stage : out.ops) {
      std::sort(stage.kept.begin(), stage.kept.end());
      stage.kept.erase(std::unique(stage.kept.begin(), stage.kept.end()),
                       stage.kept.end());
    }
  }

  // What gradients read of the forward, what W reads of B, and what both have
  // besides: made and used up in one action.
  void keepForGradients() {
    auto actionOfOp = [&](int i) {
      return graph.ops[i].weightGradient ? 2 : 1;
    };
    auto followsWeight = [&](int from, int to) {
      if (from >= 0 && from != to)
        out.weightSums.push_back({from, to});
    };
    std::vector<int> lastReader(graph.tensors.size(), -1);
    std::vector<char> left(graph.tensors.size(), 0); // for W, from B
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      if (graph.ops[i].phase != Phase::Backward || stageOp[i] < 0)
        continue;
      StageOp &stage = out.ops[stageOp[i]];
      for (int t : graph.ops[i].operands) {
        int from = producer[t];
        if (from < 0 || stageOp[from] < 0)
          continue;
        lastReader[t] = int(i);
        bool weight = actionOfOp(int(i)) == 2;
        if (graph.ops[from].phase == Phase::Forward)
          (weight ? stage.keptForWeights : stage.kept).push_back(t);
        else if (weight && actionOfOp(from) == 1 && !left[t]) {
          left[t] = 1;
          stage.pending.push_back({bytes(t), stageOp[from]});
        } else if (weight && actionOfOp(from) == 2) {
          followsWeight(stageOp[from], stageOp[i]);
        }
      }
      if (actionOfOp(int(i)) == 2)
        for (const OperandUse &use : outcome.ops[i].operands)
          for (int c : use.conversions)
            if (int first = outcome.conversions[c].op;
                first >= 0 && graph.ops[first].weightGradient)
              followsWeight(stageOp[first], stageOp[i]);
    }
    std::sort(out.weightSums.begin(), out.weightSums.end());
    out.weightSums.erase(
        std::unique(out.weightSums.begin(), out.weightSums.end()),
        out.weightSums.end());
    for (StageOp &stage : out.ops)
      for (std::vector<int> *of : {&stage.kept, &stage.keptForWeights}) {
        std::sort(of->begin(), of->end());
        of->erase(std::unique(of->begin(), of->end()), of->end());
      }
    for (int action : {1, 2}) {
      double live = 0;
      std::vector<std::vector<int>> ends(graph.ops.size());
      for (size_t i = 0; i < graph.ops.size(); ++i) {
        if (graph.ops[i].phase != Phase::Backward || stageOp[i] < 0 ||
            actionOfOp(int(i)) != action)
          continue;
        for (int t : graph.ops[i].results)
          if (!left[t] && lastReader[t] >= 0 && !stays(t)) {
            live += bytes(t);
            ends[lastReader[t]].push_back(t);
          }
        double &most = out.ops[stageOp[i]].workspace;
        most = std::max(most, live);
        for (int t : ends[i])
          live -= bytes(t);
      }
    }
  }

  // Ops that read a tensor, themselves or in another type.
  void addUsers(int t, const std::vector<char> &everywhere,
                std::vector<int> &of) const {
    for (int user : users[size_t(t)])
      if (options.train && everywhere[size_t(user)])
        for (int made : graph.ops[size_t(user)].results)
          addUsers(made, everywhere, of);
      else if (stageOp[size_t(user)] >= 0 && !isLate(user) &&
               graph.ops[size_t(user)].phase == Phase::Forward)
        of.push_back(stageOp[size_t(user)]);
  }

  static bool overTensor(const Conversion &conversion) {
    return conversion.kind == ConversionKind::AllReduceSum &&
           hasAxisOn(conversion.axes, kTensorAxis);
  }

  static bool isSplit(const layout::Layout &layout, const std::string &axis) {
    for (const layout::DimLayout &dim : layout.dims)
      for (const layout::Factor &factor : dim.factors)
        if (hasAxisOn(factor.axes, axis))
          return true;
    return false;
  }

  double bytesAs(const layout::Layout &layout, int t) const {
    double all = graph.tensors[size_t(t)].elementBytes;
    for (int64_t size : layout.localShape(mesh))
      all *= double(size);
    return all;
  }

  // The parameter behind a conversion of it, or of its copy in another type;
  // -1: none.
  int storedBehind(const Conversion &conversion) const {
    if (!conversion.life)
      return -1;
    const int maker = producer[size_t(conversion.tensor)];
    return maker < 0 ? conversion.tensor : graph.ops[size_t(maker)].operands[0];
  }

  // The copy of a stored parameter for the step.
  void addGathered(int t, StageParameter &parameter) {
    for (int c : gathers[t]) {
      const Conversion &conversion = outcome.conversions[size_t(c)];
      if (!conversion.isGatheredOnce())
        continue;
      const double whole = bytesAs(conversion.to, conversion.tensor);
      parameter.gatheredBytes = std::max(parameter.gatheredBytes, whole);
      if (!isOverReplicas(conversion)) {
        parameter.ownSeconds += wholeCollective(conversion);
        continue;
      }
      parameter.gatherMessage += whole;
      if (conversion.tensor != t)
        parameter.castSeconds += seconds(
            {.name = "elementwise",
             .bytes = bytes(t) + bytesAs(conversion.from, conversion.tensor)},
            1);
    }
  }

  // The gradient of a stored parameter: as it is accumulated, and its sum over
  // replicas if that comes after.
  void addScattered(int update, StageParameter &parameter) {
    const int gradient = graph.ops[size_t(update)].operands[1];
    layout::Layout layout = outcome.tensors[size_t(gradient)];
    for (int c : outcome.ops[size_t(update)].operands[1].conversions) {
      const Conversion &conversion = outcome.conversions[size_t(c)];
      if (conversion.kind != ConversionKind::ReduceScatter)
        continue;
      parameter.scattered = true;
      if (isScatteredEach(graph, conversion)) {
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

  void findStored() {
    for (size_t c = 0; c < outcome.conversions.size(); ++c)
      if (int t = storedBehind(outcome.conversions[c]); t >= 0)
        gathers[t].push_back(int(c));
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (const GraphOp &op = graph.ops[i];
          op.isUpdate() && stored.count(op.operands[0]))
        storedUpdates[op.operands[0]] = int(i);
  }

  void makeParameters() {
    findStored();
    const std::vector<char> everywhere = everywhereOps(graph, outcome);
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
      addGathered(int(t), parameter);
      if (options.train && trained[t]) {
        parameter.gradientBytes = parameter.bytes;
        parameter.stateBytes = parameter.bytes * options.statePerParameter;
        parameter.split = bytes(int(t)) < double(graph.tensors[t].bytes());
        parameter.tensorPartial = partial[t];
        parameter.normSeconds =
            seconds({.name = "square_sum", .bytes = parameter.bytes + 4}, 1);
        parameter.exchangeSeconds =
            seconds({.name = "copy", .bytes = 2 * parameter.bytes}, 1);
        parameter.updateSeconds =
            seconds({.name = options.updateKernel,
                     .bytes = parameter.bytes * options.updateTraffic},
                    1);
        if (auto update = storedUpdates.find(int(t));
            update != storedUpdates.end())
          addScattered(update->second, parameter);
        else if (isSplit(outcome.tensors[t], kDataAxis))
          parameter.scattered = true; // no replica has another's part
      }
      out.parameters.push_back(std::move(parameter));
    }
  }

  const Graph &graph;
  const Outcome &outcome;
  const StageCostOptions &options;
  const costmodel::Device &device;
  double rate; // of the device, a share of its kind's
  layout::AxisMap mesh;
  std::map<std::string, int64_t> strides;       // of ranks of a stage, by axis
  const std::map<int, StoredParameter> &stored; // by tensor
  // By stored parameter: conversions in front of its uses, its update.
  std::map<int, std::vector<int>> gathers;
  std::map<int, int> storedUpdates;
  std::vector<int> producer, stageOp, forwardOps;
  std::vector<std::vector<int>> users;
  std::vector<double> local; // elements on a device
  bool tokens;               // submicrobatches of tokens, as the layouts say
  std::vector<char> hasGradient, reduced, inRegisters;
  std::vector<std::string> dataAxes; // of several replicas, sorted
  // By F, B and W and forward op: see StageOp.
  std::array<std::vector<std::vector<double>>, 3> messages;
  std::array<ActionOps, kLists> lists;
  std::array<ListKernels, kLists> kernels;
  // By op of a list: the one that runs it, its task.
  std::array<std::vector<int>, kLists> runs, taskOf;
  StageProblem out;
};

} // namespace

StageProblem makeStageProblem(const Graph &graph, const Assignment &assignment,
                              const Outcome &outcome,
                              const StageCostOptions &options,
                              ListedKernels *listed) {
  ListedKernels own;
  return Builder(graph, assignment, outcome, options)
      .build(listed ? *listed : own);
}

PipelineShape makePipelineShape(const costmodel::Cluster &cluster,
                                const Degrees &d, double memoryBytes,
                                const ReductionOptions &reduction) {
  PipelineShape shape;
  shape.stages = int(d.pp);
  shape.microbatches = int(d.microbatches);
  shape.memoryBytes = memoryBytes;
  int64_t inStage = d.dp * d.tp;
  auto between = [&](int64_t a, int64_t b, int64_t sharing) {
    const costmodel::Link &l = cluster.between(a, b);
    bool leaves = cluster.node(a) != cluster.node(b);
    double share = l.shared && leaves ? double(sharing) : 1;
    // The tp ranks of both ends meet inside their nodes or outside, too.
    bool same = d.tp > 1;
    for (int64_t first : {a, b})
      same &= leaves == (cluster.node(first) != cluster.node(first + d.tp - 1));
    return BoundaryLink{l.latency, share / l.bandwidth, same};
  };
  // All ranks of a node send at once: those of its stages to the next ones.
  for (int64_t s = 0; s + 1 < d.pp; ++s)
    shape.links.push_back(between(s * inStage, (s + 1) * inStage,
                                  std::min(cluster.perNode, inStage)));
  auto machine = std::make_shared<const costmodel::Cluster>(cluster);
  // Over `n` devices, `stride` apart, with that many groups side by side.
  auto reduced = [&](int64_t n, int64_t stride) {
    std::vector<int64_t> devices;
    for (int64_t i = 0; i < n; ++i)
      devices.push_back(std::min(i * stride, cluster.count - 1));
    int64_t sharing = std::min(cluster.perNode, stride);
    return [=](double bytes) {
      return costmodel::collectiveSeconds(costmodel::Collective::AllReduce,
                                          bytes, devices, *machine, sharing);
    };
  };
  shape.reduce.early = reduction.early;
  if (d.dp > 1) {
    shape.reduce.replicas = d.dp;
    shape.reduce.seconds = reduced(d.dp, d.tp);
  }
  if (d.tp > 1) {
    shape.reduce.tensorSeconds = reduced(inStage, 1);
    shape.tensorNorm = reduced(d.tp, 1);
  }
  if (d.pp > 1)
    shape.stageNorm = reduced(d.pp, inStage);
  const auto leaves = [&](int64_t last) {
    return cluster.node(0) != cluster.node(std::min(last, cluster.count - 1));
  };
  shape.reduce.shared =
      d.tp > 1 && leaves(d.tp - 1) == leaves((d.dp - 1) * d.tp);
  if (inStage > 1)
    shape.reduce.bucketBytes = reduction.bucketBytes.value_or(worthJoining(
        d.dp > 1 ? shape.reduce.seconds : shape.reduce.tensorSeconds));
  return shape;
}

double worthJoining(const std::function<double(double)> &seconds) {
  double bytes = kSmallestBucket;
  while (bytes < kLargestBucket && 2 * seconds(bytes) - seconds(2 * bytes) >
                                       kWorthJoining * 2 * seconds(bytes))
    bytes *= 2;
  return bytes;
}

} // namespace merak::planning
