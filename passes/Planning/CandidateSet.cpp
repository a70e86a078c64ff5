#include "passes/Planning/CandidateSet.h"

#include "passes/Planning/AutoSchedule.h"
#include "passes/Planning/LeastPlan.h"
#include "passes/Planning/Strategy.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <set>

namespace merak::planning {

// List schedules are made for so many plans, and for so many with several parts
// a stage; actions of all lists of the first one, and of each of the others.
constexpr int kImproved = 6, kImprovedChunks = 2;
constexpr int64_t kFirstEffort = 2'000'000, kEffort = 400'000;

// Differences below this part do not count.
constexpr double kSmall = 1e-9;

PipelineOptions pipelineOptions(const SearchPolicy &policy,
                                const std::string &recompute) {
  PipelineOptions options;
  options.schedules = policy.schedules;
  options.concrete = policy.concrete;
  options.recompute = recompute;
  if (!policy.cutters.empty())
    options.cutter = policy.cutters.front();
  options.chunks = policy.chunks;
  options.price = policy.price;
  return options;
}

// What is planned with so many parts a stage.
static std::vector<std::string> schedulesOf(const SearchPolicy &policy,
                                            bool quick, int chunks) {
  if (chunks != policy.chunks)
    return searchedSchedules(/*chunks=*/true);
  if (quick && policy.schedules.size() > 3)
    return {policy.schedules.begin(), policy.schedules.begin() + 3};
  return policy.schedules;
}

double leastSeconds(const SearchPolicy &policy, bool quick,
                    const LeastSeconds &least, const PipelineShape &shape) {
  if (!quick && policy.cutters.empty())
    return least.of(shape);
  std::vector<Cutter> cutters = policy.cutters;
  if (cutters.empty())
    cutters.push_back([&shape](const StageModel &model, int parts) {
      return balanced(model, parts, shape);
    });
  std::set<int> chunks = {1};
  if (shape.stages > 1 && least.model.problem.train) {
    chunks = {policy.chunks};
    chunks.insert(policy.otherChunks.begin(), policy.otherChunks.end());
  }
  // Infinite where a policy has no cuts.
  double seconds = std::numeric_limits<double>::infinity();
  for (int parts : chunks) {
    if (!dividesIntoChunks(parts, shape.stages, shape.microbatches))
      continue;
    LateWeights late =
        policy.concrete.empty() ? LateWeights::No : LateWeights::Any;
    for (const std::string &name : schedulesOf(policy, quick, parts))
      late = std::max(late, traitsOf(name).weights);
    for (const Cutter &cutter : cutters)
      if (Result<std::vector<int>> begin =
              cutter(least.model, shape.stages * parts);
          begin.ok())
        seconds = std::min(seconds, least.of(shape, *begin, late));
  }
  return seconds;
}

bool isSlowerInParts(const SearchPolicy &policy, const LeastSeconds &least,
                     const StoredShares &shares, const PipelineShape &shape,
                     double limit) {
  const StageProblem &problem = least.model.problem;
  if (!policy.cutters.empty() || !policy.concrete.empty() || policy.price ||
      policy.recompute.front() != "auto" || !problem.train ||
      !problem.joins.empty() || !shape.meshes.empty())
    return false;
  std::set<int> chunks = {policy.chunks};
  if (shape.stages > 1)
    chunks.insert(policy.otherChunks.begin(), policy.otherChunks.end());
  PipelineOptions options = pipelineOptions(policy, "auto");
  options.cut = CutRule::MinMax;
  options.fitting = true;
  options.limit = limit;
  return std::all_of(chunks.begin(), chunks.end(), [&](int parts) {
    options.chunks = parts;
    options.schedules = schedulesOf(policy, /*quick=*/true, parts);
    return leastOfOnlyCuts(least.model, least, shares, shape, options) > limit;
  });
}

Result<std::vector<int>> namedCuts(const StageModel &model, int64_t stages,
                                   const std::vector<std::string> &begins) {
  std::map<std::string, int> index;
  for (int i = 0; i < model.count(); ++i)
    index.emplace(model.problem.ops[size_t(i)].key.str(), i);
  std::vector<int> begin = {0};
  Status status;
  for (const std::string &name : begins) {
    auto it = index.find(name);
    if (it == index.end())
      status.merge(Status::error(
          fmt::format("no operation '{}' to begin a stage at", name)));
    else if (it->second <= begin.back())
      status.merge(Status::error(fmt::format(
          "the stage that begins at '{}' would be empty: its begin is not "
          "after the one before",
          name)));
    else
      begin.push_back(it->second);
  }
  if (status.ok() && int64_t(begin.size()) != stages)
    status = Status::error(
        fmt::format("{} stages have {} begins after the first, found {}",
                    stages, stages - 1, begins.size()));
  MERAK_RETURN_IF_ERROR(status);
  begin.push_back(model.count());
  return begin;
}

// No schedule of these stages is faster than one of them, which begins when the
// first microbatch has come to it.
static double leastSeconds(const TriedPlan &attempt) {
  const PipelineCost &cost = attempt.plan.cost;
  const int microbatches = attempt.plan.schedule.microbatches;
  const size_t stages = cost.busy.size();
  double before = 0, least = 0;
  for (size_t s = 0; s < stages; ++s) {
    double setup = 0; // what may be done while it waits
    for (size_t v = s; v < cost.stages.size(); v += stages)
      setup += cost.stages[v].prologue * microbatches + cost.stages[v].clear;
    least = std::max(least, cost.busy[s] + std::max(0.0, before - setup));
    before += cost.stages[s].times.F;
  }
  return least;
}

static std::pair<double, double> exactly(const TriedPlan &attempt) {
  return {attempt.plan.cost.excessBytes, attempt.plan.cost.seconds};
}

bool CandidateSet::better(const TriedPlan &a, const TriedPlan &b) {
  const PipelineCost &x = a.plan.cost, &y = b.plan.cost;
  if (x.excessBytes != y.excessBytes)
    return x.excessBytes < y.excessBytes;
  return x.seconds < y.seconds * (1 - kSmall);
}

const TriedPlan *CandidateSet::best() const {
  // Of equals the first.
  const TriedPlan *best = nullptr;
  for (const TriedPlan &attempt : all)
    if (!best || better(attempt, *best))
      best = &attempt;
  return best;
}

std::vector<const TriedPlan *> CandidateSet::finalists(size_t most) const {
  std::vector<const TriedPlan *> sorted, found;
  for (const TriedPlan &attempt : all)
    sorted.push_back(&attempt);
  std::stable_sort(
      sorted.begin(), sorted.end(),
      [](const TriedPlan *a, const TriedPlan *b) { return better(*a, *b); });
  // What takes the same time is mostly the same order under another name.
  for (const TriedPlan *attempt : sorted)
    if (found.size() < most &&
        (found.empty() || better(*found.back(), *attempt)))
      found.push_back(attempt);
  return found;
}

std::vector<const TriedPlan *> CandidateSet::frontier() const {
  std::vector<std::pair<double, const TriedPlan *>> sorted; // by bytes
  for (const TriedPlan &attempt : all)
    sorted.emplace_back(attempt.plan.cost.fullest(), &attempt);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto &a, const auto &b) {
                     return std::pair(a.second->plan.cost.seconds, a.first) <
                            std::pair(b.second->plan.cost.seconds, b.first);
                   });
  std::vector<const TriedPlan *> found;
  double least = std::numeric_limits<double>::infinity();
  for (const auto &[bytes, attempt] : sorted)
    if (bytes < least) {
      found.push_back(attempt);
      least = bytes;
    }
  return found;
}

