#include "passes/Planning/FrontierFactor.h"

#include <algorithm>

namespace merak::planning {

size_t FactorScope::entries() const {
  size_t count = 1;
  for (int each : configs)
    count *= size_t(each);
  return count;
}

bool FactorScope::has(int node) const {
  return std::binary_search(nodes.begin(), nodes.end(), node);
}

FactorScope FactorScope::without(int node) const {
  FactorScope rest;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i] != node) {
      rest.nodes.push_back(nodes[i]);
      rest.configs.push_back(configs[i]);
    }
  return rest;
}

FactorScope FactorScope::unite(const FactorScope &a, const FactorScope &b) {
  FactorScope both;
  size_t i = 0, j = 0;
  auto take = [&](const FactorScope &from, size_t at) {
    both.nodes.push_back(from.nodes[at]);
    both.configs.push_back(from.configs[at]);
  };
  while (i < a.nodes.size() || j < b.nodes.size())
    if (j == b.nodes.size() ||
        (i < a.nodes.size() && a.nodes[i] <= b.nodes[j])) {
      j += j < b.nodes.size() && a.nodes[i] == b.nodes[j];
      take(a, i++);
    } else {
      take(b, j++);
    }
  return both;
}

size_t strideOf(const FactorScope &scope, int node) {
  size_t stride = 1;
  for (size_t i = scope.nodes.size(); i-- > 0;) {
    if (scope.nodes[i] == node)
      return stride;
    stride *= size_t(scope.configs[i]);
  }
  return 0;
}

EntryMap::EntryMap(const FactorScope &from, const FactorScope &to) {
  for (size_t i = from.nodes.size(); i-- > 0;)
    digits.push_back({size_t(from.configs[i]), strideOf(to, from.nodes[i])});
}

size_t EntryMap::operator()(size_t entry) const {
  size_t found = 0;
  for (const Digit &digit : digits) {
    found += entry % digit.configs * digit.stride;
    entry /= digit.configs;
  }
  return found;
}

Factor makeFactor(const FrontierAlgebra &algebra, FactorScope scope,
                  std::vector<Frontier> entries) {
  int64_t least = kNoLimit;
  for (const Frontier &entry : entries)
    if (!entry.empty())
      least = std::min(least, algebra.leastBytes(entry));
  return {std::move(scope), std::move(entries), least == kNoLimit ? 0 : least};
}

Factor join(FrontierAlgebra &algebra, const Factor &a, const Factor &b,
            int64_t limit) {
  FactorScope scope = FactorScope::unite(a.scope, b.scope);
  EntryMap toA(scope, a.scope), toB(scope, b.scope);
  std::vector<Frontier> entries = algebra.tabulate(
      scope.entries(),
      [&](size_t target, std::vector<FrontierTerm> &terms) {
        terms.push_back({&a.entries[toA(target)], &b.entries[toB(target)]});
      },
      limit);
  return makeFactor(algebra, std::move(scope), std::move(entries));
}

Factor joinOver(FrontierAlgebra &algebra, const Factor &a, const Factor &b,
                int node, int64_t limit) {
  FactorScope both = FactorScope::unite(a.scope, b.scope);
  FactorScope scope = both.without(node);
  EntryMap toA(scope, a.scope), toB(scope, b.scope);
  size_t strideA = strideOf(a.scope, node), strideB = strideOf(b.scope, node);
  size_t configs = both.entries() / scope.entries();
  std::vector<Frontier> entries = algebra.tabulate(
      scope.entries(),
      [&](size_t target, std::vector<FrontierTerm> &terms) {
        for (size_t config = 0; config < configs; ++config)
          terms.push_back({&a.entries[toA(target) + config * strideA],
                           &b.entries[toB(target) + config * strideB]});
      },
      limit);
  return makeFactor(algebra, std::move(scope), std::move(entries));
}

Factor uniteOver(const FrontierAlgebra &algebra, const Factor &factor,
                 int node) {
  FactorScope scope = factor.scope.without(node);
  EntryMap map(scope, factor.scope);
  size_t stride = strideOf(factor.scope, node);
  size_t configs = factor.scope.entries() / scope.entries();
  std::vector<Frontier> entries;
  for (size_t target = 0; target < scope.entries(); ++target) {
    std::vector<const Frontier *> parts;
    for (size_t config = 0; config < configs; ++config)
      parts.push_back(&factor.entries[map(target) + config * stride]);
    entries.push_back(algebra.unite(parts));
  }
  return makeFactor(algebra, std::move(scope), std::move(entries));
}

Factor slice(const FrontierAlgebra &algebra, const Factor &factor, int node,
             int config) {
  FactorScope scope = factor.scope.without(node);
  EntryMap map(scope, factor.scope);
  size_t offset = size_t(config) * strideOf(factor.scope, node);
  std::vector<Frontier> entries;
  for (size_t target = 0; target < scope.entries(); ++target)
    entries.push_back(factor.entries[map(target) + offset]);
  return makeFactor(algebra, std::move(scope), std::move(entries));
}

} // namespace merak::planning
