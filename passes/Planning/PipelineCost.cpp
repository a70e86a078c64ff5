#include "passes/Planning/PipelineCost.h"

#include <algorithm>
#include <array>
#include <set>

namespace merak::planning {

double PipelineCost::bubble() const {
  double idle = 0;
  for (double time : busy)
    // A sketched step may take less than the sums over its ops.
    idle += seconds > 0 ? std::max(0.0, 1 - time / seconds) : 0;
  return busy.empty() ? 0 : idle / double(busy.size());
}

double PipelineCost::fullest() const {
  return memory.empty() ? 0 : *std::max_element(memory.begin(), memory.end());
}

namespace {

// The sums that go from W of a part to W of its neighbour. Parts between the
// two ends of a sum hand it on: stricter than what is sent in the end, and so
// right wherever its additions are done.
std::vector<Transfer> weightSumsOf(const StageProblem &problem, int p,
                                   const std::vector<int> &begin) {
  // Cuts, by the part behind: crossed towards the first part, the last one.
  std::vector<std::array<char, 2>> crossed(begin.size());
  for (auto [from, to] : problem.weightSums)
    for (int v = partAt(begin, std::max(from, to));
         v > partAt(begin, std::min(from, to)); --v)
      crossed[v][from < to] = 1;
  std::vector<Transfer> sums;
  auto add = [&](int from, int to) {
    sums.push_back({from % p, to % p, Action::W, Action::W, from / p, to / p});
  };
  for (int v = 1; v < int(begin.size()) - 1; ++v) {
    if (crossed[v][0])
      add(v, v - 1);
    if (crossed[v][1])
      add(v - 1, v);
  }
  return sums;
}

// Each of `to` ranks gets so many bytes from `from` ranks: what the busiest
// link of both has to carry, as bytes of a rank that has its link for itself.
double busiestBytes(double bytes, int64_t from, int64_t to, int64_t sharedFrom,
                    int64_t sharedTo) {
  const double sent = bytes * double(to) / double(from);
  return std::max(sent * double(sharedFrom), bytes * double(sharedTo));
}

} // namespace

BoundaryCost boundaryOf(const StageModel &model, const PipelineShape &shape,
                        int v, int at) {
  BoundaryCost boundary;
  if (shape.links.empty())
    return boundary;
  const BoundaryLink &link = shape.linkAfter(v);
  if (!shape.meshes.empty()) {
    const StageMesh &before = shape.meshes[size_t(v % shape.stages)];
    const StageMesh &after = shape.meshes[size_t((v + 1) % shape.stages)];
    boundary.forwardBytes =
        busiestBytes(after.model->forwardBytes(at), before.ranks, after.ranks,
                     link.sharedBefore, link.sharedAfter);
    boundary.backwardBytes =
        busiestBytes(before.model->gradientBytes(at), after.ranks, before.ranks,
                     link.sharedAfter, link.sharedBefore);
    boundary.forward = link.seconds(boundary.forwardBytes);
    boundary.backward = link.seconds(boundary.backwardBytes);
    if (shape.reshard) {
      const int from = v % shape.stages, to = (v + 1) % shape.stages;
      // Bytes are those for which one link would take as long.
      auto take = [&](double seconds, double &taken, double &bytes) {
        taken = seconds;
        bytes =
            link.secondsPerByte > 0
                ? std::max(0.0, seconds - link.latency) / link.secondsPerByte
                : 0;
      };
      take(shape.reshard(from, to, after.model->forwardBytes(at), true),
           boundary.forward, boundary.forwardBytes);
      take(shape.reshard(to, from, before.model->gradientBytes(at), true),
           boundary.backward, boundary.backwardBytes);
    }
    return boundary;
  }
  boundary.forwardBytes = model.forwardBytes(at);
  boundary.backwardBytes = model.gradientBytes(at);
  boundary.forward = link.seconds(boundary.forwardBytes);
  boundary.backward = link.seconds(boundary.backwardBytes);
  return boundary;
}

double exchangeSeconds(const PipelineShape &shape, int v,
                       const std::vector<int> &begin) {
  const int p = shape.stages, own = v % p;
  const StageMesh &mesh = shape.meshes[size_t(own)];
  const std::vector<StageParameter> &parameters =
      mesh.model->problem.parameters;
  double seconds = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const StageParameter &parameter = parameters[i];
    if (parameter.users.size() < 2 || parameter.gradientBytes <= 0)
      continue;
    std::set<int> parts;
    for (int user : parameter.users)
      parts.insert(partAt(begin, user));
    if (!parts.count(v))
      continue;
    std::set<int> holders;
    for (int part : parts)
      if (part % p != own)
        holders.insert(part % p);
    for (int other : holders) {
      const StageMesh &to = shape.meshes[size_t(other)];
      const double sent = to.model->problem.parameters[i].gradientBytes;
      if (shape.reshard) { // both ways at once
        seconds +=
            std::max(shape.reshard(own, other, sent, false),
                     shape.reshard(other, own, parameter.gradientBytes, false));
        continue;
      }
      // Over the slowest link on the way.
      BoundaryLink link;
      for (int s = std::min(own, other); s < std::max(own, other); ++s)
        if (shape.links[size_t(s)].secondsPerByte >= link.secondsPerByte)
          link = shape.links[size_t(s)];
      seconds += link.seconds(
          std::max(parameter.gradientBytes,
                   busiestBytes(sent, mesh.ranks, to.ranks, link.sharedBefore,
                                link.sharedAfter)));
    }
  }
  return seconds;
}

