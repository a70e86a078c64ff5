// Moves, swaps and other groupings from several starts. A step that makes the
// relaxed time longer is taken too, by less and less (threshold accepting,
// Dueck and Scheuer, 1990: without an exponential function, whose last bit
// differs between machines).
#include "passes/Stragglers/Division.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace merak::stragglers {

namespace {

constexpr double kFirstThreshold = 0.02;  // of the relaxed time
constexpr double kTiledThreshold = 0.002; // after a start that is good already
constexpr double kUnfit = 1e18;
// Divisions this much above the best relaxed time are scored exactly.
constexpr double kScored = 0.01;

// What a pipeline adds to the relaxed time.
struct Value {
  double speed = 0;   // 1 / slowest stage
  double filling = 0; // all stages / slowest stage
  double missing = 0; // layers
  double stages = 0;  // and microbatches at least
};

class Search {
public:
  Search(const DivisionProblem &problem, const SearchOptions &options,
         int start)
      : problem(problem), options(options), table(problem), found(options),
        random(options.seed * 1000003 + uint64_t(start)), start(start) {
    for (size_t n = 0; n < problem.groupings.size(); ++n)
      if (problem.groupings[n].size() > 1)
        regroupable.push_back(n);
  }

  FoundFront run() {
    begin();
    consider();
    Division best = division;
    double bestTime = time;
    const int64_t steps = stepCount();
    const double first = tilePipelines() ? kTiledThreshold : kFirstThreshold;
    const size_t known = table.size();
    bool isLate = false; // the second half is near the best
    for (int64_t i = 0, at = 0; at < steps; ++i) {
      threshold = first * (1 - double(at) / double(steps));
      step();
      at = i + kStepsOfSolving * int64_t(table.size() - known);
      if (time < bestTime) {
        bestTime = time;
        best = division;
      } else if (!isLate && at > steps / 2) {
        isLate = true;
        division = best;
        values = valuesOf(division);
        time = bestTime;
      }
    }
    return std::move(found);
  }

private:
  using Pipelines = std::vector<Members>;

  size_t below(size_t limit) { return size_t(random() % limit); }

  // With one class of groups in one pipeline there is nothing to search.
  int64_t stepCount() const {
    return regroupable.empty() && problem.classes.size() < 2 &&
                   problem.pipelines < 2
               ? 0
               : options.steps;
  }

  // ---------------------------------------------------------------- values

  Value valueOf(const Members &members) {
    if (members.empty())
      return {0, 0, double(problem.problem.layers), 0};
    const SolvedPipeline &solved = table.of(members);
    if (!solved.fits())
      return {0, 0, double(solved.missing), 0};
    const double slowest = double(solved.time.slowest);
    return {1 / slowest, double(solved.time.all) / slowest, 0,
            double(solved.groups.size())};
  }
  std::vector<Value> valuesOf(const Division &d) {
    std::vector<Value> result;
    for (const Members &members : d.pipelines)
      result.push_back(valueOf(members));
    return result;
  }

  // The time if microbatches could be divided; what does not fit is worse than
  // whatever does, and the worse the more layers or microbatches are missing.
  double timeOf(const std::vector<Value> &all) const {
    const bool steady = options.objective == Objective::Steady;
    const double m = double(problem.microbatches);
    double speed = 0, filling = 0, missing = 0, stages = 0, longest = 0;
    for (const Value &value : all) {
      speed += value.speed;
      filling += value.filling;
      missing += value.missing;
      stages += value.stages;
      // No pipeline has fewer microbatches than stages.
      if (value.missing == 0)
        longest =
            std::max(longest, (steady ? value.stages
                                      : value.stages - 1 + value.filling) /
                                  value.speed);
    }
    missing += std::max(0.0, stages - m);
    if (missing > 0)
      return kUnfit * (1 + missing);
    const double shared = steady ? m : m - double(all.size()) + filling;
    return std::max(longest, shared / speed);
  }

