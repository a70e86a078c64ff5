#include "passes/Planning/ActionKernels.h"

#include "passes/CostModel/Describe.h"
#include "passes/Planning/ActionFusion.h"
#include "runtime/layout/Strides.h"
#include "runtime/plan/LibraryKernels.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace merak::planning {

namespace {

using Group = std::vector<int>; // ops, in order

class Writer {
public:
  Writer(const Graph &graph, const Outcome &outcome, const ActionOps &list,
         ListOf which, const KernelOptions &options)
      : outcome(outcome), list(list), which(which), options(options),
        fusion(fuseActions(graph, list, which, options)), graph(graph) {}

  ListKernels run() {
    out.ops.resize(list.ops.size());
    out.inRegisters.assign(list.values.size(), 0);
    strides.resize(list.values.size());
    destinations.resize(list.values.size());
    honoured.resize(list.values.size());
    for (size_t v = 0; v < list.values.size(); ++v)
      strides[v] = layout::denseStrides(list.values[v].shape);
    assignDestinations();
    std::vector<const Group *> groupAt(list.ops.size(), nullptr);
    std::vector<const FusedProduct *> productAt(list.ops.size(), nullptr);
    std::vector<char> inside(list.ops.size(), 0);
    for (int op : fusion.unused)
      inside[size_t(op)] = 1;
    for (const Group &group : fusion.groups) {
      groupAt[size_t(group.back())] = &group;
      for (int op : group)
        inside[size_t(op)] = 1;
    }
    for (const FusedProduct &product : fusion.products) {
      productAt[size_t(product.last)] = &product;
      for (int op : product.ops)
        inside[size_t(op)] = 1;
      inside[size_t(product.op)] = 1;
    }
    for (size_t i = 0; i < list.ops.size(); ++i) {
      if (groupAt[i])
        writeGroup(*groupAt[i]);
      else if (productAt[i])
        writeProduct(*productAt[i]);
      else if (!inside[i])
        writeOp(int(i));
    }
    return std::move(out);
  }

private:
  const GraphOp *opOf(int op) const { return list.opOf(graph, op); }
  using Strides = std::vector<int64_t>;
  struct Destination {
    Strides strides;
    bool sum = false;
  };

