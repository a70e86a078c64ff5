#include "test/unit/planning/Simulator.h"

#include "dialects/Support/Rules.h"

#include <algorithm>
#include <fmt/format.h>
#include <random>

namespace merak::planning::test {

namespace {

int64_t product(const Shape &shape) {
  int64_t n = 1;
  for (int64_t size : shape)
    n *= size;
  return n;
}

// Calls visit(index) for every index of a box, row major.
void forEach(const Shape &shape,
             const std::function<void(const Shape &)> &visit) {
  Shape index(shape.size(), 0);
  int64_t count = product(shape);
  for (int64_t i = 0; i < count; ++i) {
    visit(index);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++index[d] < shape[d])
        break;
      index[d] = 0;
    }
  }
}

int64_t flat(const Shape &index, const Shape &shape) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    at = at * shape[d] + index[d];
  return at;
}

// Index into a tensor that is broadcast to `index`.
int64_t broadcastFlat(const Shape &index, const Shape &shape) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t i = index[d + index.size() - shape.size()];
    at = at * shape[d] + (shape[d] == 1 ? 0 : i);
  }
  return at;
}

Shape broadcastShape(const Shape &a, const Shape &b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (const Shape *shape : {&a, &b})
    for (size_t d = 0; d < shape->size(); ++d) {
      int64_t &size = out[d + out.size() - shape->size()];
      size = std::max(size, (*shape)[d]);
    }
  return out;
}

// Unsigned arithmetic: sums wrap and stay exact in any order.
int64_t combine(char op, int64_t a, int64_t b) {
  uint64_t x = uint64_t(a), y = uint64_t(b);
  return int64_t(op == '+' ? x + y : op == '-' ? x - y : x * y);
}

int addResult(Program &program, const std::string &name, Shape shape,
              std::vector<int> operands, ShardingRule rule, Kernel kernel) {
  GraphTensor tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  int id = program.graph.addTensor(std::move(tensor));
  GraphOp op;
  op.name = name;
  op.rule = std::move(rule);
  op.operands = std::move(operands);
  op.results = {id};
  program.graph.addOp(std::move(op));
  program.kernels.push_back(std::move(kernel));
  return id;
}

} // namespace

int Program::source(const std::string &name, Shape shape, bool parameter) {
  GraphTensor tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  (parameter ? tensor.parameter : tensor.input) = true;
  return graph.addTensor(std::move(tensor));
}

int Program::unary(const std::string &name, int operand,
                   std::function<int64_t(int64_t)> function,
                   std::vector<std::vector<int>> linear) {
  Shape shape = graph.tensors[operand].shape;
  return addResult(*this, name, shape, {operand},
                   elementwiseRule({shape}, shape, std::move(linear)),
                   [function](auto &operands, auto &, auto &) {
                     Values out = operands[0];
                     for (int64_t &value : out)
                       value = function(value);
                     return std::vector<Values>{out};
                   });
}

int Program::binary(const std::string &name, int a, int b, char op) {
  Shape left = graph.tensors[a].shape, right = graph.tensors[b].shape;
  Shape shape = broadcastShape(left, right);
  std::vector<std::vector<int>> linear = {{0, 1}};
  if (op == '*')
    linear = {{0}, {1}};
  return addResult(*this, name, shape, {a, b},
                   elementwiseRule({left, right}, shape, std::move(linear)),
                   [op](auto &operands, auto &shapes, auto &results) {
                     Values out;
                     forEach(results[0], [&](const Shape &index) {
                       out.push_back(combine(
                           op, operands[0][broadcastFlat(index, shapes[0])],
                           operands[1][broadcastFlat(index, shapes[1])]));
                     });
                     return std::vector<Values>{out};
                   });
}

int Program::einsum(const std::string &name, const std::string &text,
                    std::vector<int> operands, Shape result) {
  std::vector<Shape> shapes;
  for (int id : operands)
    shapes.push_back(graph.tensors[id].shape);
  ShardingRule rule = einsumRule(text, shapes, result);
  size_t arrow = text.find("->");
  std::string ins = text.substr(0, arrow), out = text.substr(arrow + 2);
  std::vector<std::string> letters(1);
  for (char c : ins)
    c == ',' ? letters.emplace_back() : letters.back() += c, void();
  return addResult(
      *this, name, result, operands, rule,
      [letters, out](auto &values, auto &shapes, auto &results) {
        std::string all = out;
        Shape box = results[0];
        for (size_t i = 0; i < letters.size(); ++i)
          for (size_t d = 0; d < letters[i].size(); ++d)
            if (all.find(letters[i][d]) == std::string::npos) {
              all += letters[i][d];
              box.push_back(shapes[i][d]);
            }
        Values sum(product(results[0]), 0);
        forEach(box, [&](const Shape &index) {
          auto at = [&](const std::string &dims, const Shape &shape) {
            Shape own;
            for (char c : dims)
              own.push_back(index[all.find(c)]);
            return flat(own, shape);
          };
          int64_t term = 1;
          for (size_t i = 0; i < letters.size(); ++i)
            term = combine('*', term, values[i][at(letters[i], shapes[i])]);
          int64_t &slot = sum[at(out, results[0])];
          slot = combine('+', slot, term);
        });
        return std::vector<Values>{sum};
      });
}

