#include "passes/Stragglers/Division.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

namespace merak::stragglers {

DivisionProblem::DivisionProblem(const Problem &problem,
                                 const std::vector<NodeGroupings> &nodes,
                                 int64_t pipelines)
    : problem(problem), pipelines(pipelines),
      microbatches(problem.microbatches) {
  std::set<GroupClass> all;
  for (const NodeGroupings &node : nodes)
    for (const Grouping &grouping : node.groupings)
      all.insert(grouping.classes.begin(), grouping.classes.end());
  classes.assign(all.begin(), all.end());
  for (const NodeGroupings &node : nodes) {
    groupings.emplace_back();
    for (const Grouping &grouping : node.groupings) {
      std::vector<int> numbers;
      for (const GroupClass &group : grouping.classes)
        numbers.push_back(
            int(std::lower_bound(classes.begin(), classes.end(), group) -
                classes.begin()));
      std::sort(numbers.begin(), numbers.end());
      groupings.back().push_back(std::move(numbers));
    }
  }
  longest = size_t(std::min(mostStages(problem), problem.microbatches));
}

size_t MembersHash::operator()(const Members &members) const {
  uint64_t hash = 0xcbf29ce484222325; // FNV-1a
  for (int member : members)
    hash = (hash ^ uint64_t(member)) * 0x100000001b3;
  return size_t(hash);
}

const SolvedPipeline &PipelineTable::of(const Members &members) {
  auto [at, isNew] = solved.try_emplace(members);
  if (isNew) {
    std::vector<GroupClass> groups;
    for (int member : members)
      groups.push_back(problem.classes[size_t(member)]);
    at->second = solveInAnyOrder(problem.problem, groups);
  }
  return at->second;
}

bool FoundFront::wants(const Score &score) const {
  return std::none_of(front.begin(), front.end(), [&](const Found &f) {
    return f.score.steady <= score.steady && f.score.filled <= score.filled;
  });
}

void FoundFront::add(const Score &score, const Division &division) {
  if (!wants(score))
    return;
  std::erase_if(front, [&](const Found &f) {
    return score.steady <= f.score.steady && score.filled <= f.score.filled;
  });
  const auto at = std::find_if(front.begin(), front.end(), [&](const Found &f) {
    return f.score.steady > score.steady;
  });
  front.insert(at, {score, division});
}

void FoundFront::merge(const FoundFront &other) {
  for (const Found &f : other.front)
    add(f.score, f.division);
}

const Found &FoundFront::best(int64_t limit) const {
  if (options.objective == Objective::Filled)
    return front.back();
  const int64_t least = front.front().score.steady;
  const int64_t most = std::min(limit, least + least / kOne * options.ranking);
  size_t at = 0;
  while (at + 1 < front.size() && front[at + 1].score.steady <= most)
    ++at;
  return front[at];
}

int64_t FoundFront::bestTime() const {
  if (front.empty())
    return kFailed;
  return options.objective == Objective::Filled ? front.back().score.filled
                                                : front.front().score.steady;
}

int64_t FoundFront::leastSteady() const {
  return front.empty() ? kFailed : front.front().score.steady;
}

std::optional<std::vector<int64_t>>
scoreDivision(const DivisionProblem &problem, PipelineTable &table,
              const Division &division, Objective objective, Score &score) {
  std::vector<PipelineWork> work;
  for (const Members &members : division.pipelines) {
    if (members.empty())
      return std::nullopt;
    const SolvedPipeline &solved = table.of(members);
    if (!solved.fits())
      return std::nullopt;
    work.push_back({solved.time, int64_t(solved.groups.size())});
  }
  auto shared = shareMicrobatches(work, problem.microbatches, objective);
  if (!shared)
    return shared;
  score = {0, 0};
  for (size_t i = 0; i < work.size(); ++i) {
    const auto &[slowest, all] = work[i].time;
    const int64_t m = (*shared)[i];
    score.steady = std::max(score.steady, m * slowest);
    score.filled = std::max(score.filled, (m - 1) * slowest + all);
  }
  return shared;
}

DivisionResult divide(const DivisionProblem &problem,
                      const SearchOptions &options) {
  std::vector<FoundFront> fronts(size_t(options.starts), FoundFront(options));
  std::atomic<int> next = 0;
  const auto work = [&] {
    for (int start = next++; start < options.starts; start = next++)
      fronts[size_t(start)] = searchFrom(problem, options, start);
  };
  const int wanted = options.threads ? options.threads
                                     : int(std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (int i = 1; i < std::min(wanted, options.starts); ++i)
    threads.emplace_back(work);
  work();
  for (std::thread &thread : threads)
    thread.join();
  DivisionResult result{FoundFront(options), false};
  for (const FoundFront &front : fronts)
    result.found.merge(front);
  result.optimal = enumerate(problem, options, result.found);
  return result;
}

namespace {

// The groups of each class, in the order of the nodes.
std::vector<std::vector<std::vector<int>>>
groupsByClass(const DivisionProblem &problem,
              const std::vector<NodeGroupings> &nodes,
              const Division &division) {
  std::vector<std::vector<std::vector<int>>> groups(problem.classes.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Grouping &grouping =
        nodes[n].groupings[size_t(division.groupingOf[n])];
    for (size_t g = 0; g < grouping.groups.size(); ++g) {
      const auto at = std::lower_bound(
          problem.classes.begin(), problem.classes.end(), grouping.classes[g]);
      groups[size_t(at - problem.classes.begin())].push_back(
          grouping.groups[g]);
    }
  }
  return groups;
}

} // namespace

Plan planOf(const DivisionProblem &problem,
            const std::vector<NodeGroupings> &nodes, const Division &division,
            Objective objective, std::vector<std::vector<int>> &spare) {
  PipelineTable table(problem);
  Score score;
  const auto microbatches =
      scoreDivision(problem, table, division, objective, score);
  const auto groups = groupsByClass(problem, nodes, division);
  std::vector<size_t> next(problem.classes.size(), 0);
  Plan plan;
  for (size_t i = 0; i < division.pipelines.size(); ++i) {
    const Members &members = division.pipelines[i];
    const SolvedPipeline &solved = table.of(members);
    Pipeline pipeline{{}, (*microbatches)[i]};
    for (size_t j = 0; j < solved.groups.size(); ++j) {
      const size_t c = size_t(members[size_t(solved.groups[j])]);
      pipeline.stages.push_back({groups[c][next[c]++], solved.layers[j]});
    }
    plan.pipelines.push_back(std::move(pipeline));
  }
  spare.clear();
  for (size_t c = 0; c < groups.size(); ++c)
    spare.insert(spare.end(), groups[c].begin() + long(next[c]),
                 groups[c].end());
  return plan;
}

} // namespace merak::stragglers
