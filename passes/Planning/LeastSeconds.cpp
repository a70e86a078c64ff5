#include "passes/Planning/LeastSeconds.h"

#include <algorithm>

namespace merak::planning {

namespace {

// Seconds of a microbatch, per op, of the tasks of an action.
struct TaskSums {
  std::vector<double> computed;
  double all = 0, communicated = 0;
  TaskSums(const std::vector<SubmicrobatchTask> &tasks, int ops)
      : computed(ops, 0) {
    for (const SubmicrobatchTask &task : tasks) {
      (task.communication ? communicated : all) += task.both();
      if (!task.communication)
        computed[task.op] += task.both();
    }
  }
};

} // namespace

LeastSeconds::LeastSeconds(const StageModel &model)
    : model(model), forward(1, 0), work(1, 0) {
  const StageProblem &problem = model.problem;
  const int n = model.count();
  std::vector<double> perForward(n, 0), perWork(n, 0);
  if (model.hasTasks()) {
    std::array<double, 3> all{}, links{};
    for (int action = 0; action < (problem.train ? 3 : 1); ++action) {
      const TaskSums sums(problem.submicrobatches[action], n);
      for (int op = 0; op < n; ++op)
        perWork[op] += sums.computed[op];
      if (action == 0)
        perForward = sums.computed;
      all[action] = sums.all;
      links[action] = sums.communicated;
    }
    // What W computes may run beside what B waits for.
    waited = std::max(all[0], links[0]) + std::max(all[1] + all[2], links[1]);
    if (problem.overlap == 0) {
      const ActionTimes times = model.timesOf(0, n).times;
      waited = times.F + (problem.train ? times.B + times.W : 0);
    }
  } else {
    for (int op = 0; op < n; ++op) {
      const StageOp &of = problem.ops[op];
      perForward[op] = of.forward;
      perWork[op] = of.forward + (problem.train ? of.backward + of.weight : 0);
      waited += perWork[op];
    }
  }
  for (int op = 0; op < n; ++op) {
    forward.push_back(forward.back() + perForward[op]);
    work.push_back(work.back() + perWork[op]);
  }
  for (const StageParameter &parameter : problem.parameters) {
    if (problem.train)
      optimizer += parameter.updateSeconds;
    fixedBytes += parameter.bytes + parameter.gatheredBytes +
                  parameter.gradientBytes + parameter.stateBytes;
  }
}

// The busiest stage has no less than the mean. The last backward of the first
// stage may hide its waits.
double LeastSeconds::of(const PipelineShape &shape) const {
  return (waited * (shape.microbatches - 1) + work.back() + optimizer) /
         shape.stages;
}

double LeastSeconds::of(const PipelineShape &shape,
                        const std::vector<int> &begin) const {
  std::vector<double> busy(shape.stages, 0);
  for (size_t v = 0; v + 1 < begin.size(); ++v) {
    double &of = busy[v % shape.stages];
    if (int(v) < shape.stages)
      of = forward[begin[v]];
    of += shape.microbatches * (work[begin[v + 1]] - work[begin[v]]);
  }
  const double most = *std::max_element(busy.begin(), busy.end());
  return std::max(most + optimizer / shape.stages, of(shape));
}

bool LeastSeconds::misfits(const PipelineShape &shape) const {
  return shape.memoryBytes > 0 && fixedBytes > shape.memoryBytes * shape.stages;
}

} // namespace merak::planning
