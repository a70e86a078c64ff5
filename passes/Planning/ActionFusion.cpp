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
    takeEpilogues();
    if (options.gpu)
      joinSums();
    std::erase_if(groups, [](const Group &group) { return group.empty(); });
    return {std::move(groups), std::move(products), std::move(unused)};
  }

private:
  const ActionValue &valueOf(int value) const {
    return list.values[size_t(value)];
  }
  Epilogue roleOf(int op) const {
    const GraphOp *of = opOf(op);
    return of && list.ops[size_t(op)].moves == Moves::No ? of->epilogue
                                                         : Epilogue::None;
  }

  // The loops of an op with the sizes of this device.
  std::optional<Loops> loopsOf(int number) const {
    const ActionOp &op = list.ops[size_t(number)];
    const GraphOp *of = opOf(number);
    if (!of || !of->loops || op.moves != Moves::No)
      return std::nullopt;
    Loops loops = *of->loops;
    auto take = [&](const std::vector<std::vector<int>> &dims,
                    const std::vector<int> &values) {
      for (size_t i = 0; i < values.size(); ++i)
        for (size_t d = 0; d < dims[i].size(); ++d)
          if (int loop = dims[i][d]; loop != kNoLoop)
            loops.sizes[size_t(loop)] = valueOf(values[i]).shape[d];
    };
    take(loops.operands, op.operands);
    take(loops.results, op.results);
    return loops;
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
    for (size_t i = 0; i < list.ops.size(); ++i)
      ops.push_back(
          {loopsOf(int(i)), list.ops[i].operands, list.ops[i].results, false});
    FusionOp stores; // may all wait
    for (size_t v = 0; v < list.values.size(); ++v)
      if (list.values[v].kept || list.values[v].summed)
        stores.operands.push_back(int(v));
    ops.push_back(std::move(stores));
    FusionOptions rules = fusionFor(options.gpu);
    rules.fuse = options.fuse;
    groups = formFusionGroups(
        ops, rules, [](int, int) { return false; },
        [&](const Group &group) {
          return which == ListOf::U || areAlike(group);
        });
  }

  // The product whose result nothing but one op reads; -1 otherwise.
  int productOf(int value, bool orConvolution = false) const {
    const ActionValue &of = valueOf(value);
    const GraphOp *maker = of.maker >= 0 ? opOf(of.maker) : nullptr;
    bool fits = maker && (!maker->equation.empty() ||
                          (orConvolution && maker->contraction &&
                           costmodel::kernelClass(maker->kernel) == "conv"));
    return fits && of.users.size() == 1 && !of.kept && !of.summed ? of.maker
                                                                  : -1;
  }
  int resultOf(int op) const { return list.ops[size_t(op)].results[0]; }

  // The gradient of a weight is converted to f32.
  FusedProduct matchCast(const Group &group) const {
    for (int op : group) {
      if (which != ListOf::W || roleOf(op) != Epilogue::Cast)
        continue;
      int from = list.ops[size_t(op)].operands[0];
      const ActionValue &x = valueOf(from), &y = valueOf(resultOf(op));
      if (!x.isFloat || !y.isFloat || x.elementBytes != 2 ||
          y.elementBytes != 4)
        continue;
      FusedProduct found;
      found.op = productOf(from, true);
      if (found.op < 0 && options.gpu && x.maker >= 0 &&
          roleOf(x.maker) == Epilogue::Sum && !inGroup(x.maker) &&
          x.users.size() == 1 && !x.kept && !x.summed)
        found.op = x.maker;
      found.result = resultOf(op);
      found.ops = {op};
      if (found.op >= 0)
        return found;
    }
    return {};
  }
  bool inGroup(int op) const {
    return std::any_of(groups.begin(), groups.end(),
                       [&](const Group &group) { return has(group, op); });
  }

  bool isBias(int bias, int whole) const {
    std::vector<int64_t> shape = valueOf(bias).shape;
    const std::vector<int64_t> &all = valueOf(whole).shape;
    shape.erase(shape.begin(),
                std::find_if(shape.begin(), shape.end(),
                             [](int64_t size) { return size != 1; }));
    return !shape.empty() && shape.size() <= all.size() &&
           valueOf(bias).elementBytes == valueOf(whole).elementBytes &&
           std::equal(shape.rbegin(), shape.rend(), all.rbegin()) &&
           valueOf(bias).elements() < valueOf(whole).elements() &&
           !graph.tensors[size_t(valueOf(bias).tensor)].constant;
  }

  // The group adds a bias to a product, or applies GELU, or both; other ops of
  // it do not need the product.
  FusedProduct matchForward(const Group &group) const {
    FusedProduct found;
    int value = -1; // the product, then what was made of it
    for (int op : group) {
      const std::vector<int> &operands = list.ops[size_t(op)].operands;
      if (found.op < 0) {
        for (int operand : operands)
          if (int product = productOf(operand); product >= 0) {
            found.op = product;
            value = operand;
          }
        if (found.op < 0)
          continue; // on the way to a bias
      } else if (!has(operands, value)) {
        for (int operand : operands)
          if (has(found.ops, valueOf(operand).maker))
            return {};
        continue;
      }
      if (roleOf(op) == Epilogue::Bias) {
        int other = operands[0] == value ? operands[1] : operands[0];
        if (found.bias >= 0 || found.gelu || other == value ||
            valueOf(resultOf(op)).shape != valueOf(value).shape ||
            !isBias(other, value))
          return {};
        found.bias = other;
      } else if (roleOf(op) == Epilogue::Gelu && !found.gelu) {
        found.gelu = true;
        found.argument = value;
      } else {
        return {};
      }
      value = resultOf(op);
      found.ops.push_back(op);
    }
    if (found.op < 0 || !valueOf(value).isFloat ||
        valueOf(value).elementBytes == 8)
      return {};
    found.result = value;
    if (found.argument >= 0 && valueOf(found.argument).users.size() == 1 &&
        !valueOf(found.argument).kept)
      found.argument = -1;
    return found;
  }

  // The gradient of a product's operand on its way through GELU.
  FusedProduct matchGradient(const Group &group) const {
    for (int op : group) {
      if (roleOf(op) != Epilogue::GeluGradient)
        continue;
      const ActionValue &result = valueOf(resultOf(op));
      bool leaves = result.kept || result.summed;
      for (int user : result.users)
        leaves |= !has(group, user);
      FusedProduct found;
      for (int operand : list.ops[size_t(op)].operands)
        if (int product = productOf(operand); product >= 0)
          found.op = product;
        else
          found.argument = operand;
      if (found.op < 0 || found.argument < 0 || !leaves ||
          has(group, valueOf(found.argument).maker))
        continue;
      found.slope = true;
      found.result = resultOf(op);
      found.ops = {op};
      return found;
    }
    return {};
  }

  void takeEpilogues() {
    auto take = [&](Group &group, FusedProduct found) {
      if (found.op < 0)
        return false;
      std::erase_if(group, [&](int op) { return has(found.ops, op); });
      found.last = found.ops.back();
      products.push_back(std::move(found));
      return true;
    };
    for (Group &group : groups) {
      while (take(group, matchCast(group))) {
      }
      if (options.gpu && !take(group, matchForward(group)))
        take(group, matchGradient(group));
    }
  }

  // Sums of what a product reads anyway, over all that its result lacks of it.
  void joinSums() {
    std::set<int> grouped;
    for (const Group &group : groups)
      grouped.insert(group.begin(), group.end());
    for (size_t i = 0; i < list.ops.size(); ++i)
      if (roleOf(int(i)) == Epilogue::Sum && !grouped.count(int(i)))
        joinSum(int(i));
    std::erase_if(products, [](const FusedProduct &p) { return p.op < 0; });
  }

  FusedProduct *known(int op) {
    for (FusedProduct &product : products)
      if (product.op == op)
        return &product;
    return nullptr;
  }
  FusedProduct taken(int op) {
    if (FusedProduct *product = known(op))
      return *product;
    FusedProduct plain;
    plain.op = plain.last = op;
    plain.result = resultOf(op);
    return plain;
  }
  bool sumsTheRest(int sum, int product, size_t operand) const {
    const std::string &equation = opOf(product)->equation;
    size_t comma = equation.find(','), arrow = equation.find("->");
    std::string own = operand == 0
                          ? equation.substr(0, comma)
                          : equation.substr(comma + 1, arrow - comma - 1);
    std::string out = equation.substr(arrow + 2);
    const std::vector<bool> &reduced = opOf(sum)->loops->reduced;
    bool any = false;
    for (size_t d = 0; d < own.size() && d < reduced.size(); ++d) {
      bool lacks = out.find(own[d]) == std::string::npos;
      if (lacks != reduced[d])
        return false;
      any |= lacks;
    }
    return any && own.size() == reduced.size();
  }

  void joinSum(int sum) {
    if (!opOf(sum)->loops)
      return;
    int source = list.ops[size_t(sum)].operands[0], cast = -1;
    if (int maker = valueOf(source).maker; maker >= 0 &&
                                           roleOf(maker) == Epilogue::Cast &&
                                           valueOf(source).elementBytes == 4) {
      int from = list.ops[size_t(maker)].operands[0];
      if (valueOf(from).isFloat && valueOf(from).elementBytes == 2) {
        cast = maker;
        source = from;
      }
    }
    for (int reader : valueOf(source).users) {
      const GraphOp *of = opOf(reader);
      const std::vector<int> &operands = list.ops[size_t(reader)].operands;
      if (!of || of->equation.empty() || operands[0] == operands[1] ||
          !sumsTheRest(sum, reader, operands[0] == source ? 0 : 1))
        continue;
      FusedProduct joined = taken(reader), other = taken(sum);
      if (joined.bias >= 0 || joined.gelu || joined.slope || joined.sums >= 0 ||
          other.sums >= 0)
        continue;
      joined.sums = other.result;
      joined.ops.push_back(sum);
      joined.ops.insert(joined.ops.end(), other.ops.begin(), other.ops.end());
      std::sort(joined.ops.begin(), joined.ops.end());
      joined.last = std::max(reader, joined.ops.back());
      if (FusedProduct *old = known(sum))
        old->op = -1;
      keep(std::move(joined));
      return dropUnused(cast);
    }
    if (cast < 0)
      return;
    FusedProduct alone = taken(sum);
    alone.source = source;
    keep(std::move(alone));
    dropUnused(cast);
  }
  void keep(FusedProduct product) {
    if (FusedProduct *old = known(product.op))
      *old = std::move(product);
    else
      products.push_back(std::move(product));
  }
  // A conversion that only the sum has read.
  void dropUnused(int cast) {
    if (cast < 0 || valueOf(resultOf(cast)).users.size() != 1 ||
        valueOf(resultOf(cast)).kept)
      return;
    for (Group &group : groups)
      std::erase(group, cast);
    unused.insert(cast);
  }

  const GraphOp *opOf(int op) const { return list.opOf(graph, op); }

  std::vector<Group> groups;
  std::vector<FusedProduct> products;
  std::set<int> unused;
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
