#include "passes/Planning/TensorParallel.h"

#include "passes/Planning/PartitionEngine.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

namespace merak::planning {

namespace {

// Evaluations are bounded by ops visited, so that a large model with many
// different layers still compiles in seconds.
constexpr int64_t kOpVisitBudget = 1'500'000;

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15ull + b + 0x7F4A7C15ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

const char *phaseStr(Phase phase) {
  return phase == Phase::Forward    ? "forward"
         : phase == Phase::Backward ? "backward"
                                    : "update";
}

// True if `a` is better than `b`; the order of the fields is the objective.
bool better(const PartitionCost &a, int splitA, const PartitionCost &b,
            int splitB) {
  auto differs = [](double x, double y) {
    return std::abs(x - y) > 1e-9 * std::max(std::abs(x), std::abs(y));
  };
  if (a.feasible != b.feasible)
    return a.feasible;
  if (differs(a.contractionFlops, b.contractionFlops))
    return a.contractionFlops < b.contractionFlops;
  if (differs(a.communicatedBytes, b.communicatedBytes))
    return a.communicatedBytes < b.communicatedBytes;
  if (differs(a.parameterBytes, b.parameterBytes))
    return a.parameterBytes < b.parameterBytes;
  return splitA < splitB;
}

class Searcher {
public:
  Searcher(const Graph &graph, const Classes &classes, const Assignment &base,
           const SearchOptions &options)
      : graph(graph), classes(classes), options(options), base(base),
        engine(graph, classes) {
    this->base.addAxis({options.axis, options.size});
  }

  Result<SearchResult> run() {
    findWeights();
    readPins();
    if (!status.ok())
      return status;
    pinnedSplit.insert(options.only.begin(), options.only.end());
    if (options.only.empty())
      findGroups();
    chosen.assign(groups.size(), false);
    report.before = evaluate(chosen);
    if (options.size > 1)
      choose();
    return finish();
  }

private:
  using Choice = std::vector<bool>;

  const ClassAnchor &anchor(int cls) {
    if (anchors.empty())
      anchors = anchorsOf(graph, classes);
    return anchors[size_t(cls)];
  }

  // Tensors that are weights, or made of weights only.
  void findWeights() {
    weight.assign(graph.tensors.size(), 0);
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      weight[t] = graph.tensors[t].parameter;
    for (const GraphOp &op : graph.ops) {
      bool only = !op.operands.empty(), any = false;
      for (int id : op.operands) {
        only &= weight[id] || graph.tensors[id].constant;
        any |= bool(weight[id]);
      }
      for (int id : op.results)
        weight[id] |= only && any;
    }
  }

  void readPins() {
    auto problem = [&](std::string text) {
      status.merge(Status::error(std::move(text)));
    };
    for (const ParameterPin &pin : options.pins) {
      int id = -1;
      for (size_t t = 0; t < graph.tensors.size(); ++t)
        if (graph.tensors[t].parameter &&
            graph.tensors[t].name == pin.parameter)
          id = int(t);
      if (id < 0) {
        problem(
            fmt::format("there is no parameter '{}' to split", pin.parameter));
        continue;
      }
      const TensorClasses &atoms = classes.tensors[id];
      if (pin.dim < 0 || pin.dim + 1 >= int(atoms.dimBegin.size())) {
        problem(fmt::format("parameter '{}' has {} dimensions, not a dimension "
                            "{}",
                            pin.parameter, atoms.dimBegin.size() - 1, pin.dim));
        continue;
      }
      if (!pin.axis.empty() && pin.axis != options.axis)
        continue;
      bool done = false;
      for (int i = atoms.dimBegin[pin.dim]; i < atoms.dimBegin[pin.dim + 1];
           ++i) {
        if (pin.axis.empty())
          pinnedWhole.insert(atoms.atoms[i]);
        else if (!done && divides(atoms.atoms[i])) {
          pinnedSplit.insert(atoms.atoms[i]);
          done = true;
        }
      }
      if (!pin.axis.empty() && !done && options.size > 1)
        problem(fmt::format("dimension {} of parameter '{}' ({}) has no factor "
                            "that {}={} divides",
                            pin.dim, pin.parameter, classes.dimStr(id, pin.dim),
                            options.axis, options.size));
    }
    for (int cls : pinnedSplit)
      if (pinnedWhole.count(cls)) {
        const ClassAnchor at = anchor(cls);
        problem(fmt::format("dimension {} of '{}' is pinned both split and "
                            "whole; the two pinned parameters share it",
                            at.dim, at.tensor));
      }
  }

