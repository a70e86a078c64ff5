#include "passes/Planning/Seams.h"

#include "runtime/plan/UnionFind.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>

namespace merak::planning {

namespace {

bool changesTypeOf(const GraphOp &op, int parameter) {
  return op.phase == Phase::Forward && op.epilogue == Epilogue::Cast &&
         op.operands.size() == 1 && op.operands[0] == parameter;
}

// Ops by region: the sets that seams leave connected. Of the update only sums
// of a row-sparse gradient are in one, that of the lookup; all else is in none.
class Regions {
public:
  Regions(const Graph &graph, const Seams &seams)
      : graph(graph), cut(seams.uses.begin(), seams.uses.end()),
        sets(graph.ops.size()), producer(graph.tensors.size(), -1),
        storedSide(storedSides(graph, seams)), users(graph.tensors.size()),
        isSum(graph.ops.size(), 0) {
    cut.insert(seams.implied.begin(), seams.implied.end());
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      for (int id : graph.ops[o].results)
        producer[size_t(id)] = int(o);
      for (int id : graph.ops[o].operands)
        users[size_t(id)].push_back(int(o));
    }
    for (size_t o = 0; o < graph.ops.size(); ++o)
      if (graph.ops[o].phase == Phase::Forward)
        joinForward(int(o));
    for (size_t o = 0; o < graph.ops.size(); ++o)
      if (graph.ops[o].phase != Phase::Forward && !inNone(int(o)))
        joinBackward(int(o));
    for (size_t o = graph.ops.size(); o-- > 0;)
      if (isSum[o])
        joinSum(int(o));
  }

  // Whether the tensor is in another layout where the op uses it.
  bool isCut(int op, int operand) {
    if (cut.count({op, operand}))
      return true;
    const int id = graph.ops[size_t(op)].operands[size_t(operand)];
    const int maker = producer[size_t(id)];
    if (storedSide[size_t(op)] >= 0 && inNone(op)) // a gradient comes from uses
      return id != storedSide[size_t(op)] &&
             (maker < 0 || !inNone(maker) || storedSide[size_t(maker)] < 0);
    if (graph.ops[size_t(op)].isUpdate())
      return false;
    if (maker < 0) {
      if (!graph.tensors[size_t(id)].parameter)
        return !cut.empty(); // lies whole, each use takes its part
      return isStored(id) && storedSide[size_t(op)] != id;
    }
    if (storedSide[size_t(maker)] >= 0 &&
        graph.ops[size_t(maker)].phase == Phase::Forward)
      return true;
    if (inNone(op) || inNone(maker))
      return false;
    return regionOf(op) != regionOf(maker);
  }

  // Of an input that is cut there: the region that takes its part of it, -1 of
  // anything else.
  int takes(int op, int operand) {
    const int id = graph.ops[size_t(op)].operands[size_t(operand)];
    const bool input = producer[size_t(id)] < 0 &&
                       !graph.tensors[size_t(id)].parameter && !inNone(op);
    return input && isCut(op, operand) ? regionOf(op) : -1;
  }

private:
  bool inNone(int op) const {
    const GraphOp &of = graph.ops[size_t(op)];
    return of.phase == Phase::Update && of.gradientOf < 0;
  }
  bool isStored(int id) const {
    for (int user : users[size_t(id)])
      if (storedSide[size_t(user)] == id)
        return true;
    return false;
  }
  int regionOf(int op) { return sets.find(op); }

  void joinForward(int op) {
    if (storedSide[size_t(op)] >= 0)
      return;
    const std::vector<int> &operands = graph.ops[size_t(op)].operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      const int maker = producer[size_t(operands[i])];
      if (maker >= 0 && !cut.count({op, int(i)}) &&
          storedSide[size_t(maker)] < 0)
        sets.unite(op, maker);
    }
  }

  // With the op whose gradient it is; the gradient of a stored parameter's
  // change of type with what it reads.
  void joinBackward(int index) {
    const GraphOp &op = graph.ops[size_t(index)];
    std::set<int> from; // regions of the gradients that it reads
    for (int id : op.operands)
      if (int maker = producer[size_t(id)];
          maker >= 0 && graph.ops[size_t(maker)].phase == Phase::Backward)
        from.insert(regionOf(maker));
    const int of = op.gradientOf;
    if (of < 0 || storedSide[size_t(of)] >= 0) {
      if (!from.empty())
        sets.unite(index, *from.begin());
      return;
    }
    if (!op.sumOfUses || from.empty())
      sets.unite(index, of);
    else if (from.size() == 1) // all uses on one side: added there
      sets.unite(index, *from.begin());
    else
      isSum[size_t(index)] = 1;
  }

  // A sum over uses lies where the value itself was made: with the first
  // gradient op that reads it. What only the update reads: with a summand.
  void joinSum(int index) {
    for (int id : graph.ops[size_t(index)].results)
      for (int user : users[size_t(id)])
        if (!inNone(user)) {
          sets.unite(index, user);
          return;
        }
    sets.unite(index, producer[size_t(graph.ops[size_t(index)].operands[0])]);
  }

