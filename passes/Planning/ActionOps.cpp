#include "passes/Planning/ActionOps.h"

#include "dialects/Support/MeshAxes.h"
#include "passes/Planning/ActionOrigins.h"
#include "passes/Planning/KeptViews.h"
#include "passes/Planning/Submicrobatches.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace merak::planning {

double ActionValue::elements() const {
  double all = 1;
  for (int64_t size : shape)
    all *= double(size);
  return all;
}

std::vector<char> everywhereOps(const Graph &graph, const Outcome &outcome) {
  std::vector<char> made(graph.tensors.size(), 0), ops;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const GraphOp &op = graph.ops[i];
    bool cheap = !op.contraction && !op.operands.empty() &&
                 op.phase != Phase::Update && !outcome.ops[i].late;
    for (size_t o = 0; o < op.operands.size(); ++o) {
      const GraphTensor &tensor = graph.tensors[size_t(op.operands[o])];
      cheap &=
          outcome.ops[i].operands[o].conversions.empty() &&
          (tensor.input || tensor.constant || made[size_t(op.operands[o])] ||
           (op.epilogue == Epilogue::Cast && tensor.parameter));
    }
    for (int t : op.results)
      made[size_t(t)] = cheap;
    ops.push_back(cheap);
  }
  return ops;
}

static bool isConversion(const Graph &graph, const GraphOp &op) {
  if (op.epilogue != Epilogue::Cast || op.phase != Phase::Forward)
    return false;
  const GraphTensor &from = graph.tensors[size_t(op.operands[0])];
  return from.parameter &&
         graph.tensors[size_t(op.results[0])].elementBytes < from.elementBytes;
}

bool convertsAny(const Graph &graph) {
  return std::any_of(
      graph.ops.begin(), graph.ops.end(),
      [&](const GraphOp &op) { return isConversion(graph, op); });
}

std::vector<char> convertedOnce(const Graph &graph, const Outcome &outcome,
                                bool wanted) {
  std::vector<char> once(graph.ops.size(), 0),
      gathered(graph.tensors.size(), 0);
  if (!wanted)
    return once;
  for (size_t i = 0; i < graph.ops.size(); ++i)
    for (size_t o = 0; o < graph.ops[i].operands.size(); ++o)
      if (!outcome.ops[i].operands[o].conversions.empty())
        gathered[size_t(graph.ops[i].operands[o])] = 1;
  const std::vector<char> everywhere = everywhereOps(graph, outcome);
  for (size_t i = 0; i < graph.ops.size(); ++i)
    once[i] = everywhere[i] && isConversion(graph, graph.ops[i]) &&
              !gathered[size_t(graph.ops[i].results[0])];
  return once;
}

namespace {

class Lister {
public:
  Lister(const Graph &graph, const Outcome &outcome,
         const layout::AxisMap &mesh, const std::vector<int> &home,
         const std::vector<char> &once)
      : graph(graph), outcome(outcome), mesh(mesh), home(home), once(once),
        everywhere(everywhereOps(graph, outcome)),
        views(viewsTakenAgain(graph, outcome, mesh)) {
    producer.assign(graph.tensors.size(), -1);
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      varies.push_back(graph.tensors[t].input);
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const std::vector<int> &from = graph.ops[i].operands;
      const bool any = std::any_of(from.begin(), from.end(),
                                   [&](int t) { return varies[size_t(t)]; });
      for (int t : graph.ops[i].results) {
        producer[size_t(t)] = int(i);
        varies[size_t(t)] = any;
      }
    }
    findNodes();
  }

  std::array<ActionOps, kLists> run(ValueOrigins *from = nullptr) {
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      if (!everywhere[i] && roleOf(int(i)) != ListOf::U)
        emit(int(i), roleOf(int(i)), home[i]);
      for (int node : convertedAfter[i])
        if (ListOf role = roles[size_t(node)]; role != ListOf::U)
          materialize(node, role, home[i]);
    }
    for (const OutputUse &use : outcome.outputs)
      storeOutput(use);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      if (graph.ops[i].isUpdate())
        for (size_t o = 0; o < graph.ops[i].operands.size(); ++o)
          if (!graph.tensors[size_t(graph.ops[i].operands[o])].parameter)
            lists[size_t(ListOf::U)]
                .values[size_t(
                    materialize(nodeOf(int(i), o), ListOf::U, home[i]))]
                .updates = true;
    if (from)
      *from = std::move(origins);
    return std::move(lists);
  }

