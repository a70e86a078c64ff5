#include "passes/Planning/LeastSeconds.h"

#include "passes/Planning/PipelineCost.h"

#include <algorithm>
#include <numeric>

namespace merak::planning {

namespace {

// A gradient that is added to what the microbatches before left: both are read
// and one is written, each as long as the norm reads it.
constexpr double kPasses = 3;

// Seconds of a microbatch, per op, of the tasks of an action.
struct TaskSums {
  std::vector<double> computed, waited;
  double all = 0, communicated = 0;
  TaskSums(const std::vector<SubmicrobatchTask> &tasks, int ops)
      : computed(ops, 0), waited(ops, 0) {
    for (const SubmicrobatchTask &task : tasks) {
      (task.communication ? communicated : all) += task.both();
      (task.communication ? waited : computed)[task.op] += task.both();
    }
  }
};

// Before each of them, and of all.
LeastSeconds::Sums sumsBefore(const std::vector<double> &of) {
  auto out = std::make_shared<std::vector<double>>(of.size() + 1, 0);
  for (size_t i = 0; i < of.size(); ++i)
    (*out)[i + 1] = (*out)[i] + of[i];
  return out;
}

// Of ops [begin, end).
double in(const LeastSeconds::Sums &of, int begin, int end) {
  return (*of)[size_t(end)] - (*of)[size_t(begin)];
}

} // namespace

LeastSeconds::LeastSeconds(const StageModel &model)
    : model(model), links(model.problem.links) {
  const StageProblem &problem = model.problem;
  const int n = model.count();
  std::vector<double> perForward(n, 0), perBackward(n, 0), perWork(n, 0),
      perHidden(n, 0);
  if (model.hasTasks()) {
    std::array<double, 3> all{}, links{};
    for (int action = 0; action < (problem.train ? 3 : 1); ++action) {
      const TaskSums sums(problem.submicrobatches[action], n);
      for (int op = 0; op < n; ++op)
        perWork[op] += sums.computed[op];
      if (action == 0)
        perForward = sums.computed;
      if (action == 1)
        perBackward = sums.computed;
      if (action > 0 && problem.overlap == 0)
        for (int op = 0; op < n; ++op)
          perHidden[op] += sums.waited[op];
      all[action] = sums.all;
      links[action] = sums.communicated;
    }
    // What W computes may run beside what B waits for.
    waited = std::max(all[0], links[0]) + std::max(all[1] + all[2], links[1]);
    if (problem.overlap == 0) {
      const ActionTimes &times = model.timesOfAll();
      waited = times.F + (problem.train ? times.B + times.W : 0);
    }
  } else {
    for (int op = 0; op < n; ++op) {
      const StageOp &of = problem.ops[op];
      perForward[op] = of.forward;
      perBackward[op] = problem.train ? of.backward : 0;
      perWork[op] = of.forward + (problem.train ? of.backward + of.weight : 0);
      waited += perWork[op];
    }
  }
  addUp(perForward, perBackward, perWork, perHidden);
  addMessages();
  for (const StageParameter &parameter : problem.parameters) {
    if (problem.train)
      optimizer += parameter.updateSeconds;
    const double copies = parameter.copiesOn(0, n);
    copyBytes += copies;
    gradientBytes += parameter.gradientBytes;
    fixedBytes += parameter.bytes + copies + parameter.gradientBytes +
                  parameter.stateBytes;
  }
}

LeastSeconds LeastSeconds::scaledBy(double share) const {
  LeastSeconds scaled = *this;
  const auto scale = [&](Sums &sums) {
    auto of = std::make_shared<std::vector<double>>(*sums);
    for (double &seconds : *of)
      seconds *= share;
    sums = std::move(of);
  };
  for (Sums *sums :
       {&scaled.forward, &scaled.backward, &scaled.work, &scaled.hidden})
    scale(*sums);
  for (Beside &of : scaled.beside)
    scale(of.ops);
  scaled.waited *= share;
  scaled.transfers = false;
  return scaled;
}

LeastSeconds LeastSeconds::storedInParts(int64_t replicas, int level) const {
  LeastSeconds stored = *this;
  if (replicas == 1)
    return stored;
  stored.optimizer /= double(replicas);
  const double whole =
      (level < 2 ? gradientBytes : 0) + (level < 3 ? copyBytes : 0);
  stored.fixedBytes = (fixedBytes - whole) / double(replicas) + whole;
  if (level < 2) // each sums whole gradients
    return stored;
  std::vector<double> sums(size_t(model.count()), 0);
  for (const StageParameter &parameter : model.problem.parameters)
    for (int op : parameter.users) // of those that make a part of the gradient
      sums[size_t(op)] += kPasses * parameter.normSeconds;
  auto lessWork = std::make_shared<std::vector<double>>(*work);
  auto lessBackward = std::make_shared<std::vector<double>>(*backward);
  double fewer = 0, fewerBackward = 0;
  for (int op = 0; op < model.count(); ++op) {
    const double backwards = in(backward, op, op + 1);
    const double gradients = in(work, op, op + 1) - in(forward, op, op + 1);
    fewer += std::min(sums[size_t(op)], gradients);
    fewerBackward += std::min(sums[size_t(op)], backwards);
    (*lessWork)[size_t(op) + 1] -= fewer;
    (*lessBackward)[size_t(op) + 1] -= fewerBackward;
  }
  stored.work = std::move(lessWork);
  stored.backward = std::move(lessBackward);
  stored.waited -= fewer;
  return stored;
}

LeastSeconds::Stored LeastSeconds::stored() const {
  Stored out;
  out.fixedBytes = fixedBytes;
  out.optimizer = optimizer;
  out.links = links;
  std::vector<double> backwards(size_t(model.count()), 0),
      weights = backwards, forwardReads = backwards, backwardReads = backwards;
  for (const StageParameter &parameter : model.problem.parameters) {
    for (const StageParameter::Copy &copy : parameter.copies)
      if (copy.message > 0 && !copy.users.empty()) {
        forwardReads[size_t(copy.users.front())] += copy.message;
        backwardReads[size_t(copy.users.back())] += copy.again;
      }
    if (parameter.scatterMessage <= 0)
      continue;
    const size_t user = size_t(parameter.users.front());
    (model.problem.ops[user].weight > 0 ? weights : backwards)[user] +=
        parameter.scatterMessage;
    out.fewerBytes += parameter.gradientBytes - parameter.partBytes;
  }
  out.backward = sumsBefore(backwards);
  out.weight = sumsBefore(weights);
  out.readForward = sumsBefore(forwardReads);
  out.readBackward = sumsBefore(backwardReads);
  return out;
}

LeastSeconds LeastSeconds::storedInParts(int64_t replicas, const Stored &like,
                                         int level) const {
  LeastSeconds out = storedInParts(replicas, level);
  out.optimizer = like.optimizer;
  if (level < 3)
    out.fixedBytes = like.fixedBytes - (level > 1 ? like.fewerBytes : 0);
  return out.sending(like, like.links, level);
}

LeastSeconds LeastSeconds::sending(const Stored &like,
                                   const ParameterLinks &over,
                                   int level) const {
  LeastSeconds out = *this;
  if (level > 1) {
    out.beside[1].bytes = like.backward;
    out.beside[2].bytes = like.weight;
    out.links = over;
  }
  if (level > 2) {
    out.beside[0].bytes = like.readForward;
    auto both = std::make_shared<std::vector<double>>(*out.beside[1].bytes);
    for (size_t at = 0; at < both->size(); ++at)
      (*both)[at] += (*like.readBackward)[at];
    out.beside[1].bytes = std::move(both);
  }
  return out;
}

void LeastSeconds::addUp(const std::vector<double> &perForward,
                         const std::vector<double> &perBackward,
                         const std::vector<double> &perWork,
                         const std::vector<double> &perHidden) {
  forward = sumsBefore(perForward);
  backward = sumsBefore(perBackward);
  work = sumsBefore(perWork);
  hidden = sumsBefore(perHidden);
}

void LeastSeconds::addMessages() {
  const auto add = [&](Beside &to, std::vector<double> StageOp::*messages,
                       double StageOp::*seconds) {
    std::vector<double> bytes, ops;
    bytes.reserve(size_t(model.count()));
    ops.reserve(size_t(model.count()));
    for (const StageOp &op : model.problem.ops) {
      bytes.push_back(
          std::accumulate((op.*messages).begin(), (op.*messages).end(), 0.0));
      ops.push_back(op.*seconds);
    }
    to = {sumsBefore(bytes), sumsBefore(ops)};
  };
  add(beside[0], &StageOp::gathersForward, &StageOp::forward);
  add(beside[1], &StageOp::gathersBackward, &StageOp::backward);
  add(beside[2], &StageOp::scatters, &StageOp::weight);
}

double LeastSeconds::exposed(int action, int begin, int end) const {
  const Beside &of = beside[size_t(action)];
  const auto &seconds = action == 2 ? links.scatter : links.gather;
  const double bytes = in(of.bytes, begin, end);
  if (bytes <= 0 || !seconds)
    return 0;
  const double ops = in(of.ops, begin, end);
  return links.beside ? std::max(0.0, seconds(bytes) - ops) : seconds(bytes);
}

double LeastSeconds::exposed(int begin, int end) const {
  return exposed(0, begin, end) + exposed(1, begin, end) +
         exposed(2, begin, end);
}

// The busiest stage has no less than the mean. The last backward of the first
// stage may hide its waits.
double LeastSeconds::of(const PipelineShape &shape) const {
  return (waited * (shape.microbatches - 1) + work->back() + optimizer +
          shape.microbatches * exposed(0, model.count())) /
         shape.stages;
}

double LeastSeconds::of(const PipelineShape &shape,
                        const std::vector<int> &begin, LateWeights late,
                        const std::vector<double> &again) const {
  const auto on = [&](const Sums &of, size_t v) {
    return in(of, begin[v], begin[v + 1]);
  };
  const int m = shape.microbatches;
  const size_t stages = size_t(shape.stages);
  std::vector<double> all(stages, 0), weights(stages, 0);
  for (size_t v = 0; v + 1 < begin.size(); ++v) {
    all[v % stages] += on(work, v) + exposed(begin[v], begin[v + 1]) +
                       (again.empty() ? 0 : again[v]);
    weights[v % stages] += on(work, v) - on(forward, v) - on(backward, v) +
                           exposed(2, begin[v], begin[v + 1]);
  }
  // Seconds of a microbatch on the links, of all parts, and before a stage on
  // the way of the first forward and of the last backward.
  std::vector<double> sends(stages, 0), sendsBack(stages, 0),
      sentBefore(stages, 0), sentBackBefore(stages, 0);
  for (size_t v = 0; transfers && v + 2 < begin.size(); ++v) {
    const BoundaryCost sent = boundaryOf(model, shape, int(v), begin[v + 1]);
    const double back = model.problem.train ? sent.backward : 0;
    sends[v % stages] += sent.forward;
    sendsBack[(v + 1) % stages] += back;
    if (v + 1 < stages) {
      sentBefore[v + 1] = sentBefore[v] + sent.forward;
      sentBackBefore[v + 1] = sentBackBefore[v] + back;
    }
  }
  const double sooner = shape.reduce.early ? (*hidden)[begin[1]] : 0;
  double most = 0;
  for (size_t s = 0; s < stages; ++s) {
    const double start =
        s == 0 ? 0 : (*forward)[begin[s]] + sentBefore[s] - sooner;
    // Of the microbatches whose W may come after the last B: of No alone that
    // of the part that this B is of, which is the first one's.
    const double after =
        late == LateWeights::No
            ? on(work, s) - on(forward, s) - on(backward, s) +
                  exposed(2, begin[s], begin[s + 1])
            : weights[s] * (late == LateWeights::Any
                                ? m
                                : std::min(m, static_cast<int>(s) + 1));
    most = std::max(
        {most, start + m * all[s],
         start + m * all[s] - after + (*backward)[begin[s]] + sentBackBefore[s],
         start + m * std::max(sends[s], sendsBack[s])});
  }
  return std::max(most + optimizer / shape.stages, of(shape));
}

bool LeastSeconds::misfits(const PipelineShape &shape) const {
  return shape.memoryBytes > 0 && fixedBytes > shape.memoryBytes * shape.stages;
}

} // namespace merak::planning
