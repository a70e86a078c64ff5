#include "passes/Planning/StageCosts.h"

#include "passes/Planning/Submicrobatches.h"

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
        device(options.cluster.device()), mesh(assignment.axisMap()),
        tokens(mesh.erase(kSubmicrobatchAxis) > 0) {}

  StageProblem build() {
    readTensors();
    readOps();
    out.train = options.train;
    makeTensors();
    makeOps();
    makeParameters();
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
    between.assign(n, 0);
    for (const Conversion &conversion : outcome.conversions)
      if (isBetweenSubmicrobatches(conversion))
        between[conversion.tensor] = 1;
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

  bool fuses(int op) const {
    return options.fuse && !graph.ops[op].contraction && !graph.ops[op].view;
  }
  // The value goes from one fusing op to another of the same action only.
  bool stays(int t) const {
    int from = producer[t];
    if (from < 0 || users[t].size() != 1 || graph.tensors[t].output ||
        !fuses(from) || !fuses(users[t][0]))
      return false;
    const GraphOp &a = graph.ops[from], &b = graph.ops[users[t][0]];
    return a.phase == b.phase && a.weightGradient == b.weightGradient &&
           stageOp[from] >= 0 && !reduced[t] && !between[t];
  }

  // A half at a time: twice the launches, submicrobatches of the shape.
  int submicrobatches() const {
    return options.overlap > 0 && options.tp > 1 ? 2 : 1;
  }
  // What needs all tokens runs once for both submicrobatches of them.
  int partsOf(const layout::Layout &made) const {
    return tokens && !isOfSubmicrobatch(made) ? 1 : submicrobatches();
  }
  int partsOf(int op) const {
    for (const layout::Layout &made : outcome.ops[op].produced)
      if (int parts = partsOf(made); parts > 1)
        return parts;
    return outcome.ops[op].produced.empty() ? submicrobatches() : 1;
  }

  // Of one part of a microbatch.
  double seconds(int index) const {
    const GraphOp &op = graph.ops[index];
    if (op.view)
      return 0;
    const int parts = partsOf(index);
    double moved = 0;
    bool alone = true; // not the continuation of a fused kernel
    for (int t : op.operands) {
      bool here = stays(t);
      moved += here ? 0 : bytes(t);
      alone &= !here;
    }
    for (int t : op.results)
      moved += stays(t) ? 0 : bytes(t);
    costmodel::Kernel kernel;
    kernel.name = op.kernel;
    kernel.bytes = moved / parts;
    kernel.dtype = dtypeOf(op);
    if (!op.contraction)
      return costmodel::kernelSeconds(device, kernel) -
             (alone ? 0 : launchOf(kernel));
    // Submicrobatches of tokens are split by their layouts.
    kernel.flops = outcome.ops[index].localFlops /
                   double(options.microbatches) / (tokens ? 1 : parts);
    if (op.product) {
      // From the elements of a [b,m,k], b [b,k,n] and r [b,m,n] alone.
      double a = local[op.operands[0]], b = local[op.operands[1]];
      double r = local[op.results[0]], products = kernel.flops * parts / 2;
      kernel.m = std::max(1.0, products / b);
      kernel.n = std::max(1.0, products / a);
      kernel.k = std::max(1.0, products / r);
      if (kernel.m >= kernel.n)
        kernel.m = std::max(1.0, kernel.m / parts);
      else
        kernel.k = std::max(1.0, kernel.k / parts);
    }
    return costmodel::kernelSeconds(device, kernel);
  }

  // A kernel computes in the type of its first operand, as a plan's
  // instructions are priced: gradients of weights leave products of 16 bits in
  // f32.
  std::string dtypeOf(const GraphOp &op) const {
    const std::vector<int> &from =
        op.operands.empty() ? op.results : op.operands;
    const int size = from.empty() ? 4 : graph.tensors[from[0]].elementBytes;
    return size == 2 ? "bf16" : size == 8 ? "f64" : "f32";
  }
  double launchOf(costmodel::Kernel kernel) const {
    kernel.bytes = 0;
    return costmodel::kernelSeconds(device, kernel);
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
    return costmodel::kernelSeconds(device, kernel);
  }

  // Of one part of a microbatch.
  double collective(const Conversion &conversion) const {
    using Kind = costmodel::Collective;
    int64_t n = 1;
    bool tensorOnly = true;
    for (const std::string &axis : conversion.axes) {
      auto it = mesh.find(axis);
      n *= it == mesh.end() ? 1 : it->second;
      tensorOnly &= axis == kTensorAxis;
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
    // Neighbours in tp, or the tp-th ranks of neighbouring replicas, which
    // leave a node together.
    std::vector<int64_t> devices;
    int64_t stride = tensorOnly ? 1 : options.tp;
    for (int64_t i = 0; i < n; ++i)
      devices.push_back(std::min(i * stride, options.cluster.count - 1));
    int64_t sharing =
        std::min(options.cluster.perNode, tensorOnly ? int64_t(1) : options.tp);
    return costmodel::collectiveSeconds(kind, buffer, devices, options.cluster,
                                        sharing);
  }

  // The action that waits for a conversion: 0 forward, 1 input gradient, 2
  // weight gradient; -1: none of a microbatch.
  int actionOf(const Conversion &conversion) const {
    if (conversion.phase == Phase::Update || conversion.prologue ||
        conversion.kind == ConversionKind::Slice ||
        conversion.kind == ConversionKind::Accumulate ||
        (conversion.op >= 0 && isLate(conversion.op)))
      return -1;
    if (conversion.phase == Phase::Forward)
      return 0;
    bool weight = conversion.op >= 0 && graph.ops[conversion.op].weightGradient;
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
  bool joins(const GraphOp &op) const {
    return op.viewLike || (op.pointwise && !op.rule.linear.empty());
  }

  // The tasks of F, B and W in the order of the graph, and their sums.
  void makeTasks(std::array<std::vector<Sums>, 3> &sums) {
    for (auto &list : sums)
      list.resize(forwardOps.size());
    // Conversions by the op that they follow, else by the one that they
    // precede.
    std::vector<std::vector<int>> after(graph.ops.size()), before = after;
    auto actionOfOp = [&](int op) {
      return graph.ops[op].phase == Phase::Forward ? 0
             : graph.ops[op].weightGradient        ? 2
                                                   : 1;
    };
    std::vector<int> rest;
    for (size_t c = 0; c < outcome.conversions.size(); ++c) {
      const Conversion &conversion = outcome.conversions[c];
      int action = actionOf(conversion), from = producer[conversion.tensor];
      if (action < 0 || (collective(conversion) <= 0 &&
                         !isBetweenSubmicrobatches(conversion)))
        continue;
      bool own = from >= 0 && stageOp[from] >= 0 && actionOfOp(from) == action;
      bool user = conversion.op >= 0 && stageOp[conversion.op] >= 0 &&
                  actionOfOp(conversion.op) == action;
      (own    ? after[from]
       : user ? before[conversion.op]
              : rest)
          .push_back(int(c));
    }
    // The task that makes a tensor, per action.
    std::array<std::vector<int>, 3> made;
    made.fill(std::vector<int>(graph.tensors.size(), -1));
    auto add = [&](int action, SubmicrobatchTask task) {
      Sums &sum = sums[action][task.op];
      (task.communication ? sum.wait : sum.compute) +=
          (task.once ? 1 : submicrobatches()) * task.seconds;
      if (submicrobatches() > 1)
        out.submicrobatches[action].push_back(std::move(task));
      return int(out.submicrobatches[action].size()) - 1;
    };
    auto communicate = [&](int c, int otherwise) {
      const Conversion &conversion = outcome.conversions[c];
      int action = actionOf(conversion), from = producer[conversion.tensor];
      int at = from >= 0 && stageOp[from] >= 0 ? stageOp[from] : otherwise;
      bool here = isBetweenSubmicrobatches(conversion);
      SubmicrobatchTask task{
          at,    here ? joinSeconds(conversion) : collective(conversion),
          !here, false,
          {},    tokens && partsOf(conversion.to) == 1};
      int &source = made[action][conversion.tensor];
      if (source >= 0)
        task.needs.push_back(source);
      if (at >= 0)
        source = add(action, task);
    };
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      if (stageOp[i] < 0 || isLate(int(i)))
        continue;
      const GraphOp &op = graph.ops[i];
      int action = actionOfOp(int(i));
      for (int c : before[i])
        communicate(c, stageOp[i]);
      SubmicrobatchTask task{stageOp[i], seconds(int(i)),
                             false,      joins(op),
                             {},         tokens && partsOf(int(i)) == 1};
      for (int t : op.operands)
        if (int need = made[action][t]; need >= 0)
          task.needs.push_back(need);
        else if (action > 0 && made[0][t] >= 0)
          task.values.push_back(t);
        else if (action == 2 && made[1][t] >= 0)
          task.backward.push_back(made[1][t]);
      int number = add(action, std::move(task));
      for (int t : op.results)
        made[action][t] = submicrobatches() > 1 ? number : -1;
      for (int c : after[i])
        communicate(c, stageOp[i]);
    }
    for (int c : rest)
      communicate(c, outcome.conversions[c].op >= 0
                         ? stageOp[outcome.conversions[c].op]
                         : -1);
  }

  void makeOps() {
    out.overlap = submicrobatches() > 1 ? options.overlap : 0;
    std::array<std::vector<Sums>, 3> sums;
    makeTasks(sums);
    std::vector<char> everywhere(graph.tensors.size(), 0);
    for (size_t k = 0; k < forwardOps.size(); ++k) {
      const GraphOp &op = graph.ops[forwardOps[k]];
      StageOp stage;
      stage.name = op.name;
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
      stage.operands = op.operands;
      stage.results = op.results;
      bool onDataOnly =
          options.train && !op.contraction && !op.operands.empty();
      for (int t : op.operands) {
        const GraphTensor &tensor = graph.tensors[t];
        onDataOnly &= tensor.input || tensor.constant || everywhere[t];
      }
      for (int t : op.results) {
        everywhere[t] = onDataOnly;
        stage.checkpoint |= bool(reduced[t]);
      }
      stage.everywhere = onDataOnly;
      out.ops.push_back(std::move(stage));
    }
    keepForGradients();
    keepForJoins();
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

  void makeParameters() {
    std::vector<char> trained(graph.tensors.size(), 0);
    for (const GraphOp &op : graph.ops)
      if (op.phase == Phase::Update)
        for (int t : op.operands)
          trained[t] |= graph.tensors[t].parameter;
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      if (!graph.tensors[t].parameter)
        continue;
      StageParameter parameter;
      parameter.name = graph.tensors[t].name;
      for (int user : users[t])
        if (stageOp[user] >= 0 && !isLate(user))
          parameter.users.push_back(stageOp[user]);
      if (parameter.users.empty())
        continue;
      std::sort(parameter.users.begin(), parameter.users.end());
      parameter.users.erase(
          std::unique(parameter.users.begin(), parameter.users.end()),
          parameter.users.end());
      parameter.bytes = bytes(int(t));
      if (options.train && trained[t]) {
        parameter.gradientBytes = parameter.bytes;
        parameter.stateBytes = parameter.bytes * options.statePerParameter;
        // Read gradient, parameter, state; write parameter and state.
        double moved = parameter.bytes * (3 + 2 * options.statePerParameter);
        parameter.updateSeconds =
            costmodel::kernelSeconds(device, {"optimizer", 0, moved});
      }
      out.parameters.push_back(std::move(parameter));
    }
  }

  const Graph &graph;
  const Outcome &outcome;
  const StageCostOptions &options;
  const costmodel::Device &device;
  layout::AxisMap mesh;
  std::vector<int> producer, stageOp, forwardOps;
  std::vector<std::vector<int>> users;
  std::vector<double> local; // elements on a device
  bool tokens;               // submicrobatches of tokens, as the layouts say
  std::vector<char> hasGradient, reduced, between;
  StageProblem out;
};

} // namespace

StageProblem makeStageProblem(const Graph &graph, const Assignment &assignment,
                              const Outcome &outcome,
                              const StageCostOptions &options) {
  return Builder(graph, assignment, outcome, options).build();
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
  if (d.dp > 1) {
    std::vector<int64_t> devices;
    for (int64_t i = 0; i < d.dp; ++i)
      devices.push_back(i * d.tp);
    int64_t sharing = std::min(cluster.perNode, d.tp);
    shape.reduce.replicas = d.dp;
    auto machine = std::make_shared<const costmodel::Cluster>(cluster);
    shape.reduce.seconds = [=](double bytes) {
      return costmodel::collectiveSeconds(costmodel::Collective::AllReduce,
                                          bytes, devices, *machine, sharing);
    };
    shape.reduce.early = reduction.early;
    shape.reduce.bucketBytes =
        reduction.bucketBytes.value_or(worthJoining(shape.reduce.seconds));
  }
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