std::vector<PipelinePlan> CandidateSet::plan(const TriedPlan &like,
                                             PipelineOptions options) {
  if (!like.model->problem.train)
    options.recompute = "none";
  Status status;
  std::vector<PipelinePlan> found =
      planSchedules(*like.model, like.shape, options, status);
  if (found.empty())
    problems.merge(status);
  for (const PipelinePlan &one : found) {
    evaluations += one.evaluations;
    TriedPlan attempt = like;
    attempt.plan = one;
    attempt.recompute = options.recompute;
    all.push_back(std::move(attempt));
  }
  return found;
}

double CandidateSet::limitNow() const {
  const TriedPlan *leader = limit > 0 ? best() : nullptr;
  return leader && leader->plan.cost.fits()
             ? std::min(limit, margin * leader->plan.cost.seconds)
             : limit;
}

void CandidateSet::add(const StageModel &model, const PipelineShape &shape,
                       const Techniques &techniques) {
  TriedPlan like;
  like.model = &model;
  like.shape = shape;
  like.techniques = techniques;
  addChunks(like, policy.chunks);
  if (begins || shape.stages == 1 || !model.problem.train)
    return;
  for (int chunks : policy.otherChunks)
    addChunks(like, chunks);
}

void CandidateSet::addChunks(const TriedPlan &like, int chunks) {
  bool other = chunks != policy.chunks;
  bool train = like.model->problem.train;
  PipelineOptions options = pipelineOptions(policy, "");
  options.chunks = chunks;
  if (const std::string &joins = like.model->problem.joins; !joins.empty()) {
    auto has = [&](const char *name) {
      return std::find(policy.schedules.begin(), policy.schedules.end(),
                       name) != policy.schedules.end();
    };
    if (chunks > 1 || !has("gpipe")) {
      if (!other)
        problems.merge(Status::error(
            joins + "; of the schedules, gpipe runs all forwards before the "
                    "first gradient: use --schedule=gpipe, or one microbatch"));
      return;
    }
    options.schedules = {"gpipe"};
  } else {
    options.schedules = schedulesOf(policy, quick, chunks);
  }
  if (begins) {
    Result<std::vector<int>> cuts = namedCuts(
        *like.model, like.shape.stages * chunksOn(like.shape.stages, options),
        *begins);
    if (!cuts.ok()) {
      problems.merge(cuts.status());
      return;
    }
    options.begin = *cuts;
  }
  Status before = problems;
  options.cut = quick ? CutRule::MinMax : CutRule::Time;
  options.steady = steady;
  options.fitting = fitting;
  std::vector<Cutter> cutters = policy.cutters;
  if (cutters.empty())
    cutters.push_back(nullptr); // a search
  std::vector<PipelinePlan> first;
  bool leavesOut = false; // what might recompute
  // Where nothing needs recomputation, other choices only cost time; where all
  // of it is too little, while other plans fit, too.
  const auto onlyCostTime = [&] {
    if (policy.recompute[0] != "auto" || leavesOut)
      return false;
    const auto none = [&](auto holds) {
      return std::none_of(first.begin(), first.end(), holds);
    };
    const bool othersFit = limit > 0 && std::isfinite(limit);
    return none([](const PipelinePlan &one) { return one.recomputes(); }) ||
           (othersFit &&
            none([](const PipelinePlan &one) { return one.cost.fits(); }));
  };
  for (size_t i = 0; i < policy.recompute.size(); ++i) {
    if (i > 0 && (!train || onlyCostTime()))
      break;
    options.recompute = policy.recompute[i];
    for (const Cutter &cutter : cutters) {
      options.cutter = cutter;
      options.limit = limitNow();
      std::vector<PipelinePlan> found = plan(like, options);
      leavesOut |= options.limit > 0 && found.size() < options.schedules.size();
      if (i == 0)
        first.insert(first.end(), found.begin(), found.end());
    }
  }
  for (const PipelinePlan &one : first)
    for (const std::string &recompute : policy.otherRecompute)
      if (train && !quick && one.recomputes()) {
        options.recompute = recompute;
        options.schedules.clear();
        if (policy.concrete.empty())
          options.schedules = {one.schedule.name};
        options.begin = one.begin;
        options.limit = limitNow();
        plan(like, options);
      }
  // Parts that nobody asked for need not be possible.
  if (other)
    problems = before;
}

