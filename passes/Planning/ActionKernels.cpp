#include "passes/Planning/ActionKernels.h"

#include "passes/CostModel/Describe.h"
#include "passes/Planning/FusionGroups.h"
#include "passes/Planning/Strides.h"

#include <algorithm>
#include <map>
#include <set>

namespace merak::planning {

namespace {

using Group = std::vector<int>; // ops, in order

bool has(const std::vector<int> &list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// A product with what it does besides: see passes/Lowering/Epilogues.h.
struct Product {
  int op = -1;
  Group ops;       // besides
  int last = -1;   // where it runs
  int result = -1; // values
  int source = -1; // read in place of its operand; -1: that
  int bias = -1, argument = -1, sums = -1;
  bool gelu = false, slope = false;
};

class Fuser {
public:
  Fuser(const Graph &graph, const ActionOps &list, ListOf which,
        const KernelOptions &options)
      : graph(graph), list(list), which(which), options(options) {}

  std::vector<Group> groups;
  std::vector<Product> products;
  std::set<int> unused;

  void run() {
    formGroups();
    takeEpilogues();
    if (options.gpu)
      joinSums();
    std::erase_if(groups, [](const Group &group) { return group.empty(); });
  }

  const GraphOp *opOf(int op) const {
    const ActionOp &of = list.ops[size_t(op)];
    return of.kind == ActionOp::Op ? &graph.ops[size_t(of.index)] : nullptr;
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
  Product matchCast(const Group &group) const {
    for (int op : group) {
      if (which != ListOf::W || roleOf(op) != Epilogue::Cast)
        continue;
      int from = list.ops[size_t(op)].operands[0];
      const ActionValue &x = valueOf(from), &y = valueOf(resultOf(op));
      if (!x.isFloat || !y.isFloat || x.elementBytes != 2 ||
          y.elementBytes != 4)
        continue;
      Product found;
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
  Product matchForward(const Group &group) const {
    Product found;
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
  Product matchGradient(const Group &group) const {
    for (int op : group) {
      if (roleOf(op) != Epilogue::GeluGradient)
        continue;
      const ActionValue &result = valueOf(resultOf(op));
      bool leaves = result.kept || result.summed;
      for (int user : result.users)
        leaves |= !has(group, user);
      Product found;
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
    auto take = [&](Group &group, Product found) {
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
    std::erase_if(products, [](const Product &p) { return p.op < 0; });
  }

  Product *known(int op) {
    for (Product &product : products)
      if (product.op == op)
        return &product;
    return nullptr;
  }
  Product taken(int op) {
    if (Product *product = known(op))
      return *product;
    Product plain;
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
      Product joined = taken(reader), other = taken(sum);
      if (joined.bias >= 0 || joined.gelu || joined.slope || joined.sums >= 0 ||
          other.sums >= 0)
        continue;
      joined.sums = other.result;
      joined.ops.push_back(sum);
      joined.ops.insert(joined.ops.end(), other.ops.begin(), other.ops.end());
      std::sort(joined.ops.begin(), joined.ops.end());
      joined.last = std::max(reader, joined.ops.back());
      if (Product *old = known(sum))
        old->op = -1;
      keep(std::move(joined));
      return dropUnused(cast);
    }
    if (cast < 0)
      return;
    Product alone = taken(sum);
    alone.source = source;
    keep(std::move(alone));
    dropUnused(cast);
  }
  void keep(Product product) {
    if (Product *old = known(product.op))
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

  const Graph &graph;
  const ActionOps &list;
  ListOf which;
  const KernelOptions &options;
};

class Writer {
public:
  Writer(const Graph &graph, const Outcome &outcome, const ActionOps &list,
         ListOf which, const KernelOptions &options)
      : outcome(outcome), list(list), which(which), options(options),
        fuser(graph, list, which, options), graph(graph) {}

  ListKernels run() {
    out.ops.resize(list.ops.size());
    out.inRegisters.assign(list.values.size(), 0);
    strides.resize(list.values.size());
    for (size_t v = 0; v < list.values.size(); ++v)
      strides[v] = denseStrides(list.values[v].shape);
    assignDestinations();
    fuser.run();
    std::map<int, const Group *> groupAt;
    std::map<int, const Product *> productAt;
    std::set<int> inside = fuser.unused;
    for (const Group &group : fuser.groups) {
      groupAt[group.back()] = &group;
      inside.insert(group.begin(), group.end());
    }
    for (const Product &product : fuser.products) {
      productAt[product.last] = &product;
      inside.insert(product.ops.begin(), product.ops.end());
      inside.insert(product.op);
    }
    for (int i = 0; i < int(list.ops.size()); ++i) {
      if (auto group = groupAt.find(i); group != groupAt.end())
        writeGroup(*group->second);
      else if (auto product = productAt.find(i); product != productAt.end())
        writeProduct(*product->second);
      else if (!inside.count(i))
        writeOp(i);
    }
    return std::move(out);
  }

private:
  using Strides = std::vector<int64_t>;
  struct Destination {
    Strides strides;
    bool sum = false;
  };

  const ActionValue &valueOf(int value) const {
    return list.values[size_t(value)];
  }
  int resultOf(int op) const { return list.ops[size_t(op)].results[0]; }

  // ----------------------------------------------------------- destinations

  // Values that others want are written where they want them, parts of a
  // concatenation into it (passes/Lowering/ActionDestinations.cpp).
  void assignDestinations() {
    for (size_t i = list.ops.size(); i-- > 0;) {
      const ActionOp &op = list.ops[i];
      for (int value : op.results) {
        const ActionValue &of = valueOf(value);
        Strides dense = denseStrides(of.shape);
        if (of.summed && assign(value, dense, true))
          honoured.insert({value, true});
        if (of.kept && assign(value, dense, false))
          honoured.insert({value, false});
      }
      if (op.moves == Moves::Concat && !op.results.empty())
        assignParts(op);
    }
  }
  void assignParts(const ActionOp &op) {
    Strides whole = denseStrides(valueOf(op.results[0]).shape);
    if (auto found = destinations.find(op.results[0]);
        found != destinations.end() && !found->second.sum)
      whole = found->second.strides;
    for (int part : op.operands)
      if (assign(part, whole, false))
        inPlace.insert(part);
  }

  bool assign(int value, const Strides &target, bool sum) {
    const ActionValue &of = valueOf(value);
    if (of.maker < 0 || destinations.count(value))
      return false;
    const ActionOp &op = list.ops[size_t(of.maker)];
    if (op.kind == ActionOp::Load)
      return false;
    const GraphOp *graphOp = fuser.opOf(of.maker);
    // Adding in place leaves no value for other users.
    if (sum && (!of.users.empty() || of.kept))
      return false;
    bool done = false;
    if (op.moves == Moves::Reshape) {
      const std::vector<int64_t> &from = valueOf(op.operands[0]).shape;
      auto there = reshapedStrides(of.shape, target, from);
      done = there && assignSource(op.operands[0], *there, sum);
    } else if (op.moves == Moves::Transpose) {
      Strides there = target;
      for (size_t d = 0; d < graphOp->perm.size(); ++d)
        there[size_t(graphOp->perm[d])] = target[d];
      done = assignSource(op.operands[0], there, sum);
    }
    if (done)
      return true;
    if (sum && (op.moves == Moves::Reshape || op.moves == Moves::Transpose ||
                op.moves == Moves::Slice || op.moves == Moves::Expand ||
                !graphOp || !graphOp->addsInPlace))
      return false;
    destinations[value] = {target, sum};
    return true;
  }
  // A view's source; the view is its one use then.
  bool assignSource(int value, const Strides &target, bool sum) {
    const ActionValue &of = valueOf(value);
    if (!sum)
      return assign(value, target, false);
    if (of.users.size() != 1 || of.kept || of.maker < 0 ||
        destinations.count(value))
      return false;
    const ActionOp &op = list.ops[size_t(of.maker)];
    const GraphOp *graphOp = fuser.opOf(of.maker);
    if (op.moves != Moves::No || !graphOp || !graphOp->addsInPlace)
      return false;
    destinations[value] = {target, true};
    return true;
  }

  // ---------------------------------------------------------------- kernels

  std::string dtypeOf(int value) const {
    const ActionValue &of = valueOf(value);
    if (!of.isFloat)
      return "i" + std::to_string(8 * of.elementBytes);
    return of.elementBytes == 2 ? "bf16" : of.elementBytes == 8 ? "f64" : "f32";
  }
  double flopsOf(int op) const {
    const ActionOp &of = list.ops[size_t(op)];
    if (of.kind != ActionOp::Op)
      return 0;
    return outcome.ops[size_t(of.index)].localFlops /
           (which == ListOf::U ? 1 : options.microbatches);
  }
  void add(int at, costmodel::Kernel kernel) {
    out.ops[size_t(at)].kernels.push_back(std::move(kernel));
  }
  void copy(int at, int value, const Strides &from, const Strides &to) {
    const ActionValue &of = valueOf(value);
    costmodel::Kernel kernel;
    kernel.name = costmodel::copyName(of.shape, from, to);
    kernel.bytes = 2 * of.bytes();
    kernel.dtype = dtypeOf(value);
    add(at, std::move(kernel));
  }
  void fill(int at, double bytes, const std::string &dtype) {
    add(at, {.name = "fill", .bytes = bytes, .dtype = dtype});
  }

  // Constants that the op does not take as immediate values.
  void fillOperands(int op) {
    const GraphOp *of = fuser.opOf(op);
    if (list.ops[size_t(op)].moves == Moves::Concat || (of && of->pointwise))
      return;
    for (int value : list.ops[size_t(op)].operands)
      if (valueOf(value).splat && filled.insert(value).second)
        fill(op, valueOf(value).elementBytes, dtypeOf(value));
  }

  bool isSum(int value) const {
    auto it = destinations.find(value);
    return it != destinations.end() && it->second.sum;
  }
  bool areSums(const std::vector<int> &values) const {
    return std::all_of(values.begin(), values.end(),
                       [&](int value) { return isSum(value); });
  }

  // Where an instruction's results are left, and what copies that takes.
  void finish(int at, const std::vector<int> &results) {
    const bool sums = areSums(results);
    for (int value : results) {
      auto it = destinations.find(value);
      if (it != destinations.end() && !it->second.sum)
        strides[size_t(value)] = it->second.strides;
      else if (it != destinations.end() && !sums)
        copy(at, value, strides[size_t(value)], it->second.strides);
    }
  }
  // Stores that no instruction did itself.
  void store(int at, const std::vector<int> &results) {
    for (int value : results) {
      const ActionValue &of = valueOf(value);
      Strides dense = denseStrides(of.shape);
      if (of.summed && !honoured.count({value, true}))
        copy(at, value, strides[size_t(value)], dense);
      if (of.kept && !honoured.count({value, false}))
        copy(at, value, strides[size_t(value)], dense);
    }
  }

  void writeGroup(const Group &group) {
    const int at = group.back();
    std::set<int> inputs;
    std::vector<int> outputs, results;
    int first = -1;
    costmodel::Kernel kernel;
    double most = 0, written = 0;
    for (int op : group) {
      kernel.flops += flopsOf(op);
      for (int value : list.ops[size_t(op)].operands)
        if (!has(group, valueOf(value).maker) && !valueOf(value).splat &&
            inputs.insert(value).second) {
          first = first < 0 ? value : first;
          kernel.bytes += valueOf(value).bytes();
          most = std::max(most, valueOf(value).elements());
        }
      for (int value : list.ops[size_t(op)].results) {
        const ActionValue &of = valueOf(value);
        results.push_back(value);
        bool wanted =
            destinations.count(value) || op == at || of.kept || of.summed;
        for (int user : of.users)
          wanted |= !has(group, user);
        out.inRegisters[size_t(value)] = !wanted;
        if (!wanted)
          continue;
        outputs.push_back(value);
        kernel.bytes += of.bytes();
        written = std::max(written, of.elements());
      }
    }
    // What it adds to is read, too.
    if (options.microbatches > 1 && which != ListOf::U && areSums(outputs))
      for (int value : outputs)
        kernel.bytes += valueOf(value).bytes();
    kernel.name = costmodel::generatedName(most, written);
    kernel.dtype = dtypeOf(first >= 0 ? first : outputs.front());
    for (int op : group)
      fillOperands(op);
    for (int op : group)
      if (op != at && !out.ops[size_t(op)].kernels.empty()) {
        for (costmodel::Kernel &each : out.ops[size_t(op)].kernels)
          add(at, each);
        out.ops[size_t(op)].kernels.clear();
      }
    add(at, std::move(kernel));
    out.ops[size_t(at)].members = group;
    finish(at, outputs);
    store(at, results);
  }

  costmodel::Kernel library(int op, const std::vector<int> &inputs,
                            const std::vector<int> &outputs) const {
    const GraphOp &of = *fuser.opOf(op);
    costmodel::Kernel kernel;
    kernel.name = of.kernel;
    kernel.flops = flopsOf(op);
    std::vector<costmodel::Sizes> in, to;
    for (int value : inputs) {
      kernel.bytes += valueOf(value).bytes();
      in.push_back(valueOf(value).shape);
    }
    for (int value : outputs) {
      kernel.bytes += valueOf(value).bytes();
      to.push_back(valueOf(value).shape);
    }
    if (!inputs.empty() || !outputs.empty())
      kernel.dtype = dtypeOf(inputs.empty() ? outputs[0] : inputs[0]);
    costmodel::describeLibrary(of.kernel.substr(0, of.kernel.find(':')),
                               of.equation, in, to, kernel);
    return kernel;
  }

  void writeProduct(const Product &product) {
    const int at = product.last;
    fillOperands(product.op);
    for (costmodel::Kernel &each : out.ops[size_t(product.op)].kernels)
      if (product.op != at)
        add(at, each);
    if (product.op != at)
      out.ops[size_t(product.op)].kernels.clear();
    std::vector<int> inputs = list.ops[size_t(product.op)].operands;
    if (product.source >= 0)
      inputs = {product.source};
    std::vector<int> outputs = {product.result};
    if (product.sums >= 0)
      outputs.push_back(product.sums);
    if (product.bias >= 0)
      inputs.push_back(product.bias);
    if (product.argument >= 0)
      (product.slope ? inputs : outputs).push_back(product.argument);
    costmodel::Kernel kernel = library(product.op, inputs, outputs);
    for (int op : product.ops)
      kernel.flops += flopsOf(op);
    add(at, std::move(kernel));
    out.ops[size_t(at)].members = product.ops;
    out.ops[size_t(at)].members.push_back(product.op);
    finish(at, outputs);
    std::vector<int> results;
    for (int op : out.ops[size_t(at)].members)
      for (int value : list.ops[size_t(op)].results) {
        results.push_back(value);
        out.inRegisters[size_t(value)] = !has(outputs, value);
      }
    store(at, results);
  }

  void writeOp(int number) {
    const ActionOp &op = list.ops[size_t(number)];
    if (op.kind == ActionOp::Load) {
      add(number, {.name = "copy",
                   .bytes = valueOf(op.results[0]).bytes(),
                   .dtype = dtypeOf(op.results[0])});
    } else if (op.kind == ActionOp::Copy) {
      for (int value : op.operands)
        copy(number, value, strides[size_t(value)], strides[size_t(value)]);
    } else if (op.kind == ActionOp::Conversion) {
      writeConversion(number);
    } else {
      fillOperands(number);
      writeMove(number);
    }
    store(number, op.results);
  }

  // Taking one's part copies it, from where the rank's coordinate says.
  void writeConversion(int number) {
    const ActionOp &op = list.ops[size_t(number)];
    const Conversion &conversion = outcome.conversions[size_t(op.index)];
    if (conversion.kind == ConversionKind::Slice &&
        valueOf(op.results[0]).elements() < valueOf(op.operands[0]).elements())
      add(number, {.name = "slice",
                   .bytes = valueOf(op.operands[0]).bytes() +
                            valueOf(op.results[0]).bytes(),
                   .dtype = dtypeOf(op.results[0])});
    finish(number, op.results);
  }

  void setView(int number, int value, const Strides &view) {
    auto found = destinations.find(value);
    strides[size_t(value)] = view;
    if (found == destinations.end())
      return;
    copy(number, value, view, found->second.strides);
    strides[size_t(value)] = found->second.strides;
  }

  void writeMove(int number) {
    const ActionOp &op = list.ops[size_t(number)];
    const GraphOp &of = *fuser.opOf(number);
    const int result = op.results.empty() ? -1 : op.results[0];
    const int x = op.operands.empty() ? -1 : op.operands[0];
    switch (op.moves) {
    case Moves::Reshape: {
      auto view = reshapedStrides(valueOf(x).shape, strides[size_t(x)],
                                  valueOf(result).shape);
      if (!view)
        copy(number, x, strides[size_t(x)], denseStrides(valueOf(x).shape));
      bool direct = !view && destinations.count(result);
      if (!direct)
        setView(number, result,
                view ? *view : denseStrides(valueOf(result).shape));
      return;
    }
    case Moves::Transpose: {
      Strides view;
      for (int64_t d : of.perm)
        view.push_back(strides[size_t(x)][size_t(d)]);
      return setView(number, result, view);
    }
    case Moves::Slice: {
      Strides view = strides[size_t(x)];
      for (size_t d = 0; d < view.size(); ++d)
        view[d] *= of.steps[d];
      return setView(number, result, view);
    }
    case Moves::Expand: {
      const std::vector<int64_t> &to = valueOf(result).shape;
      const std::vector<int64_t> &own = valueOf(x).shape;
      Strides view(to.size(), 0);
      size_t lead = to.size() - own.size();
      for (size_t d = 0; d < own.size(); ++d)
        if (own[d] == to[lead + d])
          view[lead + d] = strides[size_t(x)][d];
      return setView(number, result, view);
    }
    case Moves::Pad:
      fill(number, valueOf(result).bytes(), dtypeOf(result));
      copy(number, x, strides[size_t(x)], denseStrides(valueOf(result).shape));
      return finish(number, op.results);
    case Moves::Concat:
      return writeConcat(number);
    case Moves::No:
      add(number, library(number, op.operands, op.results));
      return finish(number, op.results);
    }
  }

  void writeConcat(int number) {
    const ActionOp &op = list.ops[size_t(number)];
    const int result = op.results[0];
    double run = 0; // bytes of neighbours that are one splat
    for (int part : op.operands) {
      if (valueOf(part).splat) {
        run += valueOf(part).bytes();
        continue;
      }
      if (run > 0)
        fill(number, run, dtypeOf(result));
      run = 0;
      if (!inPlace.count(part))
        copy(number, part, strides[size_t(part)],
             denseStrides(valueOf(result).shape));
    }
    if (run > 0)
      fill(number, run, dtypeOf(result));
    auto found = destinations.find(result);
    if (found != destinations.end() && !found->second.sum)
      strides[size_t(result)] = found->second.strides;
  }

  const Outcome &outcome;
  const ActionOps &list;
  ListOf which;
  const KernelOptions &options;
  Fuser fuser;
  const Graph &graph;
  std::vector<Strides> strides; // by value
  std::map<int, Destination> destinations;
  std::set<std::pair<int, bool>> honoured; // stores: value, of a sum
  std::set<int> inPlace, filled;
  ListKernels out;
};

} // namespace

ListKernels kernelsOf(const Graph &graph, const Outcome &outcome,
                      const ActionOps &list, ListOf which,
                      const KernelOptions &options) {
  return Writer(graph, outcome, list, which, options).run();
}

} // namespace merak::planning
