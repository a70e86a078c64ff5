#include "passes/Stragglers/Plan.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::stragglers {

namespace {

// Product of a time, which may be kFailed.
int64_t times(int64_t count, int64_t time) {
  return time == kFailed ? kFailed : count * time;
}

// Part i of `total` things in `parts` as equal ones; the first get one more.
int64_t share(int64_t total, int64_t parts, int64_t i) {
  return total / parts + (i < total % parts);
}

} // namespace

PipelineTime timeOf(const Problem &problem, const Pipeline &pipeline) {
  PipelineTime time;
  for (const Stage &stage : pipeline.stages) {
    const int64_t own = times(stage.layers, groupRate(problem, stage.devices));
    time.slowest = std::max(time.slowest, own);
    time.all = own == kFailed || time.all == kFailed ? kFailed : time.all + own;
  }
  return time;
}

Score scoreOf(const Problem &problem, const Plan &plan) {
  Score score{0, 0};
  for (const Pipeline &pipeline : plan.pipelines) {
    const PipelineTime time = timeOf(problem, pipeline);
    if (time.slowest == kFailed)
      return {};
    const int64_t m = pipeline.microbatches;
    score.steady = std::max(score.steady, m * time.slowest);
    score.filled = std::max(score.filled, (m - 1) * time.slowest + time.all);
  }
  return score;
}

std::vector<int> standbyDevices(const Problem &problem, const Plan &plan) {
  std::vector<char> used(problem.devices.size(), false);
  for (const Pipeline &pipeline : plan.pipelines)
    for (const Stage &stage : pipeline.stages)
      for (int device : stage.devices)
        used[size_t(device)] = true;
  std::vector<int> result;
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i])
      result.push_back(int(i));
  return result;
}

std::vector<int> failedDevices(const Problem &problem) {
  std::vector<int> result;
  for (size_t i = 0; i < problem.devices.size(); ++i)
    if (isFailed(problem, int(i)))
      result.push_back(int(i));
  return result;
}

namespace {

int64_t bytesOf(const Problem &problem, const Pipeline &pipeline, size_t j) {
  const Stage &stage = pipeline.stages[j];
  const size_t behind = pipeline.stages.size() - 1 - j;
  return stageBytes(problem, int64_t(stage.devices.size()), int64_t(behind),
                    j == 0 || behind == 0, stage.layers);
}

} // namespace

int64_t peakBytes(const Problem &problem, const Plan &plan) {
  int64_t peak = 0;
  for (const Pipeline &pipeline : plan.pipelines)
    for (size_t j = 0; j < pipeline.stages.size(); ++j)
      peak = std::max(peak, bytesOf(problem, pipeline, j));
  return peak;
}

namespace {

class Verifier {
public:
  Verifier(const Problem &problem, const Plan &plan)
      : problem(problem), plan(plan), used(problem.devices.size(), false) {}

  Status run() {
    int64_t microbatches = 0;
    if (plan.pipelines.empty())
      problemAt("plan", "has no pipeline");
    for (size_t i = 0; i < plan.pipelines.size(); ++i) {
      microbatches += plan.pipelines[i].microbatches;
      verifyPipeline(fmt::format("pipeline {}", i), plan.pipelines[i]);
    }
    if (microbatches != problem.microbatches)
      problemAt("plan", fmt::format("has {} microbatches, expected {}",
                                    microbatches, problem.microbatches));
    return std::move(status);
  }

private:
  void problemAt(const std::string &where, const std::string &what) {
    status.merge(Status::error(where + ": " + what));
  }

  void verifyPipeline(const std::string &where, const Pipeline &pipeline) {
    const int64_t stages = int64_t(pipeline.stages.size());
    int64_t layers = 0;
    if (stages > mostStages(problem))
      return problemAt(where, fmt::format("has {} stages, at most {} are known",
                                          stages, mostStages(problem)));
    if (pipeline.microbatches < std::max<int64_t>(1, stages))
      problemAt(where, fmt::format("has {} stages and {} microbatches", stages,
                                   pipeline.microbatches));
    for (size_t j = 0; j < pipeline.stages.size(); ++j) {
      layers += pipeline.stages[j].layers;
      verifyStage(fmt::format("{}, stage {}", where, j), pipeline, j);
    }
    if (layers != problem.layers)
      problemAt(where, fmt::format("has {} layers, expected {}", layers,
                                   problem.layers));
  }

  void verifyStage(const std::string &where, const Pipeline &pipeline,
                   size_t j) {
    const Stage &stage = pipeline.stages[j];
    if (stage.layers < 1)
      problemAt(where, fmt::format("has {} layers", stage.layers));
    if (!isGroupSize(problem, int64_t(stage.devices.size())))
      return problemAt(where, fmt::format("has a group of {} devices, for "
                                          "which there is no price",
                                          stage.devices.size()));
    for (int device : stage.devices)
      verifyDevice(where, stage, device);
    if (const int64_t bytes = bytesOf(problem, pipeline, j);
        problem.isLimited() && bytes > problem.memory.limit)
      problemAt(where, fmt::format("needs {} bytes, a device has {}", bytes,
                                   problem.memory.limit));
  }

  void verifyDevice(const std::string &where, const Stage &stage, int device) {
    if (device < 0 || size_t(device) >= problem.devices.size())
      return problemAt(where, fmt::format("there is no device {}", device));
    if (used[size_t(device)])
      problemAt(where, fmt::format("device {} is in use already", device));
    used[size_t(device)] = true;
    if (isFailed(problem, device))
      problemAt(where, fmt::format("device {} is gone", device));
    const int first = stage.devices.front();
    if (first >= 0 && size_t(first) < problem.devices.size() &&
        problem.devices[size_t(first)].node !=
            problem.devices[size_t(device)].node)
      problemAt(where, fmt::format("devices {} and {} are on different nodes",
                                   first, device));
  }

  const Problem &problem;
  const Plan &plan;
  std::vector<char> used;
  Status status;
};

} // namespace

Status verify(const Problem &problem, const Plan &plan) {
  return Verifier(problem, plan).run();
}

Plan uniformPlan(const Problem &problem) {
  Plan plan;
  int next = 0;
  for (int64_t i = 0; i < problem.dp; ++i) {
    Pipeline pipeline;
    pipeline.microbatches = share(problem.microbatches, problem.dp, i);
    for (int64_t j = 0; j < problem.pp; ++j) {
      Stage stage;
      stage.layers = share(problem.layers, problem.pp, problem.pp - 1 - j);
      for (int64_t d = 0; d < problem.tp; ++d)
        stage.devices.push_back(next++);
      pipeline.stages.push_back(std::move(stage));
    }
    plan.pipelines.push_back(std::move(pipeline));
  }
  return plan;
}

double idealTime(const Problem &problem) {
  return double(problem.layers) * double(problem.microbatches) *
         double(problem.tp) * double(kOne) / double(problem.devices.size());
}

double theoryTime(const Problem &problem) {
  double speed = 0;
  for (size_t i = 0; i < problem.devices.size(); ++i)
    if (!isFailed(problem, int(i)))
      speed += isStraggler(problem, int(i))
                   ? double(kOne) / double(problem.devices[i].rate)
                   : 1;
  return idealTime(problem) * double(problem.devices.size()) / speed;
}

double relaxedTime(const Problem &problem, const Plan &plan) {
  double speed = 0;
  for (const Pipeline &pipeline : plan.pipelines)
    for (const Stage &stage : pipeline.stages)
      speed += 1 / double(groupRate(problem, stage.devices));
  return double(problem.layers) * double(problem.microbatches) / speed;
}

} // namespace merak::stragglers