  // Scores the division exactly if it may be among the best.
  void consider() {
    leastTime = std::min(leastTime, time);
    if (time > leastTime * (1 + kScored) || time >= kUnfit)
      return;
    Score score;
    if (scoreDivision(problem, table, division, options.objective, score))
      found.add(score, division);
  }

  // ---------------------------------------------------------------- starts

  // Of the tiles of this start; 0: it has none.
  int64_t tilePipelines() const {
    const int64_t pipelines = start % 3 == 2 ? start % 2 ? 4 : 2 : 0;
    return problem.pipelines > pipelines ? pipelines : 0;
  }

  // Starts differ in the groupings and in how groups are spread.
  void begin() {
    if (tilePipelines()) {
      division = divideTiles(problem, options, tilePipelines());
      values = valuesOf(division);
      time = timeOf(values);
      return;
    }
    division.pipelines.resize(size_t(problem.pipelines));
    for (const auto &groupings : problem.groupings)
      division.groupingOf.push_back(
          start % 3 == 2 ? int(below(groupings.size())) : 0);
    Members groups;
    for (size_t n = 0; n < problem.groupings.size(); ++n)
      for (int group : problem.groupings[n][size_t(division.groupingOf[n])])
        groups.push_back(group);
    std::sort(groups.begin(), groups.end());
    if (start % 2 == 0)
      spread(groups);
    else
      concentrate(groups);
    values = valuesOf(division);
    time = timeOf(values);
  }

  double speedOf(int group) const {
    return 1 / double(problem.classes[size_t(group)].rate);
  }

  // Each group, the fastest first, to the slowest pipeline (Graham, 1969).
  void spread(const Members &groups) {
    std::vector<double> speeds(division.pipelines.size(), 0);
    for (int group : groups) {
      size_t to = speeds.size();
      for (size_t i = 0; i < speeds.size(); ++i)
        if (division.pipelines[i].size() < problem.longest &&
            (to == speeds.size() || speeds[i] < speeds[to]))
          to = i;
      if (to == speeds.size()) {
        insert(division.standby, group);
        continue;
      }
      insert(division.pipelines[to], group);
      speeds[to] += speedOf(group);
    }
  }

  // Pipelines of equal speed one behind the other, so that few have slow
  // groups.
  void concentrate(const Members &groups) {
    double rest = 0;
    for (int group : groups)
      rest += speedOf(group);
    size_t next = 0;
    for (size_t i = 0; i < division.pipelines.size(); ++i) {
      const size_t after = division.pipelines.size() - i - 1;
      const double target = rest / double(after + 1);
      Members &members = division.pipelines[i];
      double speed = 0;
      while (next + after < groups.size() && members.size() < problem.longest &&
             (members.empty() || speed + speedOf(groups[next]) / 2 < target)) {
        speed += speedOf(groups[next]);
        insert(members, groups[next++]);
      }
      rest -= speed;
    }
    for (; next < groups.size(); ++next)
      insert(division.standby, groups[next]);
  }

  // ----------------------------------------------------------------- steps

  static void insert(Members &members, int group) {
    members.insert(std::upper_bound(members.begin(), members.end(), group),
                   group);
  }
  static bool remove(Members &members, int group) {
    const auto at = std::lower_bound(members.begin(), members.end(), group);
    if (at == members.end() || *at != group)
      return false;
    members.erase(at);
    return true;
  }

  // The last place stands for standby.
  size_t places() const { return division.pipelines.size() + 1; }
  Members &at(size_t place) {
    return place < division.pipelines.size() ? division.pipelines[place]
                                             : division.standby;
  }

  void step() {
    const size_t kind = below(100);
    if (!regroupable.empty() && kind < 15)
      regroup();
    else
      exchange(kind < 60);
  }

