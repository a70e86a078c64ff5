#include "passes/Planning/FactorGraph.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <string_view>
#include <unordered_map>

namespace merak::planning {

int64_t GraphTensor::elements() const {
  int64_t product = 1;
  for (int64_t size : shape)
    product *= size;
  return product;
}

namespace {

// Collects the problems of one op.
class OpChecker {
public:
  OpChecker(const Graph &graph, const GraphOp &op) : graph(graph), op(op) {}

  Status run() {
    for (const RuleFactor &factor : op.rule.factors)
      if (factor.size < 1)
        problem("a factor has size {}", factor.size);
    checkTensors("operand", op.operands, op.rule.operands);
    checkTensors("result", op.results, op.rule.results);
    for (const std::vector<int> &group : op.rule.linear)
      for (int position : group)
        if (position < 0 || position >= int(op.operands.size()))
          problem("a linear group names operand {} of {}", position,
                  op.operands.size());
    return std::move(status).withContext(fmt::format("op '{}'", op.name));
  }

private:
  template <typename... Args>
  void problem(fmt::format_string<Args...> text, Args &&...args) {
    status.merge(
        Status::error(fmt::vformat(text, fmt::make_format_args(args...))));
  }

  void checkTensors(const char *what, const std::vector<int> &ids,
                    const std::vector<RuleTensor> &rules) {
    if (ids.size() != rules.size())
      return problem("the rule has {} {}s, the op {}", rules.size(), what,
                     ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= int(graph.tensors.size())) {
        problem("{} {} is tensor {}, which does not exist", what, i, ids[i]);
        continue;
      }
      const GraphTensor &tensor = graph.tensors[ids[i]];
      if (rules[i].size() != tensor.shape.size()) {
        problem("{} {} '{}' has rank {}, the rule gives it {}", what, i,
                tensor.name, tensor.shape.size(), rules[i].size());
        continue;
      }
      for (size_t d = 0; d < rules[i].size(); ++d)
        checkDim(what, i, tensor, d, rules[i][d]);
    }
  }

  void checkDim(const char *what, size_t i, const GraphTensor &tensor, size_t d,
                const std::vector<int> &factors) {
    int64_t product = 1;
    for (int factor : factors) {
      if (factor < 0 || factor >= int(op.rule.factors.size()))
        return problem("{} {} '{}' names factor {} of {}", what, i, tensor.name,
                       factor, op.rule.factors.size());
      product *= op.rule.factors[factor].size;
    }
    bool empty = tensor.shape[d] == 0 && factors.empty();
    if (product != tensor.shape[d] && !empty)
      problem("dimension {} of {} {} '{}' is {}, the rule's factors make {}", d,
              what, i, tensor.name, tensor.shape[d], product);
  }

  const Graph &graph;
  const GraphOp &op;
  Status status;
};

} // namespace

Status Graph::check() const {
  Status status;
  std::vector<int> producer(tensors.size(), -1);
  std::vector<bool> defined(tensors.size(), false);
  for (const GraphOp &op : ops)
    for (int id : op.results)
      if (id >= 0 && id < int(tensors.size())) {
        int index = int(&op - ops.data());
        if (producer[id] >= 0)
          status.merge(Status::error(
              fmt::format("tensor '{}' is produced by '{}' and by '{}'",
                          tensors[id].name, ops[producer[id]].name, op.name)));
        producer[id] = index;
      }
  for (const GraphOp &op : ops) {
    status.merge(OpChecker(*this, op).run());
    for (int id : op.operands)
      if (id >= 0 && id < int(tensors.size()) && producer[id] >= 0 &&
          !defined[id])
        status.merge(Status::error(
            fmt::format("op '{}' uses '{}' before '{}' produces it", op.name,
                        tensors[id].name, ops[producer[id]].name)));
    for (int id : op.results)
      if (id >= 0 && id < int(tensors.size()))
        defined[id] = true;
  }
  return status;
}

std::vector<std::string> opNames(const std::vector<std::string> &nodes) {
  std::unordered_map<std::string_view, int> seen;
  std::vector<std::string> names;
  seen.reserve(nodes.size());
  names.reserve(nodes.size());
  for (const std::string &node : nodes) {
    int before = seen[node]++;
    names.push_back(before ? fmt::format("{}#{}", node, before) : node);
  }
  return names;
}

// In narrow precision an op's weights are changed in type under its name.
static bool changesParameter(const Graph &graph, const GraphOp &op) {
  return op.pointwise && op.operands.size() == 1 &&
         graph.tensors[size_t(op.operands[0])].parameter;
}

std::vector<std::string> forwardNames(const Graph &graph) {
  std::vector<size_t> forward;
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (graph.ops[i].phase == Phase::Forward)
      forward.push_back(i);
  std::stable_partition(forward.begin(), forward.end(), [&](size_t i) {
    return !changesParameter(graph, graph.ops[i]);
  });
  std::vector<std::string> nodes, names(graph.ops.size());
  for (size_t i : forward)
    nodes.push_back(graph.ops[i].name);
  std::vector<std::string> unique = opNames(nodes);
  for (size_t next = 0; next < forward.size(); ++next)
    names[forward[next]] = std::move(unique[next]);
  return names;
}

} // namespace merak::planning
