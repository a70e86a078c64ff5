#include "passes/Planning/ActionFusion.h"

#include "passes/Planning/FusionGroups.h"

#include <algorithm>

namespace merak::planning {

namespace {

using Group = std::vector<int>; // ops, in order

class Fuser {
public:
  Fuser(const Graph &graph, const ActionOps &list, ListOf which,
        const KernelOptions &options)
      : graph(graph), list(list), which(which), options(options) {}

  ActionFusion run() {
    formGroups();
    Epilogues found = takeEpilogues(epilogueList(), groups, options.gpu,
                                    {[](int, int) { return true; },
                                     [](int, int) { return true; },
                                     [](const std::vector<int> &, int) {}});
    return {std::move(groups),
            std::move(found.products),
            {found.unused.begin(), found.unused.end()}};
  }

private:
  const ActionValue &valueOf(int value) const {
    return list.values[size_t(value)];
  }
  // The loops of an op with the sizes of this device.
  FusionOp fusionOp(int number) const {
    const ActionOp &op = list.ops[size_t(number)];
    FusionOp out{nullptr, {}, op.operands, op.results, false};
    const GraphOp *of = opOf(number);
    if (!of || !of->loops || op.moves != Moves::No)
      return out;
    out.loops = &*of->loops;
    out.sizes = of->loops->sizes;
    auto take = [&](const std::vector<std::vector<int>> &dims,
                    const std::vector<int> &values) {
      for (size_t i = 0; i < values.size(); ++i)
        for (size_t d = 0; d < dims[i].size(); ++d)
          if (int loop = dims[i][d]; loop != kNoLoop)
            out.sizes[size_t(loop)] = valueOf(values[i]).shape[d];
    };
    take(of->loops->operands, op.operands);
    take(of->loops->results, op.results);
    return out;
  }

  // What is equal on all ranks does not wait, in one kernel, for what is not.
  bool areAlike(const Group &group) const {
    unsigned read = 0;
    for (int op : group)
      for (int value : list.ops[size_t(op)].operands)
        if (!has(group, valueOf(value).maker))
          read |= valueOf(value).axes;
    for (int op : group)
      for (int value : list.ops[size_t(op)].results) {
        const ActionValue &of = valueOf(value);
        bool inside = !of.kept && !of.summed;
        for (int user : of.users)
          inside &= has(group, user);
        if (!inside && (of.axes & read) != read)
          return false;
      }
    return true;
  }

  void formGroups() {
    std::vector<FusionOp> ops;
    ops.reserve(list.ops.size() + 1);
    for (size_t i = 0; i < list.ops.size(); ++i)
      ops.push_back(fusionOp(int(i)));
    FusionOp stores; // may all wait
    for (size_t v = 0; v < list.values.size(); ++v)
      if (list.values[v].kept || list.values[v].summed)
        stores.operands.push_back(int(v));
    ops.push_back(std::move(stores));
    groups = formFusionGroups(
        ops, fusionFor(options.gpu), [](int, int) { return false; },
        [&](const Group &group) {
          return which == ListOf::U || areAlike(group);
        });
  }

  // The rule's view of the list. Stores have no place in it: they may all wait.
  EpilogueList epilogueList() const {
    EpilogueList out;
    out.ops.reserve(list.ops.size());
    out.values.reserve(list.values.size());
    for (size_t i = 0; i < list.ops.size(); ++i)
      out.ops.push_back(describe(int(i)));
    for (const ActionValue &value : list.values)
      out.values.push_back(describe(value));
    return out;
  }
  EpilogueOp describe(int number) const {
    const ActionOp &op = list.ops[size_t(number)];
    EpilogueOp out;
    out.operands = op.operands;
    out.results = op.results;
    out.reshapes = op.moves == Moves::Reshape;
    const GraphOp *of = opOf(number);
    if (!of || op.moves != Moves::No)
      return out;
    out.role = of->epilogue;
    out.equation = of->equation;
    out.widensResult = of->widensResult;
    out.weightGradient = of->weightGradient;
    if (of->epilogue == Epilogue::Sum && of->loops)
      out.sums = of->loops->reduced; // a loop for each dimension
    return out;
  }
  EpilogueValue describe(const ActionValue &value) const {
    EpilogueValue out;
    out.shape = value.shape;
    out.isFloat = value.isFloat;
    out.bits = 8 * value.elementBytes;
    out.maker = value.maker;
    out.users = value.users;
    std::sort(out.users.begin(), out.users.end());
    out.otherUses = value.kept + value.summed + value.updates;
    out.constant = graph.tensors[size_t(value.tensor)].constant;
    out.named = value.updates;
    return out;
  }

  const GraphOp *opOf(int op) const { return list.opOf(graph, op); }

  std::vector<Group> groups;
  const Graph &graph;
  const ActionOps &list;
  ListOf which;
  const KernelOptions &options;
};

} // namespace

ActionFusion fuseActions(const Graph &graph, const ActionOps &list,
                         ListOf which, const KernelOptions &options) {
  return Fuser(graph, list, which, options).run();
}

} // namespace merak::planning