  bool divides(int cls) const {
    const ClassInfo &info = classes.classes[cls];
    return info.splittable && !base.axes.count(cls) &&
           info.size % options.size == 0;
  }

  // Classes of weight dimensions that enter a contraction or a Decompose
  // factor, unless a contraction must see them whole. Second: those that some
  // other op must see whole, where they are gathered each time.
  struct Candidates {
    std::set<int> all, gathered;
  };
  Candidates findCandidates() const {
    Candidates found;
    std::set<int> whole;
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const GraphOp &op = graph.ops[o];
      const OpClasses &opClasses = classes.ops[o];
      for (const OpSlot &slot : opClasses.slots)
        if (slot.kind == FactorKind::Whole)
          (op.contraction ? whole : found.gathered).insert(slot.cls);
      for (size_t i = 0; i < op.operands.size(); ++i)
        for (int slot : opClasses.operands[i])
          if (slot >= 0 && weight[op.operands[i]] &&
              (op.contraction ||
               opClasses.slots[slot].kind == FactorKind::Decompose))
            found.all.insert(opClasses.slots[slot].cls);
    }
    for (int cls : whole)
      found.all.erase(cls);
    return found;
  }

  // What surrounds a class: equal for equal layers.
  std::vector<uint64_t> signatures() const {
    std::vector<uint64_t> out(classes.classes.size(), 0);
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const GraphOp &op = graph.ops[o];
      uint64_t hash = mix(uint64_t(op.phase), op.contraction);
      for (const RuleFactor &factor : op.rule.factors)
        hash = mix(mix(hash, uint64_t(factor.size)), uint64_t(factor.kind));
      auto addTensors = [&](const std::vector<RuleTensor> &tensors,
                            const std::vector<int> &ids) {
        for (size_t i = 0; i < tensors.size(); ++i) {
          hash = mix(hash, 0x100 + graph.tensors[ids[i]].parameter);
          for (const std::vector<int> &dim : tensors[i]) {
            hash = mix(hash, 0x200);
            for (int factor : dim)
              hash = mix(hash, uint64_t(factor));
          }
        }
      };
      addTensors(op.rule.operands, op.operands);
      addTensors(op.rule.results, op.results);
      const OpClasses &opClasses = classes.ops[o];
      for (size_t s = 0; s < opClasses.slots.size(); ++s)
        out[opClasses.slots[s].cls] += mix(hash, s); // order does not matter
    }
    return out;
  }

  void findGroups() {
    Candidates candidates = findCandidates();
    std::vector<uint64_t> signature = signatures();
    std::map<std::pair<int64_t, uint64_t>, size_t> index;
    for (int cls : candidates.all) {
      if (pinnedSplit.count(cls) || pinnedWhole.count(cls) || !divides(cls))
        continue;
      int64_t size = classes.classes[cls].size;
      auto [it, isNew] =
          index.try_emplace({size, signature[cls]}, groups.size());
      if (isNew)
        groups.push_back({{}, size, anchor(cls)});
      groups[it->second].classes.push_back(cls);
      groups[it->second].gathered |= candidates.gathered.count(cls) > 0;
    }
  }

  Assignment assignmentOf(const Choice &choice) const {
    Assignment assignment = base;
    auto split = [&](int cls) {
      std::vector<std::string> &axes = assignment.axes[cls];
      if (std::find(axes.begin(), axes.end(), options.axis) == axes.end())
        axes.push_back(options.axis);
    };
    if (options.size > 1) {
      for (int cls : pinnedSplit)
        split(cls);
      for (size_t g = 0; g < groups.size(); ++g)
        if (choice[g])
          for (int cls : groups[g].classes)
            split(cls);
    }
    return assignment;
  }