const StageCost &priceOf(const StageModel &model, const PipelineShape &shape,
                         int v, int begin, int end, Marks marks,
                         const StagePricer &price) {
  return price ? price(model, shape, begin, end, marks)
               : shape.modelOf(v, model).cost(begin, end, marks);
}

const StageCost &heldOf(const StageModel &model, const PipelineShape &shape,
                        int v, int begin, int end, Marks marks,
                        const StagePricer &price) {
  return price ? price(model, shape, begin, end, marks)
               : shape.modelOf(v, model).held(begin, end, marks);
}

SimulateOptions simulationOf(const StageModel &model,
                             const PipelineShape &shape, int chunks,
                             const std::vector<int> &begin,
                             const std::vector<Marks> &marks,
                             const StagePricer &price, PipelineCost &out) {
  int p = shape.stages, parts = p * chunks;
  SimulateOptions simulation;
  simulation.record = false;
  simulation.setup.assign(p, 0);
  std::vector<double> optimizer(p, 0);
  simulation.weightSums = weightSumsOf(model.problem, p, begin);
  // Seconds for which the transfers of a microbatch occupy links that the
  // collectives of both ends use: of values, of gradients.
  std::vector<std::array<double, 2>> occupied(parts + 1);
  for (int v = 0; v + 1 < parts; ++v) {
    const BoundaryCost boundary = boundaryOf(model, shape, v, begin[v + 1]);
    if (!shape.links.empty() && shape.linkAfter(v).shared) {
      const double secondsPerByte = shape.linkAfter(v).secondsPerByte;
      occupied[v + 1] = {boundary.forwardBytes * secondsPerByte,
                         boundary.backwardBytes * secondsPerByte};
    }
    out.transferSeconds += boundary.forward + boundary.backward;
    simulation.boundaries.push_back(boundary);
  }
  for (int v = 0; v < parts; ++v) {
    out.stages.push_back(
        priceOf(model, shape, v, begin[v], begin[v + 1], marks[v], price));
    StageCost &cost = out.stages.back();
    if (const double slowness = shape.slownessOf(v); slowness != 1) {
      cost.times = cost.timesAt(slowness);
      for (double *seconds : {&cost.prologue, &cost.clear, &cost.optimizer})
        *seconds *= slowness;
    }
    // Values come and go beside B, and gradients beside F, as one forward one
    // backward has it; without B both are F's.
    auto delay = [&](double &seconds, double busy, double slack) {
      double more = std::max(0.0, busy - slack);
      seconds += more;
      cost.communication += more;
    };
    double values = occupied[v][0] + occupied[v + 1][0];
    double gradients = occupied[v][1] + occupied[v + 1][1];
    bool train = model.problem.train;
    delay(cost.times.F, train ? gradients : values, cost.slackForward);
    if (train)
      delay(cost.times.B, values, cost.slackBackward);
    ActionTimes times = cost.times;
    const GradientReduction &reduction = shape.reduceOf(v);
    double reduce = shape.modelOf(v, model).exposedReduction(
        begin[v], begin[v + 1], reduction, cost.times.W);
    if (!shape.meshes.empty())
      reduce += exchangeSeconds(shape, v, begin);
    else if (cost.sharedBytes > 0 && !shape.links.empty())
      reduce += shape.links[0].latency +
                cost.sharedBytes * shape.links[0].secondsPerByte;
    times.U += reduce;
    // No stage waits for the last B of the first one: it runs with its W, so
    // that gradients are final early (passes/Lowering/OverlapGradients.cpp).
    if (v == 0 && reduction.early && (cost.reduces || reduction.replicas > 1)) {
      const double late = std::min(times.U, cost.hiddenByWeights);
      times.U -= late;
      simulation.setup[0] -= cost.hiddenByWeights - late;
    }
    simulation.setup[v % p] += cost.gathered +
                               cost.prologue * shape.microbatches +
                               (shape.microbatches > 1 ? cost.clear : 0);
    optimizer[v % p] += cost.optimizer;
    out.exposedSeconds = std::max(
        out.exposedSeconds, cost.communication * shape.microbatches + reduce);
    simulation.times.push_back(times);
    if (v >= p) // one update for all chunks of a stage
      simulation.times[v % p].U += times.U;
    simulation.memory.push_back(memoryOf(cost));
  }
  double update = 0;
  for (int s = 0; s < p; ++s)
    update = std::max(update, simulation.times[s].U);
  out.finishSeconds = *std::max_element(optimizer.begin(), optimizer.end());
  if (model.problem.train)
    out.finishSeconds += model.normSeconds(shape);
  out.updateSeconds = update + out.finishSeconds;
  return simulation;
}