  const Graph &graph;
  std::set<TensorUse> cut;
  UnionFind sets;
  std::vector<int> producer, storedSide;
  std::vector<std::vector<int>> users;
  std::vector<char> isSum;
};

// Classes of occurrences: atoms of tensors and slots of ops.
class Separator {
public:
  Separator(const Graph &graph, const Classes &unified, const Seams &seams)
      : graph(graph), unified(unified), seams(seams), regions(graph, seams) {
    int count = 0;
    for (const TensorClasses &tensor : unified.tensors) {
      tensorBegin.push_back(count);
      count += int(tensor.atoms.size());
    }
    for (const OpClasses &op : unified.ops) {
      opBegin.push_back(count);
      count += int(op.slots.size());
    }
    occurrences = size_t(count);
  }

  Result<Classes> run() {
    UnionFind whole(occurrences), parts(occurrences);
    join(whole, /*cut=*/false);
    join(parts, /*cut=*/true);
    mendGaps(whole, parts);
    MERAK_RETURN_IF_ERROR(check(parts));
    return number(parts);
  }

private:
  int atomAt(int tensor, size_t atom) const {
    return tensorBegin[size_t(tensor)] + int(atom);
  }

  // One region takes one part of an input: a lookup and its gradient read the
  // same ids.
  void join(UnionFind &sets, bool cut) {
    std::map<std::pair<int, int>, TensorUse> first; // by input and region
    for (size_t o = 0; o < graph.ops.size(); ++o) {
      auto joinAll = [&](int tensor, const std::vector<int> &slots) {
        for (size_t a = 0; a < slots.size(); ++a)
          if (slots[a] >= 0)
            sets.unite(atomAt(tensor, a), opBegin[o] + slots[a]);
      };
      const GraphOp &op = graph.ops[o];
      for (size_t i = 0; i < op.operands.size(); ++i)
        if (!cut || !regions.isCut(int(o), int(i)))
          joinAll(op.operands[i], unified.ops[o].operands[i]);
        else if (int region = regions.takes(int(o), int(i)); region >= 0) {
          const TensorUse here{int(o), int(i)};
          joinUses(
              sets,
              first.try_emplace({op.operands[i], region}, here).first->second,
              here);
        }
      for (size_t r = 0; r < op.results.size(); ++r)
        joinAll(op.results[r], unified.ops[o].results[r]);
    }
  }

  void joinUses(UnionFind &sets, const TensorUse &a, const TensorUse &b) {
    const std::vector<int> &of = slotsAt(a), &with = slotsAt(b);
    for (size_t i = 0; i < of.size(); ++i)
      if (of[i] >= 0 && with[i] >= 0)
        sets.unite(opBegin[size_t(a.op)] + of[i],
                   opBegin[size_t(b.op)] + with[i]);
  }
  const std::vector<int> &slotsAt(const TensorUse &use) const {
    return unified.ops[size_t(use.op)].operands[size_t(use.operand)];
  }

  // One class may consist of parts that no occurrence connects (a refinement
  // did): they stay one.
  void mendGaps(UnionFind &whole, UnionFind &parts) {
    std::map<int, int> first; // by class: an occurrence
    std::set<int> seen;       // of `whole`
    eachOccurrence([&](int at, int cls) {
      auto [it, isNew] = first.try_emplace(cls, at);
      if (seen.insert(whole.find(at)).second && !isNew)
        parts.unite(it->second, at);
    });
  }

  template <typename Visit> void eachOccurrence(Visit visit) const {
    for (size_t t = 0; t < unified.tensors.size(); ++t)
      for (size_t a = 0; a < unified.tensors[t].atoms.size(); ++a)
        visit(atomAt(int(t), a), unified.tensors[t].atoms[a]);
    for (size_t o = 0; o < unified.ops.size(); ++o)
      for (size_t s = 0; s < unified.ops[o].slots.size(); ++s)
        visit(opBegin[o] + int(s), unified.ops[o].slots[s].cls);
  }

  Status check(UnionFind &parts) const {
    Status status;
    for (const TensorUse &use : seams.uses) {
      if (Status known = checkUse(use); !known.ok()) {
        status.merge(known);
        continue;
      }
      const GraphOp &op = graph.ops[size_t(use.op)];
      const int id = op.operands[size_t(use.operand)];
      bool separates = false;
      const std::vector<int> &slots =
          unified.ops[size_t(use.op)].operands[size_t(use.operand)];
      for (size_t a = 0; a < slots.size(); ++a)
        separates |=
            slots[a] >= 0 && parts.find(atomAt(id, a)) !=
                                 parts.find(opBegin[size_t(use.op)] + slots[a]);
      if (!separates)
        status.merge(Status::error(
            fmt::format("a seam in front of op '{}' at operand {} ('{}') "
                        "separates nothing: "
                        "both sides are connected on another way too",
                        op.name, use.operand, graph.tensors[size_t(id)].name)));
    }
    return status;
  }

