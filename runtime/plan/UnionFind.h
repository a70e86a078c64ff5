// Disjoint sets of numbers; a set is named by its least member.
#pragma once

#include <numeric>
#include <vector>

namespace merak {

class UnionFind {
public:
  explicit UnionFind(size_t count) : parent(count) {
    std::iota(parent.begin(), parent.end(), 0);
  }
  int find(int i) {
    while (parent[size_t(i)] != i)
      i = parent[size_t(i)] = parent[size_t(parent[size_t(i)])];
    return i;
  }
  void unite(int a, int b) {
    a = find(a);
    b = find(b);
    parent[size_t(a > b ? a : b)] = a > b ? b : a;
  }

private:
  std::vector<int> parent;
};

} // namespace merak