void CandidateSet::complete(TriedPlan &attempt) {
  PipelineOptions options = pipelineOptions(policy, attempt.recompute);
  problems.merge(
      completePlan(*attempt.model, attempt.shape, options, attempt.plan));
}

void CandidateSet::completeBest(size_t most) {
  // A price by all microbatches may make way for another finalist.
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<const TriedPlan *> found = finalists(most);
    for (TriedPlan &attempt : all)
      if (attempt.plan.schedule.order.empty() &&
          std::find(found.begin(), found.end(), &attempt) != found.end()) {
        complete(attempt);
        changed |= !attempt.plan.schedule.order.empty();
      }
  }
}

void CandidateSet::improve() {
  if (!policy.lists || quick)
    return;
  std::vector<size_t> order(all.size());
  for (size_t i = 0; i < order.size(); ++i)
    order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return exactly(all[a]) < exactly(all[b]);
  });
  std::set<std::pair<Techniques, std::vector<int>>> seen;
  std::map<int, int> improved; // by chunks
  for (size_t i : order) {
    const TriedPlan *leader = best();
    if (!all[i].model->problem.joins.empty())
      continue; // lists do not wait for all forwards
    if (limit > 0 && leastSeconds(all[i]) > limit)
      continue;
    const int chunks = all[i].plan.schedule.chunks;
    int &made = improved[chunks];
    if (made == (chunks == policy.chunks ? kImproved : kImprovedChunks))
      continue;
    if ((made > 0 || chunks != policy.chunks) && leader->plan.cost.fits() &&
        leastSeconds(all[i]) >= leader->plan.cost.seconds)
      continue;
    std::vector<int> key = all[i].plan.begin;
    for (const Marks &marks : all[i].plan.marks)
      key.insert(key.end(), {marks.level, marks.until});
    if (!seen.insert({all[i].techniques, std::move(key)}).second)
      continue;
    complete(all[i]);
    TriedPlan attempt = all[i];
    bool found = improveSchedule(
        *attempt.model, attempt.shape, attempt.plan,
        made++ == 0 && chunks == policy.chunks ? kFirstEffort : kEffort,
        &attempt.considered);
    all[i].considered = attempt.considered;
    if (found)
      all.push_back(std::move(attempt));
  }
}