  PartitionCost evaluate(const Choice &choice) {
    auto it = known.find(choice);
    if (it != known.end())
      return it->second;
    engine.run(assignmentOf(choice), /*wantErrors=*/false);
    ++report.evaluations;
    known[choice] = engine.cost;
    return engine.cost;
  }

  static int count(const Choice &choice) {
    return int(std::count(choice.begin(), choice.end(), true));
  }

  bool improve(Choice &best, const Choice &other) {
    if (!better(evaluate(other), count(other), evaluate(best), count(best)))
      return false;
    best = other;
    return true;
  }

  bool withinBudget() const {
    return report.evaluations * int64_t(graph.ops.size()) < kOpVisitBudget;
  }

  // First without the classes that are gathered somewhere; with them only if
  // more than half of the contraction flops would stay undivided.
  void choose() {
    std::vector<int> first, all;
    for (size_t g = 0; g < groups.size(); ++g) {
      all.push_back(int(g));
      if (!groups[g].gathered)
        first.push_back(int(g));
    }
    chooseAmong(first);
    double total = report.before.contractionFlops;
    double divided = total - evaluate(chosen).contractionFlops;
    double possible = total - total / double(options.size);
    if (divided < possible / 2 && first.size() < all.size())
      chooseAmong(all);
  }

  void chooseAmong(const std::vector<int> &free) {
    size_t n = free.size();
    if (int(n) <= options.bruteForceGroups) {
      for (int bits = 0; bits < 1 << n; ++bits) {
        Choice choice(groups.size());
        for (size_t i = 0; i < n; ++i)
          choice[free[i]] = bits >> i & 1;
        improve(chosen, choice);
      }
      return;
    }
    for (bool start : {false, true}) {
      Choice local(groups.size());
      for (int g : free)
        local[g] = start;
      descend(local, free);
      improve(chosen, local);
    }
  }

  // The best single flip until none helps, then pairs of flips.
  void descend(Choice &local, const std::vector<int> &free) {
    bool changed = true;
    while (changed && withinBudget()) {
      Choice best = local;
      for (int g : free) {
        Choice flipped = local;
        flipped[g] = !flipped[g];
        improve(best, flipped);
      }
      for (size_t i = 0; best == local && i < free.size(); ++i)
        for (size_t j = i + 1; j < free.size() && withinBudget(); ++j) {
          Choice flipped = local;
          flipped[free[i]] = !flipped[free[i]];
          flipped[free[j]] = !flipped[free[j]];
          if (improve(best, flipped))
            break;
        }
      changed = best != local;
      local = best;
    }
  }

  Result<SearchResult> finish() {
    SearchResult result;
    result.assignment = assignmentOf(chosen);
    engine.run(result.assignment, /*wantErrors=*/false);
    report.after = engine.cost;
    for (size_t g = 0; g < groups.size(); ++g)
      groups[g].chosen = chosen[g];
    for (int cls : pinnedSplit)
      groups.push_back(
          {{cls}, classes.classes[cls].size, anchor(cls), true, true});
    report.groups = std::move(groups);
    if (options.size > 1 && engine.cost.feasible) {
      sumCollectives();
      explainReplicated();
    }
    result.report = std::move(report);
    return result;
  }

  AxisMask axisBit() const {
    for (int a = 0; a < engine.axisCount(); ++a)
      if (engine.axes()[a].name == options.axis)
        return AxisMask(1) << a;
    return 0;
  }

