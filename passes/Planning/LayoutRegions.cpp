#include "passes/Planning/LayoutRegions.h"

#include "runtime/plan/UnionFind.h"

#include <algorithm>
#include <map>
#include <set>

namespace merak::planning {

namespace {

// Labels of forward ops; those above kOutside are of one branch each.
constexpr int kFree = -1, kOutside = 0;

class Finder {
public:
  Finder(const Graph &graph, const Classes &unified)
      : graph(graph), unified(unified), producer(graph.tensors.size(), -1),
        label(graph.ops.size(), kFree) {}

  Result<LayoutRegions> run() {
    readTensors();
    readClasses();
    for (size_t o = 0; o < graph.ops.size(); ++o)
      if (graph.ops[o].phase == Phase::Forward)
        label[o] = labelOf(int(o));
    Seams seams;
    seams.implied = cuts();
    Result<Classes> separated = separate(graph, unified, seams);
    if (!separated.ok())
      return separated.status();
    out.classes = std::move(*separated);
    numberRegions();
    for (const TensorUse &use : seams.implied)
      if (isBetween(use))
        out.uses.push_back(use);
    return std::move(out);
  }

private:
  const GraphOp &at(int op) const { return graph.ops[size_t(op)]; }

  void readTensors() {
    const size_t count = graph.tensors.size();
    out.varies.assign(count, 0);
    out.weights.assign(count, 0);
    dependsOnParameter.assign(count, 0);
    for (size_t t = 0; t < count; ++t) {
      out.varies[t] = graph.tensors[t].input;
      out.weights[t] = dependsOnParameter[t] = graph.tensors[t].parameter;
    }
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const GraphOp &op = graph.ops[o];
      bool varies = false, only = !op.operands.empty(), any = false,
           depends = false;
      for (int id : op.operands) {
        varies |= bool(out.varies[size_t(id)]);
        only &= out.weights[size_t(id)] || graph.tensors[size_t(id)].constant;
        any |= bool(out.weights[size_t(id)]);
        depends |= bool(dependsOnParameter[size_t(id)]);
      }
      for (int id : op.results) {
        producer[size_t(id)] = int(o);
        out.varies[size_t(id)] = varies;
        out.weights[size_t(id)] = only && any;
        dependsOnParameter[size_t(id)] = depends;
      }
    }
  }

  // A product with weights, or a lookup in them.
  bool isWeighted(const GraphOp &op) const {
    return op.phase == Phase::Forward && (op.contraction || op.looksUp) &&
           std::any_of(op.operands.begin(), op.operands.end(),
                       [&](int id) { return bool(out.weights[size_t(id)]); });
  }

  void readClasses() {
    out.ofWeights.assign(unified.classes.size(), 0);
    out.ofTokens.assign(unified.classes.size(), 0);
    for (const GraphOp &op : graph.ops)
      if (isWeighted(op))
        for (int id : op.operands)
          for (int cls : unified.tensors[size_t(id)].atoms)
            (out.weights[size_t(id)] ? out.ofWeights
                                     : out.ofTokens)[size_t(cls)] = 1;
    for (size_t c = 0; c < unified.classes.size(); ++c)
      out.ofTokens[c] &= !out.ofWeights[c];
  }

  // A norm over the width: a part of it knows nothing.
  bool needsWidthWhole(int index) const {
    const GraphOp &op = at(index);
    if (op.contraction || op.viewLike)
      return false;
    for (const OpSlot &slot : unified.ops[size_t(index)].slots)
      if (slot.kind == FactorKind::Whole && out.ofWeights[size_t(slot.cls)])
        return true;
    return false;
  }

  // Branches that an op's values come from, kOutside among them.
  std::set<int> labelsOf(const GraphOp &op) const {
    std::set<int> found;
    for (int id : op.operands)
      if (int maker = producer[size_t(id)];
          maker >= 0 && out.varies[size_t(id)] && label[size_t(maker)] != kFree)
        found.insert(label[size_t(maker)]);
    return found;
  }

  int labelOf(int index) {
    const GraphOp &op = at(index);
    bool varies = false, depends = false;
    for (int id : op.results) {
      varies |= bool(out.varies[size_t(id)]);
      depends |= bool(dependsOnParameter[size_t(id)]);
    }
    if (!varies || !depends)
      return kFree;
    if (isWeighted(op))
      return branchOf(op);
    const std::set<int> labels = labelsOf(op);
    const bool one = labels.size() == 1 && *labels.begin() != kOutside;
    if (op.contraction)
      return one ? *labels.begin() : ++branches;
    return one && !needsWidthWhole(index) ? *labels.begin() : kOutside;
  }