std::string Techniques::str() const {
  std::string text;
  if (overlap > 0)
    text += fmt::format(", overlap {}", overlap);
  if (zero > 0)
    text += fmt::format(", zero {}", zero);
  if (sequence)
    text += ", sequence";
  if (context)
    text += ", context";
  if (mixed > 0)
    text += ", mixed layouts";
  return text;
}

std::string CandidateSet::str(const TriedPlan &chosen) const {
  // The best of each recomputation, techniques and number of chunks.
  std::map<std::tuple<std::string, Techniques, int>, const TriedPlan *> kinds;
  for (const TriedPlan &attempt : all) {
    const TriedPlan *&of = kinds[{attempt.recompute, attempt.techniques,
                                  attempt.plan.schedule.chunks}];
    if (!of || &attempt == &chosen || (of != &chosen && better(attempt, *of)))
      of = &attempt;
  }
  if (kinds.size() == 1)
    return chosen.considered;
  std::vector<const TriedPlan *> sorted;
  for (const auto &[kind, attempt] : kinds)
    sorted.push_back(attempt);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TriedPlan *a, const TriedPlan *b) {
                     return exactly(*a) < exactly(*b);
                   });
  auto it = std::find(sorted.begin(), sorted.end(), &chosen);
  std::rotate(sorted.begin(), it, it + 1);
  std::string text;
  for (const TriedPlan *attempt : sorted) {
    const PipelineCost &cost = attempt->plan.cost;
    text += fmt::format(
        "tried recompute {}{}{}: {:.4g} s with {}", attempt->recompute,
        attempt->techniques.str(),
        attempt->plan.schedule.chunks > 1
            ? fmt::format(", {} chunks", attempt->plan.schedule.chunks)
            : "",
        cost.seconds, attempt->plan.schedule.name);
    if (!cost.fits())
      text += fmt::format("; {:.1f} MiB too much", cost.excessBytes / 1048576);
    text += attempt == sorted.front() ? "; chosen\n" : "\n";
  }
  return text + chosen.considered;
}

} // namespace merak::planning