  void sumCollectives() {
    AxisMask bit = axisBit();
    auto add = [&](Phase phase, ConversionKind kind, int64_t times,
                   double bytes) {
      CollectiveTotal &total = report.collectives[{phaseStr(phase), str(kind)}];
      ++total.count;
      total.bytes += bytes * double(times);
    };
    for (const auto &tensor : engine.tensors)
      for (const auto &variant : tensor.variants)
        if (variant.parent >= 0 && variant.axes & bit && variant.bytes > 0)
          add(variant.phase, variant.kind, variant.times, variant.bytes);
    for (size_t o = 0; o < graph.ops.size(); ++o)
      for (size_t r = 0; r < graph.ops[o].results.size(); ++r) {
        const PartitionEngine::OpState &state = engine.ops[o];
        Phase phase = graph.ops[o].phase;
        int64_t times = phase == Phase::Update ? 1 : engine.microbatchCount();
        int id = graph.ops[o].results[r];
        if (state.maxAxes[r] & bit)
          add(phase, ConversionKind::AllReduceMax, times,
              engine.bytesAfterOp(id, state.maxAxes[r]));
        if (state.expected[r].first & bit)
          for (int i = 0; i < state.expected[r].second; ++i)
            add(phase, ConversionKind::AllReduceSum, times,
                engine.bytesAfterOp(id, state.expected[r].first));
      }
  }

  void explainReplicated() {
    AxisMask bit = axisBit();
    std::set<int> candidates = findCandidates().all;
    std::set<std::string> told; // an op and its gradients have one name
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      if (!graph.ops[o].contraction)
        continue;
      AxisMask kept = 0;
      for (AxisMask mask : engine.ops[o].kept)
        kept |= mask;
      if (kept & bit)
        continue;
      std::string reason;
      for (const OpSlot &slot : classes.ops[o].slots) {
        const ClassInfo &info = classes.classes[slot.cls];
        if (!info.splittable)
          reason = info.reason;
        else if (slot.kind != FactorKind::Whole && candidates.count(slot.cls) &&
                 info.size % options.size != 0) {
          const ClassAnchor at = anchor(slot.cls);
          reason = fmt::format("{}={} does not divide {}, a factor of "
                               "dimension {} of '{}'",
                               options.axis, options.size, info.size, at.dim,
                               at.tensor);
        } else {
          continue;
        }
        break;
      }
      if (reason.empty())
        reason = "splitting it would cost more than it divides";
      std::string line = fmt::format("op '{}' is replicated over {}: {}",
                                     graph.ops[o].name, options.axis, reason);
      if (told.insert(line).second)
        report.replicated.push_back(std::move(line));
    }
  }

  const Graph &graph;
  const Classes &classes;
  const SearchOptions &options;
  Assignment base;
  PartitionEngine engine;
  std::vector<ClassAnchor> anchors;
  std::vector<char> weight;
  std::set<int> pinnedSplit, pinnedWhole;
  std::vector<CandidateGroup> groups;
  Choice chosen;
  std::map<Choice, PartitionCost> known;
  SearchReport report;
  Status status;
};

} // namespace

Result<SearchResult> searchTensorParallel(const Graph &graph,
                                          const Classes &classes,
                                          const Assignment &base,
                                          const SearchOptions &options) {
  return Searcher(graph, classes, base, options).run();
}

std::string SearchReport::str() const {
  std::string text = fmt::format("{} candidate groups, {} evaluations\n",
                                 groups.size(), evaluations);
  for (const CandidateGroup &group : groups)
    text += fmt::format("  {} {} x {} (as dimension {} of '{}'){}\n",
                        group.chosen ? "split" : "replicated",
                        group.classes.size(), group.size, group.example.dim,
                        group.example.tensor, group.pinned ? " pinned" : "");
  auto row = [&](const char *name, double a, double b) {
    text += fmt::format("  {:<24}{:>14.4g} -> {:.4g}\n", name, a, b);
  };
  row("contraction flops", before.contractionFlops, after.contractionFlops);
  row("bytes sent", before.communicatedBytes, after.communicatedBytes);
  row("parameter bytes", before.parameterBytes, after.parameterBytes);
  for (const auto &[key, total] : collectives)
    text += fmt::format("  {} {}: {} of {:.4g} bytes a step\n", key.first,
                        key.second, total.count, total.bytes);
  for (const std::string &line : replicated)
    text += "  " + line + "\n";
  return text;
}

} // namespace merak::planning