private:
  // Nodes: tensors as their producers leave them, then conversions.
  int count() const { return int(graph.tensors.size()); }
  bool isConversion(int node) const { return node >= count(); }
  const Conversion &conversionOf(int node) const {
    return outcome.conversions[size_t(node - count())];
  }

  ListOf roleOf(int op) const {
    const OpOutcome &of = outcome.ops[size_t(op)];
    const GraphOp &graphOp = graph.ops[size_t(op)];
    if (of.late || graphOp.phase == Phase::Update)
      return ListOf::U;
    if (of.join || of.afterJoin)
      return ListOf::B;
    return graphOp.phase == Phase::Forward ? ListOf::F
           : graphOp.weightGradient        ? ListOf::W
                                           : ListOf::B;
  }

  // The node behind a chain of conversions from `node`.
  int follow(int node, const std::vector<int> &conversions) {
    for (int c : conversions) {
      from[size_t(c)] = node;
      node = count() + c;
    }
    return node;
  }
  int nodeOf(int op, size_t operand) const {
    const std::vector<int> &chain =
        outcome.ops[size_t(op)].operands[operand].conversions;
    return chain.empty()
               ? stored[size_t(graph.ops[size_t(op)].operands[operand])]
               : count() + chain.back();
  }
  int rootOf(int node) const {
    while (isConversion(node))
      node = from[size_t(node - count())];
    return node;
  }

  // Where each conversion starts, and the earliest action that needs it.
  void findNodes() {
    stored.resize(graph.tensors.size());
    for (int t = 0; t < count(); ++t)
      stored[size_t(t)] = t;
    from.assign(outcome.conversions.size(), -1);
    roles.assign(graph.tensors.size() + from.size(), ListOf::U);
    for (std::vector<int> &of : known)
      of.assign(roles.size(), -1);
    for (size_t i = 0; i < graph.ops.size(); ++i) {
      const OpOutcome &of = outcome.ops[i];
      for (size_t r = 0; r < of.after.size(); ++r)
        if (!of.after[r].empty()) {
          int t = graph.ops[i].results[r];
          stored[size_t(t)] = follow(t, of.after[r]);
        }
      for (size_t o = 0; o < of.operands.size(); ++o) {
        follow(stored[size_t(graph.ops[i].operands[o])],
               of.operands[o].conversions);
        need(nodeOf(int(i), o), everywhere[i] ? ListOf::F : roleOf(int(i)));
      }
    }
    findFirstUses();
    for (const OutputUse &use : outcome.outputs)
      follow(stored[size_t(use.tensor)], use.conversions);
    // What is gathered once a step is there before the first action.
    for (size_t c = 0; c < from.size(); ++c)
      if (const Conversion &of = outcome.conversions[c]; of.isGatheredOnce())
        roles[size_t(count()) + c] = ListOf::U;
      else if (isStacked(graph, of))
        roles[size_t(count()) + c] = ListOf::W;
      else if (isOfEach(graph, of))
        roles[size_t(count()) + c] =
            roleOf(producer[size_t(rootOf(count() + int(c)))]);
    convertedAfter.resize(graph.ops.size());
    for (size_t c = 0; c < from.size(); ++c)
      if (from[c] >= 0)
        if (int op = producer[size_t(rootOf(count() + int(c)))]; op >= 0)
          convertedAfter[size_t(op)].push_back(count() + int(c));
  }
  void findFirstUses() {
    firstUse.assign(roles.size(), -1);
    for (size_t i = 0; i < graph.ops.size(); ++i)
      for (size_t o = 0; o < graph.ops[i].operands.size(); ++o)
        for (int node = nodeOf(int(i), o); isConversion(node);
             node = from[size_t(node - count())]) {
          int &first = firstUse[size_t(node)];
          if (roleOf(int(i)) == ListOf::U || home[i] < 0)
            continue;
          first = first < 0                          ? home[i]
                  : roles[size_t(node)] == ListOf::F ? std::min(first, home[i])
                                                     : std::max(first, home[i]);
        }
  }
  void need(int node, ListOf role) {
    for (; isConversion(node); node = from[size_t(node - count())])
      roles[size_t(node)] = std::min(roles[size_t(node)], role);
  }

  const layout::Layout &layoutOf(int node) const {
    if (isConversion(node))
      return conversionOf(node).to;
    int op = producer[size_t(node)];
    if (op >= 0)
      for (size_t r = 0; r < graph.ops[size_t(op)].results.size(); ++r)
        if (graph.ops[size_t(op)].results[r] == node)
          return outcome.ops[size_t(op)].produced[r];
    return outcome.tensors[size_t(node)];
  }

  int addValue(ListOf list, int node, int maker) {
    const layout::Layout &layout = layoutOf(node);
    ActionValue value;
    value.tensor = isConversion(node) ? conversionOf(node).tensor : node;
    const GraphTensor &tensor = graph.tensors[size_t(value.tensor)];
    value.shape = layout.localShape(mesh);
    value.elementBytes = tensor.elementBytes;
    value.isFloat = tensor.isFloat;
    value.maker = maker;
    value.splat = tensor.splat && !isConversion(node);
    value.axes = axesOf(layout);
    value.ofSubmicrobatch = isOfSubmicrobatch(layout);
    value.ofSamples = isOfSamples(value.tensor, layout);
    value.ofTokens = isSplitOver(layout, kSubmicrobatchAxis);
    std::vector<ActionValue> &values = lists[size_t(list)].values;
    values.push_back(std::move(value));
    return int(values.size()) - 1;
  }
  // With one microbatch no layout says it.
  bool isOfSamples(int tensor, const layout::Layout &layout) const {
    auto axis = mesh.find(kMicrobatchAxis);
    if (axis != mesh.end() && axis->second > 1)
      return isSplitOver(layout, kMicrobatchAxis);
    const int op = producer[size_t(tensor)];
    return varies[size_t(tensor)] &&
           !(op >= 0 && graph.ops[size_t(op)].weightGradient);
  }
  // Those of the mesh that are ranks.
  static unsigned axesOf(const layout::Layout &layout) {
    unsigned axes = 0;
    auto add = [&](const std::string &axis) {
      axes |= isOn(axis, kDataAxis) ? 1u : isOn(axis, kTensorAxis) ? 2u : 0u;
    };
    for (const std::string &axis : layout.partial)
      add(axis);
    for (const layout::DimLayout &dim : layout.dims)
      for (const layout::Factor &factor : dim.factors)
        for (const std::string &axis : factor.axes)
          add(axis);
    return axes;
  }

  // Appends an op that reads values of its list.
  int append(ListOf list, ActionOp op) {
    ActionOps &to = lists[size_t(list)];
    for (int value : op.operands)
      to.values[size_t(value)].users.push_back(int(to.ops.size()));
    to.ops.push_back(std::move(op));
    return int(to.ops.size()) - 1;
  }

  // An op, and in front of it those of its operands that are not there. A chain
  // of them may be longer than the stack is deep.
  void emit(int index, ListOf list, int at) {
    std::vector<ActionOp> open{newOp(index, at)};
    while (!open.empty()) {
      const GraphOp &of = graph.ops[size_t(open.back().index)];
      const size_t operand = open.back().operands.size();
      if (operand == of.operands.size()) {
        close(std::move(open.back()), list);
        open.pop_back();
        continue;
      }
      const int node = nodeOf(open.back().index, operand);
      int place = open.back().at;
      if (const int first = missingOp(node, list, place); first >= 0)
        open.push_back(newOp(first, place));
      else
        open.back().operands.push_back(materialize(node, list, open.back().at));
    }
  }
  ActionOp newOp(int index, int at) const {
    const GraphOp &of = graph.ops[size_t(index)];
    return {ActionOp::Op, index, at, of.moves, of.axis, {}, {}};
  }
  // The op that `make` would emit for a node, and where; -1: none.
  int missingOp(int node, ListOf list, int &at) const {
    while (known[size_t(list)][size_t(node)] < 0) {
      if (isConversion(node)) {
        const Conversion &conversion = conversionOf(node);
        if (conversion.kind == ConversionKind::Accumulate ||
            conversion.isGatheredOnce() || conversion.prologue ||
            (roles[size_t(node)] != list && list != ListOf::P))
          return -1;
        at = placeOf(node, list, at);
        node = from[size_t(node - count())];
        continue;
      }
      const int op = producer[size_t(node)];
      return op >= 0 && isIn(op, list) ? op : -1;
    }
    return -1;
  }
  // Whether a list has an op that it needs the result of; else another one left
  // it. The prologue has nothing of other actions.
  bool isIn(int op, ListOf list) const {
    if (isThere(op, list))
      return false;
    return everywhere[size_t(op)] || list == ListOf::P || roleOf(op) == list ||
           (views[size_t(op)] && list != ListOf::U);
  }
  bool isThere(int op, ListOf list) const {
    return once[size_t(op)] &&
           (list == ListOf::F || list == ListOf::B || list == ListOf::W);
  }
  void close(ActionOp op, ListOf list) {
    const GraphOp &graphOp = graph.ops[size_t(op.index)];
    int number = append(list, std::move(op));
    for (int t : graphOp.results) {
      int value = addValue(list, t, number);
      known[size_t(list)][size_t(t)] = value;
      lists[size_t(list)].ops[size_t(number)].results.push_back(value);
    }
  }

  int materialize(int node, ListOf list, int at) {
    if (const int there = known[size_t(list)][size_t(node)]; there >= 0)
      return there;
    const int made = make(node, list, at);
    known[size_t(list)][size_t(node)] = made;
    return made;
  }

  int make(int node, ListOf list, int at) {
    if (isConversion(node))
      return makeConverted(node, list, at);
    const GraphTensor &tensor = graph.tensors[size_t(node)];
    if (tensor.input)
      return single(ActionOp::Load, -1, node, list, at);
    if (tensor.parameter || tensor.constant)
      return addValue(list, node, -1);
    int op = producer[size_t(node)];
    if (isThere(op, list))
      return addValue(list, node, -1);
    if (isIn(op, list)) {
      emit(op, list, at);
      return known[size_t(list)][size_t(node)];
    }
    return fetch(node, roleOf(op), list, at);
  }

  int makeConverted(int node, ListOf list, int at) {
    const Conversion &conversion = conversionOf(node);
    int source = from[size_t(node - count())];
    if (conversion.kind == ConversionKind::Accumulate) {
      if (list == ListOf::U)
        return addOther(node, sum(source, at));
      if (!conversion.joined)
        prepare(source, at);
      return addValue(list, node, -1);
    }
    if (conversion.isGatheredOnce())
      return addValue(list, node, -1);
    if (conversion.prologue) {
      int sums = source;
      while (isConversion(sums) &&
             conversionOf(sums).kind != ConversionKind::Accumulate)
        sums = from[size_t(sums - count())];
      if (isConversion(sums))
        prepare(from[size_t(sums - count())], at);
      return addValue(list, node, -1);
    }
    if (roles[size_t(node)] != list && list != ListOf::P)
      return fetch(node, roles[size_t(node)], list, at);
    at = placeOf(node, list, at);
    int operand = materialize(source, list, at);
    int made = single(ActionOp::Conversion, node - count(), node, list, at);
    ActionOps &to = lists[size_t(list)];
    to.ops.back().operands.push_back(operand);
    to.values[size_t(operand)].users.push_back(int(to.ops.size()) - 1);
    return made;
  }

  // Conversions for gradients of parameters, those of forward values for
  // gradients and those of what is everywhere are where they are read first
  // (passes/Staging/ApplyLayouts.cpp): the backward pass comes from the end.
  int placeOf(int node, ListOf list, int at) const {
    const int op = producer[size_t(rootOf(node))];
    const bool ofForward = op < 0 || everywhere[size_t(op)] ||
                           (list == ListOf::B && roleOf(op) == ListOf::F);
    const int first = firstUse[size_t(node)];
    return first >= 0 && (ofForward || list == ListOf::W) ? first : at;
  }

  int single(ActionOp::Kind kind, int index, int node, ListOf list, int at) {
    int number = append(list, {kind, index, at, Moves::No, 0, {}, {}});
    int value = addValue(list, node, number);
    lists[size_t(list)].ops[size_t(number)].results.push_back(value);
    return value;
  }

  // What another action left.
  int fetch(int node, ListOf role, ListOf list, int at) {
    if (list == ListOf::U)
      return addOther(node, sum(node, at));
    const int value = materialize(node, role, at);
    lists[size_t(role)].values[size_t(value)].kept = true;
    const int made = addValue(list, node, -1);
    origins[size_t(list)][made] = {role, value};
    return made;
  }
  int addOther(int node, std::optional<ValueOrigin> origin) {
    const int made = addValue(ListOf::U, node, -1);
    if (origin)
      origins[size_t(ListOf::U)][made] = *origin;
    return made;
  }
  // A value of a microbatch as the update reads it: where it is made, if not by
  // the update.
  std::optional<ValueOrigin> sum(int node, int at) {
    int root = rootOf(node);
    int op = producer[size_t(root)];
    ListOf role = isConversion(node)                 ? roles[size_t(node)]
                  : op < 0 || everywhere[size_t(op)] ? ListOf::F
                                                     : roleOf(op);
    if (role == ListOf::U)
      return {};
    const int value = materialize(node, role, at);
    lists[size_t(role)].values[size_t(value)].summed = true;
    // A collective cannot add to what its result holds.
    if (isConversion(node) && accumulated.insert(node).second)
      append(role, {ActionOp::Copy, -1, at, Moves::No, 0, {value}, {}});
    return ValueOrigin{role, value};
  }

  // A sum that the prologue makes before the first F.
  void prepare(int node, int at) {
    lists[size_t(ListOf::P)]
        .values[size_t(materialize(node, ListOf::P, at))]
        .summed = true;
  }

  void storeOutput(const OutputUse &use) {
    int node = use.conversions.empty() ? stored[size_t(use.tensor)]
                                       : count() + use.conversions.back();
    int op = producer[size_t(use.tensor)];
    int at = op >= 0 ? home[size_t(op)] : -1;
    int value = materialize(node, ListOf::U, at);
    ActionOps &list = lists[size_t(ListOf::U)];
    if (list.values[size_t(value)].maker >= 0)
      list.values[size_t(value)].kept = true;
    else
      append(ListOf::U, {ActionOp::Copy, -1, at, Moves::No, 0, {value}, {}});
  }

  const Graph &graph;
  const Outcome &outcome;
  const layout::AxisMap &mesh;
  const std::vector<int> &home;
  const std::vector<char> &once;
  std::vector<char> everywhere, views;
  std::vector<int> producer, stored;
  std::vector<char> varies;  // by tensor: made of inputs
  std::vector<int> from;     // by conversion: the node that it reads
  std::vector<ListOf> roles; // by node
  // By node, the place of the op that comes to it first; -1: none does.
  std::vector<int> firstUse;
  std::vector<std::vector<int>> convertedAfter; // by op
  std::set<int> accumulated;                    // conversions
  std::array<std::vector<int>, kLists> known;   // values by node, or -1
  std::array<ActionOps, kLists> lists;
  ValueOrigins origins;
};