  Status checkUse(const TensorUse &use) const {
    if (use.op < 0 || use.op >= int(graph.ops.size()))
      return Status::error(fmt::format("there is no op {} for a seam", use.op));
    const GraphOp &op = graph.ops[size_t(use.op)];
    if (use.operand < 0 || use.operand >= int(op.operands.size()))
      return Status::error(
          fmt::format("a seam is at operand {} of op '{}', which has {}",
                      use.operand, op.name, op.operands.size()));
    const GraphTensor &tensor =
        graph.tensors[size_t(op.operands[size_t(use.operand)])];
    if (tensor.parameter || tensor.input || tensor.constant)
      return Status::error(fmt::format(
          "a seam in front of op '{}' is at operand {}, which is the {} '{}'; "
          "only values that ops make change their layout at a seam{}",
          op.name, use.operand,
          tensor.parameter ? "parameter"
          : tensor.input   ? "input"
                           : "constant",
          tensor.name,
          tensor.parameter ? " (a parameter has a stored layout)" : ""));
    return {};
  }

  Classes number(UnionFind &parts) const {
    Classes out = unified;
    std::map<int, int> numbers; // by set
    std::vector<char> used(unified.classes.size(), 0);
    auto numberOf = [&](int at, int cls) {
      auto [it, isNew] = numbers.try_emplace(parts.find(at), cls);
      if (!isNew)
        return it->second;
      if (used[size_t(cls)]) {
        it->second = int(out.classes.size());
        out.classes.push_back(unified.classes[size_t(cls)]);
      }
      used[size_t(cls)] = 1;
      return it->second;
    };
    for (size_t t = 0; t < out.tensors.size(); ++t)
      for (size_t a = 0; a < out.tensors[t].atoms.size(); ++a)
        out.tensors[t].atoms[a] =
            numberOf(atomAt(int(t), a), out.tensors[t].atoms[a]);
    for (size_t o = 0; o < out.ops.size(); ++o)
      for (size_t s = 0; s < out.ops[o].slots.size(); ++s)
        out.ops[o].slots[s].cls =
            numberOf(opBegin[o] + int(s), out.ops[o].slots[s].cls);
    return out;
  }

  const Graph &graph;
  const Classes &unified;
  const Seams &seams;
  Regions regions;
  std::vector<int> tensorBegin, opBegin;
  size_t occurrences = 0;
};

} // namespace

bool isSumOfGradients(const GraphOp &op) {
  return op.phase == Phase::Update && op.results.size() == 1 &&
         op.epilogue == Epilogue::Bias && op.operands.size() == 2;
}

std::vector<int> storedSides(const Graph &graph, const Seams &seams) {
  const std::set<int> stored(seams.stored.begin(), seams.stored.end()),
      scattered(seams.scattered.begin(), seams.scattered.end());
  std::vector<int> sides(graph.ops.size(), -1),
      summed(graph.tensors.size(), -1); // by gradient: the parameter
  for (size_t o = graph.ops.size(); o-- > 0;) {
    const GraphOp &op = graph.ops[o];
    if (op.operands.empty())
      continue;
    const int id = op.operands[0];
    if (stored.count(id) && (op.isUpdate() || changesTypeOf(op, id)))
      sides[o] = id;
    if (op.isUpdate() && scattered.count(id) && op.operands.size() > 1)
      summed[size_t(op.operands[1])] = id;
    // The sum of the gradients of several uses.
    if (!isSumOfGradients(op) || summed[size_t(op.results[0])] < 0)
      continue;
    sides[o] = summed[size_t(op.results[0])];
    for (int operand : op.operands)
      summed[size_t(operand)] = sides[o];
  }
  return sides;
}

std::map<int, int> gradientTwins(const Graph &graph, const Classes &classes) {
  std::vector<char> named(classes.classes.size(), 0);
  std::vector<char> ofGradients(graph.tensors.size(), 0);
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const bool backward = graph.ops[o].phase == Phase::Backward;
    for (int id : graph.ops[o].results)
      ofGradients[size_t(id)] = backward;
    for (const OpSlot &slot : classes.ops[o].slots)
      named[size_t(slot.cls)] |= !backward;
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    for (int cls : classes.tensors[t].atoms)
      named[size_t(cls)] |= !ofGradients[t];
  std::map<int, int> twins;
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    const int of = graph.ops[o].gradientOf;
    if (of < 0 || graph.ops[o].phase != Phase::Backward)
      continue;
    for (const OpSlot &slot : classes.ops[o].slots)
      for (const OpSlot &other : classes.ops[size_t(of)].slots)
        if (!named[size_t(slot.cls)] &&
            classes.classes[size_t(slot.cls)].root ==
                classes.classes[size_t(other.cls)].root)
          twins.try_emplace(slot.cls, other.cls);
  }
  return twins;
}

Result<Classes> separate(const Graph &graph, const Classes &unified,
                         const Seams &seams) {
  if (seams.empty())
    return unified;
  return Separator(graph, unified, seams).run();
}

} // namespace merak::planning