  // Products of one value are one branch: queries, keys and values.
  int branchOf(const GraphOp &op) {
    if (op.looksUp)
      return ++branches;
    std::set<int> read;
    for (int id : op.operands)
      if (out.varies[size_t(id)])
        read.insert(id);
    auto [it, isNew] = siblings.try_emplace(read, branches + 1);
    branches += isNew;
    return it->second;
  }

  std::vector<TensorUse> cuts() const {
    std::vector<TensorUse> found;
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const GraphOp &op = graph.ops[o];
      if (op.phase != Phase::Forward)
        continue;
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const int id = op.operands[i], maker = producer[size_t(id)];
        if (maker >= 0 && out.varies[size_t(id)] &&
            label[size_t(maker)] != label[o])
          found.push_back({int(o), int(i)});
      }
    }
    return found;
  }

  // Ops that have a class in common are decided together.
  void numberRegions() {
    const Classes &classes = out.classes;
    UnionFind sets(classes.classes.size());
    for (const OpClasses &op : classes.ops)
      for (const OpSlot &slot : op.slots)
        sets.unite(op.slots.front().cls, slot.cls);
    for (const auto &[cls, forward] : gradientTwins(graph, classes))
      sets.unite(cls, forward);
    std::map<int, int> numbers;
    out.ofClass.assign(classes.classes.size(), -1);
    auto numberOf = [&](int cls) {
      return numbers.try_emplace(sets.find(cls), int(numbers.size()))
          .first->second;
    };
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      const std::vector<OpSlot> &slots = classes.ops[o].slots;
      out.ofOp.push_back(slots.empty() ? -1 : numberOf(slots.front().cls));
    }
    for (size_t c = 0; c < classes.classes.size(); ++c)
      if (numbers.count(sets.find(int(c))))
        out.ofClass[c] = numberOf(int(c));
    out.count = int(numbers.size());
    out.isFree.assign(size_t(out.count), 1);
    for (size_t o = 0; o < graph.ops.size(); ++o)
      for (const std::vector<int> *ids :
           {&graph.ops[o].operands, &graph.ops[o].results})
        for (int id : *ids)
          if (out.ofOp[o] >= 0 && dependsOnParameter[size_t(id)])
            out.isFree[size_t(out.ofOp[o])] = 0;
  }

  bool isBetween(const TensorUse &use) const {
    const int maker =
        producer[size_t(at(use.op).operands[size_t(use.operand)])];
    const int from = out.ofOp[size_t(maker)], to = out.ofOp[size_t(use.op)];
    return from >= 0 && to >= 0 && from != to;
  }

  const Graph &graph;
  const Classes &unified;
  std::vector<int> producer, label;
  std::vector<char> dependsOnParameter;
  int branches = 0;
  std::map<std::set<int>, int> siblings; // by the values read
  LayoutRegions out;
};

} // namespace

Result<LayoutRegions> findRegions(const Graph &graph, const Classes &unified) {
  return Finder(graph, unified).run();
}

std::vector<TensorUse> seamsBetween(const Graph &graph,
                                    const LayoutRegions &regions,
                                    const std::vector<char> &differs) {
  std::vector<int> producer(graph.tensors.size(), -1);
  for (size_t o = 0; o < graph.ops.size(); ++o)
    for (int id : graph.ops[o].results)
      producer[size_t(id)] = int(o);
  auto sides = [&](size_t use) {
    const TensorUse &at = regions.uses[use];
    const int id = graph.ops[size_t(at.op)].operands[size_t(at.operand)];
    return std::pair(regions.ofOp[size_t(producer[size_t(id)])],
                     regions.ofOp[size_t(at.op)]);
  };
  // Where a way leads around a seam, all uses of one of its regions are seams:
  // that of fewer uses.
  std::vector<int> usesOf(size_t(regions.count), 0);
  for (size_t u = 0; u < regions.uses.size(); ++u) {
    ++usesOf[size_t(sides(u).first)];
    ++usesOf[size_t(sides(u).second)];
  }
  std::vector<char> kept = differs;
  for (bool changed = true; changed;) {
    changed = false;
    UnionFind sets(size_t(regions.count));
    for (size_t u = 0; u < kept.size(); ++u)
      if (!kept[u])
        sets.unite(sides(u).first, sides(u).second);
    for (size_t u = 0; u < kept.size(); ++u) {
      const auto [from, to] = sides(u);
      if (!kept[u] || sets.find(from) != sets.find(to))
        continue;
      const int apart = usesOf[size_t(from)] < usesOf[size_t(to)] ? from : to;
      for (size_t other = 0; other < kept.size(); ++other)
        if (!kept[other] &&
            (sides(other).first == apart || sides(other).second == apart)) {
          kept[other] = 1;
          changed = true;
        }
    }
  }
  std::vector<TensorUse> seams;
  for (size_t u = 0; u < kept.size(); ++u)
    if (kept[u])
      seams.push_back(regions.uses[u]);
  return seams;
}

} // namespace merak::planning