// Sums of padded parts that fill a tensor become concatenations of the parts.
class PadJoiner {
public:
  PadJoiner(const Graph &graph, ActionOps &list) : graph(graph), list(list) {}

  void run() {
    for (size_t i = 0; i < list.ops.size(); ++i)
      if (isSum(int(i)) && !isInner(int(i)))
        join(int(i));
  }

private:
  const ActionValue &valueOf(int value) const {
    return list.values[size_t(value)];
  }
  bool isSum(int op) const {
    const ActionOp &of = list.ops[size_t(op)];
    return of.kind == ActionOp::Op &&
           graph.ops[size_t(of.index)].epilogue == Epilogue::Bias;
  }
  bool readOnce(const ActionValue &value) const {
    return value.users.size() == 1 && !value.kept && !value.summed;
  }
  bool isInner(int op) const {
    const ActionValue &sum = valueOf(list.ops[size_t(op)].results[0]);
    return readOnce(sum) && isSum(sum.users[0]);
  }
  void collect(int root, std::vector<int> &leaves, std::vector<int> &sums) {
    for (int value : list.ops[size_t(root)].operands) {
      int inner = valueOf(value).maker;
      if (inner >= 0 && isSum(inner) && readOnce(valueOf(value)) &&
          valueOf(value).shape ==
              valueOf(list.ops[size_t(root)].results[0]).shape) {
        collect(inner, leaves, sums);
        sums.push_back(inner);
      } else {
        leaves.push_back(value);
      }
    }
  }
  // The axis along which a value was padded; -1: none.
  int64_t axisOf(int value) const {
    int maker = valueOf(value).maker;
    if (maker < 0 || list.ops[size_t(maker)].moves != Moves::Pad ||
        !readOnce(valueOf(value)))
      return -1;
    const auto &whole = valueOf(value).shape;
    const auto &part = valueOf(list.ops[size_t(maker)].operands[0]).shape;
    int64_t axis = -1;
    for (size_t d = 0; d < whole.size(); ++d)
      if (whole[d] != part[d])
        axis = axis < 0 ? int64_t(d) : int64_t(whole.size());
    return axis == int64_t(whole.size()) ? -1 : axis;
  }
  void join(int root) {
    std::vector<int> leaves, sums, parts, others;
    collect(root, leaves, sums);
    int64_t axis = -1, filled = 0;
    for (int leaf : leaves) {
      int64_t own = axisOf(leaf);
      bool is = own >= 0 && (axis < 0 || own == axis);
      (is ? parts : others).push_back(leaf);
      if (!is)
        continue;
      axis = own;
      int pad = valueOf(leaf).maker;
      filled += valueOf(list.ops[size_t(pad)].operands[0]).shape[size_t(axis)];
    }
    ActionOp &op = list.ops[size_t(root)];
    // One more sum is rare; what it would cost is kept out of this.
    if (parts.size() < 2 || !others.empty() ||
        filled != valueOf(op.results[0]).shape[size_t(axis)])
      return;
    op.moves = Moves::Concat;
    op.axis = axis;
    for (int value : op.operands)
      drop(value, root);
    op.operands.clear();
    for (int part : parts) {
      ActionOp &pad = list.ops[size_t(valueOf(part).maker)];
      int inner = pad.operands[0];
      drop(inner, valueOf(part).maker);
      list.values[size_t(inner)].users.push_back(root);
      op.operands.push_back(inner);
      pad.operands.clear();
      clear(pad);
    }
    for (int sum : sums)
      clear(list.ops[size_t(sum)]);
  }
  void drop(int value, int user) {
    std::vector<int> &users = list.values[size_t(value)].users;
    if (auto at = std::find(users.begin(), users.end(), user);
        at != users.end())
      users.erase(at);
  }
  // Nothing is left of it.
  void clear(ActionOp &op) {
    op = {ActionOp::Copy, -1, op.at, Moves::No, 0, {}, {}};
  }

  const Graph &graph;
  ActionOps &list;
};

} // namespace

std::array<ActionOps, kLists> actionOps(const Graph &graph,
                                        const Outcome &outcome,
                                        const layout::AxisMap &mesh,
                                        const std::vector<int> &home,
                                        bool joinPads) {
  ValueOrigins unused;
  return actionOps(graph, outcome, mesh, home, joinPads,
                   convertedOnce(graph, outcome, false), unused);
}

std::array<ActionOps, kLists>
actionOps(const Graph &graph, const Outcome &outcome,
          const layout::AxisMap &mesh, const std::vector<int> &home,
          bool joinPads, const std::vector<char> &once, ValueOrigins &origins) {
  std::array<ActionOps, kLists> lists =
      Lister(graph, outcome, mesh, home, once).run(&origins);
  if (joinPads)
    for (ActionOps &list : lists)
      PadJoiner(graph, list).run();
  return lists;
}

} // namespace merak::planning
