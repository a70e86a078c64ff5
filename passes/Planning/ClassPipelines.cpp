#include "passes/Planning/ClassPipelines.h"

#include "passes/Planning/MicrobatchLimit.h"
#include "passes/Planning/StageMix.h"

#include <algorithm>
#include <cmath>

namespace merak::planning {

// More stages than this are not looked at, nor more classes.
constexpr int64_t kMostStages = 64;
constexpr size_t kMostClasses = 8;
// Combinations of the degrees of all classes for one number of microbatches.
constexpr size_t kCombinations = 256;

bool ClassPipelines::isAlike() const {
  const PipelineStages &first = pipelines.front();
  return std::all_of(pipelines.begin(), pipelines.end(), [&](const auto &of) {
    return of.stages.size() == first.stages.size() &&
           of.stages.front().tp == first.stages.front().tp;
  });
}

stragglers::PipelineWork workOf(double first, double next) {
  const auto whole = [](double seconds) {
    return std::max<int64_t>(1, std::llround(seconds * 1e9));
  };
  return {{.slowest = whole(next), .all = whole(first)}, /*stages=*/1};
}

namespace {

class ClassSearch {
public:
  ClassSearch(const SearchInput &input, StageMeshes &meshes)
      : input(input), classes(input, meshes) {}

  std::vector<ClassPipelines> run(size_t most);

private:
  // Degrees of a class; no stages: its devices are spare.
  struct Option {
    int64_t pp = 0, dp = 1, tp = 1;
    double all = 0, slowest = 0; // of a microbatch
    std::vector<std::vector<int64_t>> places;
  };
  std::vector<Option> optionsOf(int deviceClass, int64_t microbatches);
  void keepFastest(std::vector<std::vector<Option>> &options,
                   int64_t microbatches) const;
  void combine(const std::vector<std::vector<Option>> &options,
               std::vector<const Option *> &chosen, int64_t microbatches);
  void add(const std::vector<const Option *> &chosen, int64_t microbatches);

