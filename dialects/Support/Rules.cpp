#include "dialects/Support/Rules.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace merak {

int addFactor(ShardingRule &rule, int64_t size, FactorKind kind) {
  return size <= 1 ? -1 : rule.add(size, kind);
}

std::vector<int> addFactors(ShardingRule &rule, const Shape &shape,
                            FactorKind kind) {
  std::vector<int> factors;
  for (int64_t size : shape)
    factors.push_back(addFactor(rule, size, kind));
  return factors;
}

RuleDim dimOf(int factor) { return factor < 0 ? RuleDim{} : RuleDim{factor}; }

RuleTensor tensorOf(const std::vector<int> &factors) {
  RuleTensor tensor;
  for (int factor : factors)
    tensor.push_back(dimOf(factor));
  return tensor;
}

RuleTensor broadcastOf(const Shape &shape, const std::vector<int> &factors) {
  RuleTensor tensor;
  size_t lead = factors.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i)
    tensor.push_back(shape[i] <= 1 ? RuleDim{} : dimOf(factors[lead + i]));
  return tensor;
}

ShardingRule einsumRule(std::string_view text,
                        const std::vector<Shape> &operands,
                        const Shape &result) {
  ShardingRule rule;
  const size_t arrow = text.find("->");
  std::string_view ins = text.substr(0, arrow), out = text.substr(arrow + 2);
  std::map<char, int> factors;
  auto tensor = [&](std::string_view letters, const Shape &shape) {
    RuleTensor dims;
    for (size_t d = 0; d < letters.size(); ++d) {
      const bool kept = out.find(letters[d]) != std::string_view::npos;
      auto [it, isNew] = factors.try_emplace(letters[d], -1);
      if (isNew)
        it->second = addFactor(rule, shape[d],
                               kept ? FactorKind::Parallel : FactorKind::Sum);
      dims.push_back(dimOf(it->second));
    }
    return dims;
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    const size_t comma = ins.find(',');
    rule.operands.push_back(tensor(ins.substr(0, comma), operands[i]));
    rule.linear.push_back({static_cast<int>(i)});
    ins.remove_prefix(comma == std::string_view::npos ? ins.size() : comma + 1);
  }
  rule.results = {tensor(out, result)};
  return rule;
}

ShardingRule elementwiseRule(const std::vector<Shape> &operands,
                             const Shape &result,
                             std::vector<std::vector<int>> linear) {
  ShardingRule rule;
  std::vector<int> factors = addFactors(rule, result);
  for (const Shape &shape : operands)
    rule.operands.push_back(broadcastOf(shape, factors));
  rule.results.push_back(tensorOf(factors));
  rule.linear = std::move(linear);
  return rule;
}

ShardingRule reduceRule(const Shape &from, const std::vector<int64_t> &axes,
                        bool keepDims, FactorKind kind) {
  ShardingRule rule;
  RuleTensor in, out;
  for (size_t d = 0; d < from.size(); ++d) {
    const bool reduced = std::count(axes.begin(), axes.end(), int64_t(d)) > 0;
    int factor =
        addFactor(rule, from[d], reduced ? kind : FactorKind::Parallel);
    in.push_back(dimOf(factor));
    if (!reduced)
      out.push_back(dimOf(factor));
    else if (keepDims)
      out.push_back({});
  }
  rule.operands = {in};
  rule.results = {out};
  if (kind == FactorKind::Sum)
    rule.linear = {{0}};
  return rule;
}

namespace {

// One shape of a reshape, walked major to minor.
struct Side {
  const Shape &shape;
  RuleTensor factors;
  size_t dim = 0;
  int64_t rest = 1; // of the current dimension, not given to a factor yet

  // Whether there is a rest, of this dimension or of one behind it.
  bool next() {
    while (rest == 1 && dim < shape.size())
      rest = shape[dim++];
    return rest != 1;
  }
  void put(int factor, int64_t size) {
    factors[dim - 1].push_back(factor);
    rest /= size;
  }
};

// The rest as a factor of its own, not to be split.
int64_t takeWhole(ShardingRule &rule, Side &side) {
  const int64_t size = side.rest;
  side.put(rule.add(size, FactorKind::Whole), size);
  return size;
}

} // namespace

ShardingRule reshapeRule(const Shape &from, const Shape &to) {
  ShardingRule rule;
  Side a{from, RuleTensor(from.size())}, b{to, RuleTensor(to.size())};
  while (a.next() && b.next()) {
    if (int64_t common = std::gcd(a.rest, b.rest); common > 1) {
      int factor = rule.add(common);
      a.put(factor, common);
      b.put(factor, common);
      continue;
    }
    // Coprime rests: whole on both sides until the products agree again.
    int64_t x = takeWhole(rule, a), y = takeWhole(rule, b);
    while (x != y) {
      Side &side = x < y ? a : b;
      if (!side.next())
        break;
      (x < y ? x : y) *= takeWhole(rule, side);
    }
  }
  rule.operands = {a.factors};
  rule.results = {b.factors};
  rule.linear = {{0}};
  return rule;
}

ShardingRule transposeRule(const Shape &from,
                           const std::vector<int64_t> &perm) {
  ShardingRule rule;
  std::vector<int> factors = addFactors(rule, from), permuted;
  for (int64_t dim : perm)
    permuted.push_back(factors[dim]);
  rule.operands = {tensorOf(factors)};
  rule.results = {tensorOf(permuted)};
  rule.linear = {{0}};
  return rule;
}

} // namespace merak