  const ActionValue &valueOf(int value) const {
    return list.values[size_t(value)];
  }
  const std::optional<Destination> &destinationOf(int value) const {
    return destinations[size_t(value)];
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
        Strides dense = layout::denseStrides(of.shape);
        if (of.summed)
          honoured[size_t(value)].sum = assign(value, dense, true);
        if (of.kept)
          honoured[size_t(value)].kept = assign(value, dense, false);
      }
      if (op.moves == Moves::Concat && !op.results.empty())
        assignParts(op);
    }
  }
  void assignParts(const ActionOp &op) {
    Strides whole = layout::denseStrides(valueOf(op.results[0]).shape);
    if (const auto &found = destinationOf(op.results[0]); found && !found->sum)
      whole = found->strides;
    for (int part : op.operands)
      if (assign(part, whole, false))
        inPlace.insert(part);
  }

  // `uses`: by views on the way to where it goes.
  bool assign(int value, const Strides &target, bool sum, size_t uses = 0) {
    const ActionValue &of = valueOf(value);
    if (of.maker < 0 || destinationOf(value))
      return false;
    const ActionOp &op = list.ops[size_t(of.maker)];
    if (op.kind == ActionOp::Load)
      return false;
    const GraphOp *graphOp = opOf(of.maker);
    // Adding in place leaves no value for other users.
    if (sum && (of.users.size() != uses || of.kept))
      return false;
    bool done = false;
    if (op.moves == Moves::Reshape) {
      const std::vector<int64_t> &from = valueOf(op.operands[0]).shape;
      auto there = layout::reshapedStrides(of.shape, target, from);
      done = there && assign(op.operands[0], *there, sum, 1);
    } else if (op.moves == Moves::Transpose) {
      Strides there = target;
      for (size_t d = 0; d < graphOp->perm.size(); ++d)
        there[size_t(graphOp->perm[d])] = target[d];
      done = assign(op.operands[0], there, sum, 1);
    }
    if (done)
      return true;
    if (sum && (op.moves == Moves::Reshape || op.moves == Moves::Transpose ||
                op.moves == Moves::Slice || op.moves == Moves::Expand ||
                !graphOp || !graphOp->addsInPlace))
      return false;
    destinations[size_t(value)] = {target, sum};
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
  void add(int at, costmodel::Kernel work, double whole = 0) {
    out.ops[size_t(at)].kernels.push_back({std::move(work), whole});
  }
  void moveKernels(int from, int to) {
    if (from == to)
      return;
    std::vector<ActionKernel> moved =
        std::exchange(out.ops[size_t(from)].kernels, {});
    std::move(moved.begin(), moved.end(),
              std::back_inserter(out.ops[size_t(to)].kernels));
  }
  // Adds the bytes of the distinct elements of an operand.
  void touch(int value, costmodel::Kernel &work, double &whole) const {
    const ActionValue &of = valueOf(value);
    double bytes = of.elementBytes;
    for (size_t d = 0; d < of.shape.size(); ++d)
      bytes *= strides[size_t(value)][d] == 0 ? 1 : double(of.shape[d]);
    work.bytes += bytes;
    if (!(options.tokens ? of.ofTokens : of.ofSamples))
      whole += bytes;
  }
  // What an instruction adds to is read, too; not what a library kernel writes
  // in the first microbatch (passes/Lowering/WriteSums.cpp).
  void touchSums(const std::vector<int> &outputs, costmodel::Kernel &work,
                 double &whole, bool isLibrary) const {
    if (options.microbatches <= 1 || which == ListOf::U || !areSums(outputs))
      return;
    costmodel::Kernel more;
    double moreWhole = 0;
    for (int value : outputs)
      touch(value, more, moreWhole);
    const double share = isLibrary ? 1 - 1 / options.microbatches : 1;
    work.bytes += share * more.bytes;
    whole += share * moreWhole;
  }
  void copy(int at, int value, const Strides &from, const Strides &to,
            bool sum = false) {
    const ActionValue &of = valueOf(value);
    costmodel::Kernel kernel;
    double whole = 0;
    kernel.name = costmodel::copyName(of.shape, from, to);
    kernel.dtype = dtypeOf(value);
    for (int times = sum && options.microbatches > 1 ? 3 : 2; times > 0;
         --times)
      touch(value, kernel, whole);
    add(at, std::move(kernel), whole);
  }
  void fill(int at, double bytes, const std::string &dtype) {
    add(at, {.name = "fill", .bytes = bytes, .dtype = dtype});
  }

  // Constants that the op does not take as immediate values.
  void fillOperands(int op) {
    const GraphOp *of = opOf(op);
    if (list.ops[size_t(op)].moves == Moves::Concat || (of && of->pointwise))
      return;
    for (int value : list.ops[size_t(op)].operands)
      if (valueOf(value).splat && filled.insert(value).second)
        fill(op, valueOf(value).elementBytes, dtypeOf(value));
  }

  bool isSum(int value) const {
    return destinationOf(value) && destinationOf(value)->sum;
  }
  bool areSums(const std::vector<int> &values) const {
    return std::all_of(values.begin(), values.end(),
                       [&](int value) { return isSum(value); });
  }

  // Where an instruction's results are left, and what copies that takes.
  void finish(int at, const std::vector<int> &results) {
    const bool sums = areSums(results);
    for (int value : results) {
      const std::optional<Destination> &found = destinationOf(value);
      if (found && !found->sum)
        strides[size_t(value)] = found->strides;
      else if (found && !sums)
        copy(at, value, strides[size_t(value)], found->strides);
    }
  }
  // Stores that no instruction did itself.
  void store(int at, const std::vector<int> &results) {
    for (int value : results) {
      const ActionValue &of = valueOf(value);
      Strides dense = layout::denseStrides(of.shape);
      if (of.summed && !honoured[size_t(value)].sum)
        copy(at, value, strides[size_t(value)], dense, /*sum=*/true);
      if (of.kept && !honoured[size_t(value)].kept)
        copy(at, value, strides[size_t(value)], dense);
    }
  }

  void writeGroup(const Group &group) {
    const int at = group.back();
    std::set<int> inputs;
    std::vector<int> outputs, results;
    int first = -1;
    costmodel::Kernel kernel;
    double most = 0, written = 0, whole = 0;
    for (int op : group) {
      kernel.flops += flopsOf(op);
      for (int value : list.ops[size_t(op)].operands)
        if (!has(group, valueOf(value).maker) && !valueOf(value).splat &&
            inputs.insert(value).second) {
          first = first < 0 ? value : first;
          touch(value, kernel, whole);
          most = std::max(most, valueOf(value).elements());
        }
      for (int value : list.ops[size_t(op)].results) {
        const ActionValue &of = valueOf(value);
        results.push_back(value);
        bool wanted = destinationOf(value) || op == at || of.kept || of.summed;
        for (int user : of.users)
          wanted |= !has(group, user);
        out.inRegisters[size_t(value)] = !wanted;
        if (!wanted)
          continue;
        outputs.push_back(value);
        touch(value, kernel, whole);
        written = std::max(written, of.elements());
      }
    }
    touchSums(outputs, kernel, whole, /*isLibrary=*/false);
    kernel.name = costmodel::generatedName(most, written);
    kernel.dtype = dtypeOf(first >= 0 ? first : outputs.front());
    for (int op : group)
      fillOperands(op);
    for (int op : group)
      moveKernels(op, at);
    add(at, std::move(kernel), whole);
    out.ops[size_t(at)].members = group;
    finish(at, outputs);
    store(at, results);
  }

  ActionKernel library(int op, const std::vector<int> &inputs,
                       const std::vector<int> &outputs) const {
    const GraphOp &of = *opOf(op);
    ActionKernel made;
    costmodel::Kernel &kernel = made.work;
    kernel.name = of.kernel;
    kernel.flops = flopsOf(op);
    const LibraryKernel *known = findLibraryKernel(kernel.name);
    const bool looks = known && known->touches == Touches::Looked;
    std::vector<costmodel::Sizes> in, to;
    for (int value : inputs) {
      const bool part = looks && in.empty() &&
                        valueOf(outputs[0]).bytes() < valueOf(value).bytes();
      touch(part ? outputs[0] : value, kernel, made.wholeBytes);
      in.push_back(valueOf(value).shape);
    }
    for (int value : outputs) {
      touch(value, kernel, made.wholeBytes);
      to.push_back(valueOf(value).shape);
    }
    touchSums(outputs, kernel, made.wholeBytes, /*isLibrary=*/true);
    if (!inputs.empty() || !outputs.empty())
      kernel.dtype = dtypeOf(inputs.empty() ? outputs[0] : inputs[0]);
    costmodel::describeLibrary(of.kernel.substr(0, of.kernel.find(':')),
                               of.equation, in, to, kernel);
    if (of.rounds && in.size() >= 2)
      costmodel::describeRounding(
          in[0], in[1], double(valueOf(inputs[0]).elementBytes), kernel);
    return made;
  }

  void writeProduct(const FusedProduct &product) {
    const int at = product.last;
    fillOperands(product.op);
    moveKernels(product.op, at);
    std::vector<int> inputs = list.ops[size_t(product.op)].operands;
    if (product.source >= 0)
      inputs = {product.source};
    std::vector<int> outputs = {product.result};
    if (product.sums >= 0)
      outputs.push_back(product.sums);
    if (product.bias >= 0)
      inputs.push_back(product.bias);
    if (product.argument >= 0)
      (product.gelu == FusedProduct::Gelu::Gradient ? inputs : outputs)
          .push_back(product.argument);
    ActionKernel kernel = library(product.op, inputs, outputs);
    for (int op : product.ops)
      kernel.work.flops += flopsOf(op);
    out.ops[size_t(at)].kernels.push_back(std::move(kernel));
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

  // Taking one's part copies it, from where the rank's coordinate says, and so
  // does putting a microbatch's part among those of others.
  void writeConversion(int number) {
    const ActionOp &op = list.ops[size_t(number)];
    const Conversion &conversion = outcome.conversions[size_t(op.index)];
    if (conversion.kind == ConversionKind::Slice &&
        valueOf(op.results[0]).elements() < valueOf(op.operands[0]).elements())
      add(number, {.name = "slice",
                   .bytes = valueOf(op.operands[0]).bytes() +
                            valueOf(op.results[0]).bytes(),
                   .dtype = dtypeOf(op.results[0])});
    if (conversion.kind == ConversionKind::Place)
      add(number, {.name = "place",
                   .bytes = 2 * valueOf(op.operands[0]).bytes(),
                   .dtype = dtypeOf(op.results[0])});
    finish(number, op.results);
  }

  void setView(int number, int value, const Strides &view) {
    const std::optional<Destination> &found = destinationOf(value);
    strides[size_t(value)] = view;
    if (!found)
      return;
    copy(number, value, view, found->strides);
    strides[size_t(value)] = found->strides;
  }

  void writeMove(int number) {
    const ActionOp &op = list.ops[size_t(number)];
    const GraphOp &of = *opOf(number);
    const int result = op.results.empty() ? -1 : op.results[0];
    const int x = op.operands.empty() ? -1 : op.operands[0];
    switch (op.moves) {
    case Moves::Reshape: {
      auto view = layout::reshapedStrides(valueOf(x).shape, strides[size_t(x)],
                                          valueOf(result).shape);
      if (!view)
        copy(number, x, strides[size_t(x)],
             layout::denseStrides(valueOf(x).shape));
      bool direct = !view && destinationOf(result);
      if (!direct)
        setView(number, result,
                view ? *view : layout::denseStrides(valueOf(result).shape));
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
      copy(number, x, strides[size_t(x)],
           layout::denseStrides(valueOf(result).shape));
      return finish(number, op.results);
    case Moves::Concat:
      return writeConcat(number);
    case Moves::No:
      out.ops[size_t(number)].kernels.push_back(
          library(number, op.operands, op.results));
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
             layout::denseStrides(valueOf(result).shape));
    }
    if (run > 0)
      fill(number, run, dtypeOf(result));
    const std::optional<Destination> &found = destinationOf(result);
    if (found && !found->sum)
      strides[size_t(result)] = found->strides;
  }

  const Outcome &outcome;
  const ActionOps &list;
  ListOf which;
  const KernelOptions &options;
  ActionFusion fusion;
  const Graph &graph;
  std::vector<Strides> strides;                         // by value
  std::vector<std::optional<Destination>> destinations; // by value
  // By value, stores that the instruction which makes it does.
  struct Honoured {
    bool sum = false, kept = false;
  };
  std::vector<Honoured> honoured;
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