int Program::reshape(const std::string &name, int operand, Shape to) {
  return addResult(*this, name, to, {operand},
                   reshapeRule(graph.tensors[operand].shape, to),
                   [](auto &operands, auto &, auto &) { return operands; });
}

int Program::transpose(const std::string &name, int operand,
                       std::vector<int64_t> perm) {
  Shape from = graph.tensors[operand].shape, to;
  for (int64_t d : perm)
    to.push_back(from[d]);
  return addResult(*this, name, to, {operand}, transposeRule(from, perm),
                   [perm](auto &operands, auto &shapes, auto &results) {
                     Values out;
                     forEach(results[0], [&](const Shape &index) {
                       Shape source(perm.size());
                       for (size_t d = 0; d < perm.size(); ++d)
                         source[perm[d]] = index[d];
                       out.push_back(operands[0][flat(source, shapes[0])]);
                     });
                     return std::vector<Values>{out};
                   });
}

int Program::maximum(const std::string &name, int operand, int dim) {
  Shape from = graph.tensors[operand].shape, to = from;
  to.erase(to.begin() + dim);
  ShardingRule rule = reduceRule(from, {dim}, false, FactorKind::Max);
  return addResult(*this, name, to, {operand}, rule,
                   [dim](auto &operands, auto &shapes, auto &results) {
                     Values best(product(results[0]), INT64_MIN);
                     forEach(shapes[0], [&](const Shape &index) {
                       Shape to = index;
                       to.erase(to.begin() + dim);
                       int64_t &slot = best[flat(to, results[0])];
                       slot =
                           std::max(slot, operands[0][flat(index, shapes[0])]);
                     });
                     return std::vector<Values>{best};
                   });
}

int Program::cumulate(const std::string &name, int operand, int dim) {
  Shape shape = graph.tensors[operand].shape;
  ShardingRule rule = elementwiseRule({shape}, shape, {{0}});
  for (int factor : rule.results[0][dim]) // none of size 1
    rule.factors[factor].kind = FactorKind::Whole;
  return addResult(*this, name, shape, {operand}, rule,
                   [dim](auto &operands, auto &shapes, auto &) {
                     Values out = operands[0];
                     forEach(shapes[0], [&](const Shape &index) {
                       if (index[dim] == 0)
                         return;
                       Shape before = index;
                       --before[dim];
                       int64_t &slot = out[flat(index, shapes[0])];
                       slot = combine('+', slot, out[flat(before, shapes[0])]);
                     });
                     return std::vector<Values>{out};
                   });
}

// ------------------------------------------------------------ simulation

namespace {

Values randomSource(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> small(-3, 3);
  Values values(count);
  for (int64_t &value : values)
    value = small(random);
  return values;
}

class Devices {
public:
  Devices(const Program &program, const Assignment &assignment,
          const Outcome &outcome, unsigned seed)
      : program(program), outcome(outcome), mesh(assignment.axisMap()),
        reference(runWhole(program, seed)) {
    coords.emplace_back();
    for (const AxisSize &axis : assignment.mesh) {
      std::vector<layout::AxisMap> more;
      for (const layout::AxisMap &at : coords)
        for (int64_t i = 0; i < axis.size; ++i) {
          more.push_back(at);
          more.back()[axis.name] = i;
        }
      coords = std::move(more);
    }
  }

  std::string run() {
    const Graph &graph = program.graph;
    stored.resize(graph.tensors.size());
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].input || graph.tensors[t].parameter)
        stored[t] = scatter(int(t), outcome.tensors[t]);
    converted.resize(outcome.conversions.size());
    for (size_t o = 0; o < graph.ops.size() && problem.empty(); ++o)
      runOp(int(o));
    for (size_t t = 0; t < graph.tensors.size() && problem.empty(); ++t)
      checkStored(int(t));
    for (const OutputUse &use : outcome.outputs)
      if (problem.empty())
        checkOutput(use);
    return problem;
  }