  // A group of a random class, so that rare classes move as often as others,
  // to another place, or against a group from there.
  void exchange(bool swaps) {
    const int group = int(below(problem.classes.size()));
    const size_t offset = below(places());
    size_t from = places();
    for (size_t i = 0; i < places() && from == places(); ++i) {
      const size_t place = (offset + i) % places();
      if (std::binary_search(at(place).begin(), at(place).end(), group))
        from = place;
    }
    const size_t to = below(places());
    if (from == places() || to == from || (swaps && at(to).empty()))
      return;
    const int other = swaps ? at(to)[below(at(to).size())] : -1;
    if (other == group ||
        (!swaps && to < places() - 1 && at(to).size() >= problem.longest))
      return;
    const auto apply = [&](int out, int in) {
      remove(at(from), out);
      insert(at(to), out);
      if (in >= 0) {
        remove(at(to), in);
        insert(at(from), in);
      }
    };
    apply(group, other);
    if (!accept({from, to})) {
      remove(at(to), group);
      insert(at(from), group);
      if (other >= 0) {
        remove(at(from), other);
        insert(at(to), other);
      }
    }
  }

  // Keeps the change of these places if the time allows it.
  bool accept(std::initializer_list<size_t> changed) {
    std::vector<std::pair<size_t, Value>> old;
    for (size_t place : changed)
      if (place < values.size()) {
        old.emplace_back(place, values[place]);
        values[place] = valueOf(division.pipelines[place]);
      }
    const double now = timeOf(values);
    if (now <= time * (1 + threshold)) {
      time = now;
      consider();
      return true;
    }
    for (const auto &[place, value] : old)
      values[place] = value;
    return false;
  }

  // Another grouping of a node: its groups leave their places, the new ones go
  // where the time is least.
  void regroup() {
    const size_t node = regroupable[below(regroupable.size())];
    const auto &groupings = problem.groupings[node];
    const int grouping = int(below(groupings.size()));
    const int before = division.groupingOf[node];
    if (grouping == before)
      return;
    const Division old = division;
    const std::vector<Value> oldValues = values;
    for (int group : groupings[size_t(before)])
      takeOut(group);
    division.groupingOf[node] = grouping;
    for (int group : groupings[size_t(grouping)])
      place(group);
    const double now = timeOf(values);
    if (now <= time * (1 + threshold)) {
      time = now;
      consider();
      return;
    }
    division = old;
    values = oldValues;
  }

  void takeOut(int group) {
    if (remove(division.standby, group))
      return;
    const size_t offset = below(division.pipelines.size());
    for (size_t i = 0; i < division.pipelines.size(); ++i) {
      const size_t place = (offset + i) % division.pipelines.size();
      if (remove(division.pipelines[place], group)) {
        values[place] = valueOf(division.pipelines[place]);
        return;
      }
    }
  }

  void place(int group) {
    // Of many pipelines some are looked at.
    constexpr size_t kMostLooked = 8;
    const size_t count = division.pipelines.size();
    const size_t offset = below(count);
    size_t best = count;
    Value bestValue;
    double bestTime = 0;
    for (size_t i = 0; i < std::min(count, kMostLooked); ++i) {
      const size_t place = (offset + i) % count;
      Members &members = division.pipelines[place];
      if (members.size() >= problem.longest)
        continue;
      insert(members, group);
      const Value old = std::exchange(values[place], valueOf(members));
      const double now = timeOf(values);
      if (best == count || now < bestTime) {
        best = place;
        bestTime = now;
        bestValue = values[place];
      }
      values[place] = old;
      remove(members, group);
    }
    if (best == count)
      return insert(division.standby, group);
    insert(division.pipelines[best], group);
    values[best] = bestValue;
  }

  const DivisionProblem &problem;
  const SearchOptions &options;
  PipelineTable table;
  FoundFront found;
  std::mt19937_64 random;
  const int start;
  std::vector<size_t> regroupable; // nodes with several groupings
  Division division;
  std::vector<Value> values; // by pipeline
  double time = 0;           // relaxed
  double leastTime = 1e300;
  double threshold = 0;
};

} // namespace

FoundFront searchFrom(const DivisionProblem &problem,
                      const SearchOptions &options, int start) {
  return Search(problem, options, start).run();
}

} // namespace merak::stragglers
