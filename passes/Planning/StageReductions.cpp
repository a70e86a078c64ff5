// How much of the reduction of a stage's gradients the end of its backward pass
// hides: buckets as passes/Lowering/BucketGradients.cpp fills them, on the
// streams and links of LastBackward.h.
#include "passes/Planning/OpenBuckets.h"
#include "passes/Planning/StageProblem.h"

#include <algorithm>
#include <array>

namespace merak::planning {

namespace {

// Tasks of ops [begin, end) of an action as one chain: their own numbers, and
// what they need of each other. Both submicrobatches at once.
struct Chosen {
  std::vector<int> number;
  std::vector<IssuedTask> tasks;
  Chosen(const std::vector<SubmicrobatchTask> &all, std::vector<int> chosen)
      : number(std::move(chosen)) {
    tasks.reserve(number.size());
    for (int i : number) {
      const SubmicrobatchTask &task = all[size_t(i)];
      IssuedTask issued{task.both(), task.communication, {}};
      for (int need : task.needs)
        if (int at = find(need); at >= 0)
          issued.needs.push_back(at);
      tasks.push_back(std::move(issued));
    }
  }
  int find(int of) const {
    auto it = std::lower_bound(number.begin(), number.end(), of);
    return it != number.end() && *it == of ? int(it - number.begin()) : -1;
  }
};

} // namespace

// Without tasks of its own an op's B and W are one.
StageModel::LastTasks StageModel::lastTasks(int begin, int end,
                                            double weight) const {
  LastTasks last;
  last.final.assign(size_t(end - begin), -1);
  if (submicrobatches.empty()) {
    for (int i = end; i-- > begin;) {
      last.final[size_t(i - begin)] = int(last.tasks.size());
      last.tasks.push_back(
          {problem.ops[i].weight + (begin == 0 ? problem.ops[i].backward : 0),
           false,
           {}});
    }
    return last;
  }
  Chosen w(problem.submicrobatches[2], submicrobatches[2]->tasksIn(begin, end));
  Chosen b(problem.submicrobatches[1],
           submicrobatches[1]->tasksIn(begin, joinsLast(begin) ? end : begin));
  // What moved into the waits of B is missing here.
  double all = 0;
  for (const IssuedTask &task : w.tasks)
    all += task.communication ? 0 : task.seconds;
  std::vector<std::vector<int>> backward(w.tasks.size());
  for (size_t i = 0; i < w.tasks.size(); ++i) {
    if (!w.tasks[i].communication && all > weight)
      w.tasks[i].seconds *= weight / all;
    for (int task : problem.submicrobatches[2][size_t(w.number[i])].backward)
      if (int at = b.find(task); at >= 0)
        backward[i].push_back(at);
  }
  // One submicrobatch after the other: gradients are final with the second.
  if (problem.overlap > 0) {
    for (IssuedTask &task : w.tasks)
      task.seconds /= 2;
    last.tasks.push_back({std::min(weight, all) / 2, false, {}});
  }
  const int before = int(last.tasks.size());
  const std::vector<int> order = joinedOrder(b.tasks, w.tasks, backward);
  std::vector<int> place(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    place[size_t(order[i])] = before + int(i);
  const int first = int(b.tasks.size()); // of W
  for (int number : order) {
    const bool ofW = number >= first;
    const IssuedTask &task =
        ofW ? w.tasks[size_t(number - first)] : b.tasks[size_t(number)];
    IssuedTask issued{task.seconds, task.communication, {}};
    for (int need : task.needs)
      issued.needs.push_back(place[size_t(need + (ofW ? first : 0))]);
    if (ofW) {
      for (int need : backward[size_t(number - first)])
        issued.needs.push_back(place[size_t(need)]);
      const int op =
          problem.submicrobatches[2][size_t(w.number[size_t(number - first)])]
              .op;
      last.final[size_t(op - begin)] = int(last.tasks.size());
    }
    last.tasks.push_back(std::move(issued));
  }
  return last;
}

// Of B and W together.
double StageModel::secondsOfLast(int begin, int end) const {
  if (submicrobatches.empty() || !joinsLast(begin))
    return std::numeric_limits<double>::infinity();
  return simulateLastBackward(
             lastTasks(begin, end, std::numeric_limits<double>::infinity())
                 .tasks,
             {}, false)
      .tasks;
}

double StageModel::exposedReduction(int begin, int end,
                                    const GradientReduction &reduce,
                                    double weight) const {
  if (!reduce.tensorSeconds && !problem.links.scatter &&
      (reduce.replicas <= 1 || !reduce.seconds))
    return 0;
  if (const int behind = behindFirst(begin, end); behind > 0)
    return exposedReduction(begin - behind, end - behind, reduce, weight);
  auto [it, isNew] =
      reductions.try_emplace({begin, end, reduce.replicas, reduce.place,
                              reduce.bucketBytes, reduce.early, weight},
                             0);
  if (!isNew)
    return it->second;
  const LastTasks last = lastTasks(begin, end, weight);
  // Backward comes from the last op to the first; a gradient is final with the
  // first user of its parameter.
  struct Gradient {
    double bytes;
    int after;
    bool tensor, early; // summed over the ranks of a replica too
    bool scattered;
  };
  std::vector<Gradient> gradients;
  for (int i = end; i-- > begin;)
    for (auto [p, previous] : pricing().parametersOf[i]) {
      const StageParameter &parameter = problem.parameters[p];
      const bool scattered = parameter.scatterMessage > 0;
      const bool tensor =
          !scattered && parameter.tensorPartial && reduce.tensorSeconds;
      if (previous >= begin || parameter.gradientBytes <= 0 ||
          (parameter.scattered && !scattered) ||
          (!tensor && !scattered && reduce.replicas <= 1))
        continue;
      // Exchanged with other stages first, in the update.
      const bool isShared =
          parameter.users.front() < begin || parameter.users.back() >= end;
      gradients.push_back(
          {scattered ? parameter.scatterMessage : parameter.gradientBytes,
           last.final[size_t(i - begin)], tensor, reduce.early && !isShared,
           scattered});
    }
  std::stable_sort(
      gradients.begin(), gradients.end(),
      [](const Gradient &a, const Gradient &b) { return a.after < b.after; });
  std::vector<Gradient> buckets;
  OpenBuckets<std::array<bool, 3>> open;
  for (const Gradient &gradient : gradients) {
    const bool fills =
        !gradient.scattered && gradient.bytes >= reduce.bucketBytes;
    const size_t bucket = open.place(
        {gradient.scattered, gradient.tensor, gradient.early}, fills,
        buckets.size(), [&](size_t b) {
          return buckets[b].bytes + gradient.bytes <= reduce.bucketBytes;
        });
    if (bucket == buckets.size()) {
      buckets.push_back(gradient);
      continue;
    }
    buckets[bucket].bytes += gradient.bytes;
    buckets[bucket].after = gradient.after;
  }
  std::stable_sort(
      buckets.begin(), buckets.end(),
      [](const Gradient &a, const Gradient &b) { return a.after < b.after; });
  std::vector<EarlyReduction> early;
  double after = 0;
  for (const Gradient &bucket : buckets) {
    const double seconds = (bucket.scattered ? problem.links.scatter
                            : bucket.tensor  ? reduce.tensorSeconds
                                             : reduce.seconds)(bucket.bytes);
    if (bucket.early)
      early.push_back({seconds, bucket.after});
    else
      after += seconds;
  }
  const double alone = simulateLastBackward(last.tasks, {}, false).tasks;
  const double both =
      simulateLastBackward(last.tasks, early, reduce.shared).reduced;
  return it->second = both - alone + after;
}

// Of ops [begin, end) in the order of an action.
std::vector<PlacedMessage>
StageModel::placed(int begin, int end, bool backwards,
                   std::vector<double> StageOp::*messages) const {
  std::vector<PlacedMessage> out;
  const auto add = [&](int op) {
    for (double bytes : problem.ops[op].*messages)
      out.push_back({backwards ? end - 1 - op : op - begin, bytes});
  };
  const std::span<const int> ops = between(withMessages, begin, end);
  if (backwards)
    std::for_each(ops.rbegin(), ops.rend(), add);
  else
    std::for_each(ops.begin(), ops.end(), add);
  return out;
}

static std::vector<double> secondsOf(const StageProblem &problem, int begin,
                                     int end, bool backwards,
                                     double StageOp::*seconds) {
  std::vector<double> out;
  for (int at = 0; at < end - begin; ++at)
    out.push_back(problem.ops[size_t(backwards ? end - 1 - at : begin + at)].*
                  seconds);
  return out;
}

// What is gathered and scattered in each microbatch.
void StageModel::addMessages(int begin, int end, StageCost &out) const {
  auto exposed = [&](auto seconds, auto of, bool backwards, auto messages) {
    const std::vector<PlacedMessage> list =
        placed(begin, end, backwards, messages);
    return list.empty() ? 0.0
                        : seconds(secondsOf(problem, begin, end, backwards, of),
                                  list, problem.links);
  };
  const double f = exposed(exposedGathers, &StageOp::forward, false,
                           &StageOp::gathersForward),
               b = exposed(exposedGathers, &StageOp::backward, true,
                           &StageOp::gathersBackward),
               w = exposed(exposedScatters, &StageOp::weight, true,
                           &StageOp::scatters);
  out.times.F += f;
  out.times.B += b;
  out.times.W += w;
  out.communication += f + b + w;
}

double StageModel::gatheredOnce(int begin, int end) const {
  std::vector<PlacedMessage> gathers;
  for (int i = begin; i < end; ++i)
    for (auto [p, previous] : pricing().parametersOf[i])
      if (previous < begin)
        for (const StageParameter::Copy &copy : problem.parameters[p].copies)
          if (copy.message > 0 && copy.isOn(begin, end))
            gathers.push_back({i - begin, copy.message});
  return castSeconds(begin, end) +
         (gathers.empty() ? 0
                          : exposedGathers(secondsOf(problem, begin, end, false,
                                                     &StageOp::forward),
                                           gathers, problem.links));
}

// Bytes of parameters and gradients that are whole for a while. Where W goes
// into the waits of the last B, gradients are beside the parameters that B
// gathers again.
double StageModel::messageWorkspace(int begin, int end) const {
  auto most = [&](bool backwards, auto messages) {
    return twoBuckets(placed(begin, end, backwards, messages), problem.links);
  };
  const double forward = most(false, &StageOp::gathersForward),
               b = most(true, &StageOp::gathersBackward),
               w = most(true, &StageOp::scatters);
  const bool joined = !submicrobatches.empty() && joinsLast(begin);
  return std::max({forward, joined ? b + w : b, w});
}

} // namespace merak::planning