  const SearchInput &input;
  DeviceClasses classes;
  std::vector<int64_t> tensor; // degrees
  int64_t forwards = 0;
  std::vector<ClassPipelines> found;
};

} // namespace

// Of each number of stages and tp, as many replicas as there are devices for
// and as the samples of a microbatch can be split over.
std::vector<ClassSearch::Option> ClassSearch::optionsOf(int deviceClass,
                                                        int64_t microbatches) {
  const DeviceClass &of = classes.at(deviceClass);
  const int64_t samples = input.globalBatch / microbatches;
  const int64_t most = classes.isGiven(kPipelineAxis)
                           ? 1
                           : std::min({of.devices, forwards, kMostStages});
  std::vector<Option> options;
  for (int64_t tp : tensor)
    for (int64_t pp = 1;
         tp <= of.largest && pp <= most && pp * tp <= of.devices; ++pp) {
      Option option{pp, classes.isGiven(kDataAxis) ? 1 : of.devices / (pp * tp),
                    tp};
      while (option.dp > 0) {
        if (samples % option.dp == 0)
          if (auto places = placeStages(
                  of.nodes, std::vector<int64_t>(size_t(pp), option.dp * tp))) {
            option.places = std::move(*places);
            break;
          }
        --option.dp;
      }
      // More stages on the same devices each: fewer are never as fast.
      if (!options.empty() && options.back().tp == tp &&
          options.back().dp == option.dp)
        options.pop_back();
      if (option.dp > 0)
        options.push_back(std::move(option));
    }
  std::erase_if(options, [&](Option &option) {
    const auto price =
        classes.price(deviceClass, option.dp, option.tp, microbatches);
    if (!price || price->share * double(option.pp) < 1)
      return true;
    option.all = price->seconds;
    option.slowest = price->seconds / double(option.pp);
    return false;
  });
  return options;
}

// Those that take least for the microbatches that their speed earns a class.
void ClassSearch::keepFastest(std::vector<std::vector<Option>> &options,
                              int64_t microbatches) const {
  std::vector<double> speeds;
  double speed = 0;
  for (const std::vector<Option> &of : options) {
    double best = 0;
    for (const Option &option : of)
      best = std::max(best, 1 / option.slowest);
    speeds.push_back(best);
    speed += best;
  }
  const size_t keep =
      size_t(std::max(1.0, std::floor(std::pow(double(kCombinations),
                                               1 / double(options.size())))));
  for (size_t c = 0; c < options.size(); ++c) {
    const double share =
        std::max(1.0, double(microbatches) * speeds[c] / speed);
    const auto secondsOf = [&](const Option &option) {
      return (share - 1) * option.slowest + option.all;
    };
    std::stable_sort(options[c].begin(), options[c].end(),
                     [&](const Option &a, const Option &b) {
                       return secondsOf(a) < secondsOf(b);
                     });
    const bool mayBeSpare = options.size() > 2;
    options[c].resize(
        std::min(options[c].size(), std::max<size_t>(1, keep - mayBeSpare)));
    if (mayBeSpare || options[c].empty())
      options[c].emplace_back();
  }
}

void ClassSearch::combine(const std::vector<std::vector<Option>> &options,
                          std::vector<const Option *> &chosen,
                          int64_t microbatches) {
  if (chosen.size() == options.size())
    return add(chosen, microbatches);
  for (const Option &option : options[chosen.size()]) {
    chosen.push_back(&option);
    combine(options, chosen, microbatches);
    chosen.pop_back();
  }
}

void ClassSearch::add(const std::vector<const Option *> &chosen,
                      int64_t microbatches) {
  std::vector<stragglers::PipelineWork> work;
  int64_t stages = 0;
  for (const Option *option : chosen)
    if (option->pp > 0) {
      work.push_back(workOf(option->all, option->slowest));
      stages += option->pp;
    }
  if (work.size() < 2 || microbatches > kMicrobatchesPerStage * stages)
    return;
  const auto shares = stragglers::shareMicrobatches(
      work, microbatches, stragglers::Objective::Filled);
  if (!shares)
    return;
  ClassPipelines &made = found.emplace_back();
  made.microbatches = microbatches;
  std::vector<bool> used(size_t(input.cluster.count));
  size_t next = 0;
  for (const Option *option : chosen) {
    if (option->pp == 0)
      continue;
    made.seconds =
        std::max(made.seconds,
                 double((*shares)[next++] - 1) * option->slowest + option->all);
    PipelineStages &pipeline = made.pipelines.emplace_back();
    for (const std::vector<int64_t> &devices : option->places) {
      PipelineStages::Stage &stage = pipeline.stages.emplace_back();
      stage.devices = devices;
      stage.dp = option->dp;
      stage.tp = option->tp;
      for (int64_t device : devices)
        used[size_t(device)] = true;
    }
  }
  for (int64_t device = 0; device < input.cluster.count; ++device)
    if (!used[size_t(device)])
      made.pipelines.front().spares.push_back(device);
}

std::vector<ClassPipelines> ClassSearch::run(size_t most) {
  const size_t count = classes.all().size();
  if (count < 2 || count > kMostClasses)
    return {};
  tensor = classes.tensorDegrees();
  forwards = std::count_if(
      input.graph->ops.begin(), input.graph->ops.end(),
      [](const GraphOp &op) { return op.phase == Phase::Forward; });
  for (int64_t m = 2; m <= input.globalBatch; ++m) {
    if (input.globalBatch % m != 0)
      continue;
    std::vector<std::vector<Option>> options;
    for (size_t c = 0; c < count; ++c)
      options.push_back(optionsOf(int(c), m));
    keepFastest(options, m);
    std::vector<const Option *> chosen;
    combine(options, chosen, m);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const ClassPipelines &a, const ClassPipelines &b) {
                     return a.seconds < b.seconds;
                   });
  size_t alike = 0, others = 0;
  std::erase_if(found, [&](const ClassPipelines &of) {
    return ++(of.isAlike() ? alike : others) > most;
  });
  return std::move(found);
}

std::vector<ClassPipelines> classPipelines(const SearchInput &input,
                                           StageMeshes &meshes, size_t most) {
  for (const auto &[axis, degree] : input.pinned.mesh)
    if (degree != 1)
      return {};
  // Samples of a replica say nothing where there are other replicas.
  if (input.pinned.microbatch)
    return {};
  return ClassSearch(input, meshes).run(most);
}

} // namespace merak::planning