private:
  using PerDevice = std::vector<Values>;

  void fail(const std::string &text) {
    if (problem.empty())
      problem = text;
  }

  // The global flat index of every local element of a device, row major.
  std::vector<int64_t> globalIndices(const layout::Layout &layout,
                                     size_t device) const {
    std::vector<std::vector<int64_t>> perDim;
    for (const layout::DimLayout &dim : layout.dims) {
      std::vector<int64_t> globals = {0};
      for (const layout::Factor &factor : dim.factors) {
        int64_t parts = 1, mine = 0;
        for (const std::string &axis : factor.axes) {
          parts *= mesh.at(axis);
          mine = mine * mesh.at(axis) + coords[device].at(axis);
        }
        int64_t local = factor.size / parts;
        std::vector<int64_t> next;
        for (int64_t global : globals)
          for (int64_t i = 0; i < local; ++i)
            next.push_back(global * factor.size + mine * local + i);
        globals = std::move(next);
      }
      perDim.push_back(std::move(globals));
    }
    std::vector<int64_t> all = {0};
    Shape shape = layout.globalShape();
    for (size_t d = 0; d < perDim.size(); ++d) {
      std::vector<int64_t> next;
      for (int64_t at : all)
        for (int64_t i : perDim[d])
          next.push_back(at * shape[d] + i);
      all = std::move(next);
    }
    return all;
  }

  PerDevice scatter(int tensor, const layout::Layout &layout) const {
    PerDevice out;
    for (size_t d = 0; d < coords.size(); ++d) {
      Values local;
      for (int64_t at : globalIndices(layout, d))
        local.push_back(reference[tensor][at]);
      out.push_back(std::move(local));
    }
    return out;
  }

  // Devices that differ from `device` at most in `axes`.
  std::vector<size_t> group(size_t device,
                            const std::vector<std::string> &axes) const {
    std::vector<size_t> out;
    for (size_t other = 0; other < coords.size(); ++other) {
      bool same = true;
      for (const auto &[axis, at] : coords[other])
        same &= std::find(axes.begin(), axes.end(), axis) != axes.end() ||
                at == coords[device].at(axis);
      if (same)
        out.push_back(other);
    }
    return out;
  }

  PerDevice convert(const Conversion &c, const PerDevice &in) {
    std::vector<std::map<int64_t, int64_t>> held(coords.size());
    for (size_t d = 0; d < coords.size(); ++d) {
      std::vector<int64_t> indices = globalIndices(c.from, d);
      for (size_t i = 0; i < indices.size(); ++i)
        held[d][indices[i]] = in[d][i];
    }
    bool reduces = c.kind == ConversionKind::AllReduceSum ||
                   c.kind == ConversionKind::AllReduceMax ||
                   c.kind == ConversionKind::ReduceScatter ||
                   c.kind == ConversionKind::Accumulate;
    PerDevice out;
    for (size_t d = 0; d < coords.size(); ++d) {
      std::vector<size_t> members = c.kind == ConversionKind::Slice
                                        ? std::vector<size_t>{d}
                                        : group(d, c.axes);
      Values local;
      for (int64_t at : globalIndices(c.to, d)) {
        int64_t value = c.kind == ConversionKind::AllReduceMax ? INT64_MIN : 0;
        int found = 0;
        for (size_t m : members) {
          auto it = held[m].find(at);
          if (it == held[m].end() || (!reduces && found > 0))
            continue;
          ++found;
          value = c.kind == ConversionKind::AllReduceMax
                      ? std::max(value, it->second)
                      : combine('+', value, it->second);
        }
        if (reduces ? found != int(members.size()) : found == 0)
          fail(fmt::format("{} of '{}' from {} to {}: element {} is held by {} "
                           "of {} devices",
                           str(c.kind), program.graph.tensors[c.tensor].name,
                           c.from.str(), c.to.str(), at, found,
                           members.size()));
        local.push_back(value);
      }
      out.push_back(std::move(local));
    }
    checkBytes(c);
    return out;
  }

  void checkBytes(const Conversion &c) {
    int64_t n = 1;
    for (const std::string &axis : c.axes)
      n *= mesh.at(axis);
    double share = double(n - 1) / double(n), bytes = 0;
    double from = 4.0 * double(product(c.from.localShape(mesh)));
    double to = 4.0 * double(product(c.to.localShape(mesh)));
    if (c.kind == ConversionKind::AllReduceSum ||
        c.kind == ConversionKind::AllReduceMax)
      bytes = 2 * share * from;
    else if (c.kind == ConversionKind::AllGather)
      bytes = share * to;
    else if (c.kind == ConversionKind::ReduceScatter ||
             c.kind == ConversionKind::AllToAll)
      bytes = share * from;
    if (c.axes == std::vector<std::string>{kSubmicrobatchAxis})
      bytes = 0; // on one device
    if (std::abs(bytes - c.bytes) > 1e-6 * bytes)
      fail(fmt::format("{} of '{}' claims {} bytes, sends {}", str(c.kind),
                       program.graph.tensors[c.tensor].name, c.bytes, bytes));
  }

  PerDevice follow(int tensor, const std::vector<int> &chain,
                   layout::Layout &at) {
    PerDevice values = stored[tensor];
    at = outcome.tensors[tensor];
    for (int index : chain) {
      const Conversion &c = outcome.conversions[index];
      if (!(c.from == at))
        fail(fmt::format("conversion of '{}' starts at {}, the value is at {}",
                         program.graph.tensors[tensor].name, c.from.str(),
                         at.str()));
      if (converted[index].empty())
        converted[index] = convert(c, values);
      values = converted[index];
      at = c.to;
    }
    return values;
  }

  void runOp(int index) {
    const GraphOp &op = program.graph.ops[index];
    const OpOutcome &use = outcome.ops[index];
    std::vector<PerDevice> operands;
    std::vector<Shape> shapes, results;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      layout::Layout at;
      operands.push_back(
          follow(op.operands[i], use.operands[i].conversions, at));
      const layout::Layout &wanted =
          operandLayout(outcome, use.operands[i], op.operands[i]);
      if (!(at == wanted))
        fail(fmt::format("operand {} of '{}' arrives at {}, wanted {}", i,
                         op.name, at.str(), wanted.str()));
      shapes.push_back(at.localShape(mesh));
    }
    for (const layout::Layout &layout : use.produced)
      results.push_back(layout.localShape(mesh));
    if (!problem.empty())
      return;
    PerDevice out;
    for (size_t d = 0; d < coords.size(); ++d) {
      std::vector<Values> locals;
      for (const PerDevice &operand : operands)
        locals.push_back(operand[d]);
      out.push_back(program.kernels[index](locals, shapes, results)[0]);
    }
    for (int after : use.after[0])
      out = convert(outcome.conversions[after], out);
    stored[op.results[0]] = std::move(out);
  }

  // Sums the open axes and compares every element on every device.
  void checkValues(int tensor, const layout::Layout &layout,
                   const PerDevice &values) {
    Conversion close;
    close.kind = ConversionKind::Accumulate;
    close.tensor = tensor;
    close.axes = layout.partial;
    close.from = close.to = layout;
    close.to.partial.clear();
    PerDevice whole = layout.partial.empty() ? values : convert(close, values);
    for (size_t d = 0; d < coords.size(); ++d) {
      std::vector<int64_t> indices = globalIndices(layout, d);
      for (size_t i = 0; i < indices.size(); ++i)
        if (whole[d][i] != reference[tensor][indices[i]])
          return fail(fmt::format("'{}' ({}): element {} on device {} is {}, "
                                  "not {}",
                                  program.graph.tensors[tensor].name,
                                  layout.str(), indices[i], d, whole[d][i],
                                  reference[tensor][indices[i]]));
    }
  }
  void checkStored(int tensor) {
    checkValues(tensor, outcome.tensors[tensor], stored[tensor]);
  }
  void checkOutput(const OutputUse &use) {
    layout::Layout at;
    PerDevice values = follow(use.tensor, use.conversions, at);
    if (!at.partial.empty())
      fail(fmt::format("output '{}' is left partial",
                       program.graph.tensors[use.tensor].name));
    checkValues(use.tensor, at, values);
  }

  const Program &program;
  const Outcome &outcome;
  layout::AxisMap mesh;
  std::vector<Values> reference;
  std::vector<layout::AxisMap> coords;
  std::vector<PerDevice> stored, converted;
  std::string problem;
};

} // namespace

std::vector<Values> runWhole(const Program &program, unsigned seed) {
  const Graph &graph = program.graph;
  std::vector<Values> values(graph.tensors.size());
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].input || graph.tensors[t].parameter)
      values[t] = randomSource(graph.tensors[t].elements(), seed + unsigned(t));
  for (size_t o = 0; o < graph.ops.size(); ++o) {
    std::vector<Values> operands;
    std::vector<Shape> shapes, results;
    for (int id : graph.ops[o].operands) {
      operands.push_back(values[id]);
      shapes.push_back(graph.tensors[id].shape);
    }
    for (int id : graph.ops[o].results)
      results.push_back(graph.tensors[id].shape);
    values[graph.ops[o].results[0]] =
        program.kernels[o](operands, shapes, results)[0];
  }
  return values;
}

std::string compareWithWhole(const Program &program,
                             const Assignment &assignment,
                             const Outcome &outcome, unsigned seed) {
  return Devices(program, assignment, outcome, seed).run();
}

} // namespace merak::planning::test
