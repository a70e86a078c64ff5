#include "passes/Planning/Rules.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace merak::planning {

namespace {

// The letters of one dimension each: "(bt)d" -> {"bt", "d"}.
std::vector<std::string> splitDims(std::string_view text) {
  std::vector<std::string> dims;
  bool open = false;
  for (char c : text) {
    if (c == '(') {
      dims.emplace_back();
      open = true;
    } else if (c == ')') {
      open = false;
    } else if (open) {
      dims.back() += c;
    } else if (c != ' ') {
      dims.emplace_back(1, c);
    }
  }
  return dims;
}

std::vector<std::vector<std::string>> splitTensors(std::string_view text) {
  std::vector<std::vector<std::string>> tensors;
  while (true) {
    size_t comma = text.find(',');
    tensors.push_back(splitDims(text.substr(0, comma)));
    if (comma == std::string_view::npos)
      return tensors;
    text.remove_prefix(comma + 1);
  }
}

} // namespace

ShardingRule einsumRule(std::string_view text,
                        const std::vector<Shape> &operands,
                        const std::vector<Shape> &results) {
  ShardingRule rule;
  size_t arrow = text.find("->");
  auto ins = splitTensors(text.substr(0, arrow));
  auto outs = splitTensors(text.substr(arrow + 2));
  std::map<char, int64_t> sizes;
  auto learn = [&](const std::vector<std::string> &dims, const Shape &shape) {
    for (size_t d = 0; d < dims.size() && d < shape.size(); ++d)
      if (dims[d].size() == 1)
        sizes[dims[d][0]] = std::max(sizes[dims[d][0]], shape[d]);
  };
  for (size_t i = 0; i < ins.size() && i < operands.size(); ++i)
    learn(ins[i], operands[i]);
  for (size_t i = 0; i < outs.size() && i < results.size(); ++i)
    learn(outs[i], results[i]);
  // Letters of results first: parallel factors win an axis over sums.
  std::map<char, int> index;
  auto number = [&](const std::vector<std::vector<std::string>> &tensors,
                    FactorKind kind) {
    for (const std::vector<std::string> &dims : tensors)
      for (const std::string &letters : dims)
        for (char c : letters)
          if (index.try_emplace(c, int(rule.factors.size())).second)
            rule.factors.push_back({std::max<int64_t>(sizes[c], 1), kind});
  };
  number(outs, FactorKind::Parallel);
  number(ins, FactorKind::Sum);
  auto build = [&](const std::vector<std::string> &dims, const Shape &shape) {
    RuleTensor factors(dims.size());
    for (size_t d = 0; d < dims.size(); ++d)
      for (char c : dims[d])
        if (d < shape.size() && shape[d] != 1 &&
            rule.factors[index[c]].size != 1)
          factors[d].push_back(index[c]);
    return factors;
  };
  for (size_t i = 0; i < ins.size(); ++i) {
    rule.operands.push_back(
        build(ins[i], i < operands.size() ? operands[i] : Shape()));
    rule.linear.push_back({int(i)});
  }
  for (size_t i = 0; i < outs.size(); ++i)
    rule.results.push_back(
        build(outs[i], i < results.size() ? results[i] : Shape()));
  return rule;
}

ShardingRule elementwiseRule(const std::vector<Shape> &operands,
                             const Shape &result,
                             std::vector<std::vector<int>> linear) {
  ShardingRule rule;
  rule.linear = std::move(linear);
  for (int64_t size : result)
    rule.factors.push_back({size, FactorKind::Parallel});
  auto build = [&](const Shape &shape) {
    RuleTensor factors(shape.size());
    for (size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != 1)
        factors[d] = {int(d + result.size() - shape.size())};
    return factors;
  };
  for (const Shape &shape : operands)
    rule.operands.push_back(build(shape));
  rule.results.push_back(build(result));
  return rule;
}

ShardingRule reshapeRule(const Shape &from, const Shape &to) {
  // Worked example: [6, 4] -> [8, 3] is 2 | 3 4 against 2 | 4 3: the leading 2
  // is common, the rest is whole on either side.
  ShardingRule rule;
  rule.linear = {{0}};
  rule.operands.push_back(RuleTensor(from.size()));
  rule.results.push_back(RuleTensor(to.size()));
  struct Side {
    const Shape &shape;
    RuleTensor &factors;
    size_t dim = 0;
    int64_t left = 1; // of the current dimension
    bool next() {
      while (left == 1 && dim < shape.size())
        left = shape[dim++];
      return left != 1;
    }
    void put(int factor, int64_t size) {
      factors[dim - 1].push_back(factor);
      left /= size;
    }
  };
  Side a{from, rule.operands[0]}, b{to, rule.results[0]};
  auto add = [&](int64_t size, FactorKind kind) {
    rule.factors.push_back({size, kind});
    return int(rule.factors.size()) - 1;
  };
  auto takeWhole = [&](Side &side) {
    int64_t size = side.left;
    side.put(add(size, FactorKind::Whole), size);
    return size;
  };
  while (a.next() && b.next()) {
    int64_t shared = std::gcd(a.left, b.left);
    if (shared > 1) {
      int factor = add(shared, FactorKind::Parallel);
      a.put(factor, shared);
      b.put(factor, shared);
      continue;
    }
    int64_t x = takeWhole(a), y = takeWhole(b);
    while (x != y) {
      Side &side = x < y ? a : b;
      if (!side.next())
        break;
      (x < y ? x : y) *= takeWhole(side);
    }
  }
  return rule;
}

ShardingRule transposeRule(const Shape &from, const std::vector<int> &perm) {
  ShardingRule rule;
  rule.linear = {{0}};
  RuleTensor in(from.size()), out(from.size());
  for (size_t d = 0; d < from.size(); ++d) {
    rule.factors.push_back({from[d], FactorKind::Parallel});
    if (from[d] != 1)
      in[d] = {int(d)};
  }
  for (size_t d = 0; d < perm.size(); ++d)
    out[d] = in[perm[d]];
  rule.operands.push_back(in);
  rule.results.push_back(out);
  return rule;
}

} // namespace merak::planning