namespace {

// `run` gives the total and the busy seconds of the stages.
template <typename Run>
PipelineCost
costOf(const StageModel &model, const PipelineShape &shape, int chunks,
       const ScheduleLists &lists, const std::vector<int> &begin,
       const std::vector<Marks> &marks, const StagePricer &price, Run run) {
  PipelineCost out;
  SimulateOptions simulation =
      simulationOf(model, shape, chunks, begin, marks, price, out);
  simulation.memory.clear();
  out.memory = bytesOf(shape, out.stages, lists, begin);
  auto ran = run(simulation);
  out.seconds = ran.total + out.finishSeconds;
  out.busy = std::move(ran.busy);
  for (double &busy : out.busy)
    busy += out.finishSeconds;
  out.inFlight = lists.inFlight;
  for (size_t s = 0; s < out.memory.size(); ++s)
    if (const double limit = shape.memoryOf(int(s)); limit > 0)
      out.excessBytes += std::max(0.0, out.memory[s] - limit);
  return out;
}

} // namespace

PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const OrderedSchedule &schedule,
                          const ScheduleLists &lists,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price) {
  return costOf(
      model, shape, schedule.chunks, lists, begin, marks, price,
      [&](const SimulateOptions &options) { return schedule.timeOf(options); });
}

PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const SteadySchedule &schedule,
                          const ScheduleLists &lists,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price) {
  return costOf(model, shape, schedule.sample().chunks, lists, begin, marks,
                price, [&](const SimulateOptions &options) {
                  return schedule.simulated(options);
                });
}

PipelineCost pipelineCost(const StageModel &model, const PipelineShape &shape,
                          const Schedule &schedule,
                          const std::vector<int> &begin,
                          const std::vector<Marks> &marks,
                          const StagePricer &price) {
  return pipelineCost(model, shape, OrderedSchedule(schedule),
                      ScheduleLists(schedule), begin, marks, price);
}

} // namespace merak::planning
