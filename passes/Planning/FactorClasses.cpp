#include "passes/Planning/FactorClasses.h"

#include <fmt/format.h>
#include <map>
#include <numeric>
#include <set>

namespace merak::planning {

namespace {

// Union-find over factors in which a class may be refined into an ordered pair
// of children (major, minor). Leaves of the forest are the final classes.
class FactorForest {
public:
  int add(int64_t size) {
    nodes.push_back({int(nodes.size()), size});
    return int(nodes.size()) - 1;
  }

  int find(int node) {
    while (nodes[node].parent != node) {
      nodes[node].parent = nodes[nodes[node].parent].parent;
      node = nodes[node].parent;
    }
    return node;
  }

  // Appends the leaves of a node, major to minor.
  void leaves(int node, std::vector<int> &out) {
    node = find(node);
    if (nodes[node].major < 0) {
      out.push_back(node);
      return;
    }
    leaves(nodes[node].major, out);
    leaves(nodes[node].minor, out);
  }

  // Makes two factorisations of one dimension agree, major to minor. `op` is
  // named where they cannot.
  void align(const std::vector<int> &a, const std::vector<int> &b, int op) {
    std::vector<int> left(a.rbegin(), a.rend()), right(b.rbegin(), b.rend());
    while (!left.empty() && !right.empty()) {
      int x = pop(left), y = pop(right);
      if (x == y)
        continue;
      int64_t shared = std::gcd(nodes[x].size, nodes[y].size);
      if (shared == 1) {
        markMisaligned(x, y, left, right, op);
        continue;
      }
      // 6 against 4: both begin with a factor of 2.
      x = front(x, shared, left, op);
      y = front(y, shared, right, op);
      unite(x, y);
    }
  }

  struct Node {
    int parent;
    int64_t size;
    int major = -1, minor = -1;
    int misalignedBy = -1; // op, if not splittable
    int refinedBy = -1;    // op that split the parent
  };
  const Node &operator[](int node) const { return nodes[node]; }

private:
  // The next leaf of a stack of nodes.
  int pop(std::vector<int> &stack) {
    while (true) {
      int node = find(stack.back());
      stack.pop_back();
      if (nodes[node].major < 0)
        return node;
      stack.push_back(nodes[node].minor);
      stack.push_back(nodes[node].major);
    }
  }

  // The leading factor of `size` of a leaf; the rest goes back on the stack.
  int front(int leaf, int64_t size, std::vector<int> &stack, int op) {
    if (nodes[leaf].size == size)
      return leaf;
    int major = add(size), minor = add(nodes[leaf].size / size);
    for (int child : {major, minor}) {
      nodes[child].misalignedBy = nodes[leaf].misalignedBy;
      nodes[child].refinedBy = op;
    }
    nodes[leaf].major = major;
    nodes[leaf].minor = minor;
    stack.push_back(minor);
    return major;
  }

  void unite(int x, int y) {
    x = find(x);
    y = find(y);
    if (x == y)
      return;
    if (y < x)
      std::swap(x, y);
    nodes[y].parent = x;
    if (nodes[x].misalignedBy < 0)
      nodes[x].misalignedBy = nodes[y].misalignedBy;
    if (nodes[x].refinedBy < 0)
      nodes[x].refinedBy = nodes[y].refinedBy;
  }

  // Marks leaves of both sides up to the next common boundary.
  void markMisaligned(int x, int y, std::vector<int> &left,
                      std::vector<int> &right, int op) {
    auto mark = [&](int leaf) {
      if (nodes[leaf].misalignedBy < 0)
        nodes[leaf].misalignedBy = op;
      return nodes[leaf].size;
    };
    int64_t a = mark(x), b = mark(y);
    while (a != b) {
      if (a < b)
        a *= mark(pop(left));
      else
        b *= mark(pop(right));
    }
  }

  std::vector<Node> nodes;
};

class Unifier {
public:
  explicit Unifier(const Graph &graph) : graph(graph) {}

  Classes run() {
    for (const GraphTensor &tensor : graph.tensors) {
      dims.emplace_back();
      for (int64_t size : tensor.shape)
        dims.back().push_back(size == 1 ? -1 : forest.add(size));
    }
    for (const GraphOp &op : graph.ops) {
      factors.emplace_back();
      for (const RuleFactor &factor : op.rule.factors)
        factors.back().push_back(forest.add(factor.size));
      int index = int(&op - graph.ops.data());
      alignAll(index, op.operands, op.rule.operands);
      alignAll(index, op.results, op.rule.results);
    }
    collectTensors();
    collectOps();
    return std::move(out);
  }

private:
  void alignAll(int op, const std::vector<int> &ids,
                const std::vector<RuleTensor> &rules) {
    for (size_t i = 0; i < ids.size(); ++i)
      for (size_t d = 0; d < rules[i].size(); ++d) {
        if (dims[ids[i]][d] < 0 || graph.tensors[ids[i]].shape[d] == 0)
          continue;
        std::vector<int> list;
        for (int factor : rules[i][d])
          if (graph.ops[op].rule.factors[factor].size > 1)
            list.push_back(factors[op][factor]);
        forest.align({dims[ids[i]][d]}, list, op);
      }
  }

  // Dense number of a leaf, given on first sight.
  int classOf(int leaf) {
    auto [it, isNew] = numbers.try_emplace(leaf, int(out.classes.size()));
    if (isNew) {
      const FactorForest::Node &node = forest[leaf];
      ClassInfo info;
      info.size = node.size;
      info.root = it->second;
      if (node.refinedBy >= 0)
        info.refinedBy = graph.ops[node.refinedBy].name;
      if (node.misalignedBy >= 0) {
        info.splittable = false;
        info.reason = fmt::format("op '{}' joins factorisations that do not "
                                  "align",
                                  graph.ops[node.misalignedBy].name);
      }
      out.classes.push_back(std::move(info));
    }
    return it->second;
  }

  void collectTensors() {
    for (const std::vector<int> &tensorDims : dims) {
      TensorClasses classes;
      classes.dimBegin.push_back(0);
      for (int dim : tensorDims) {
        leaves.clear();
        if (dim >= 0)
          forest.leaves(dim, leaves);
        for (int leaf : leaves)
          classes.atoms.push_back(classOf(leaf));
        classes.dimBegin.push_back(int(classes.atoms.size()));
      }
      out.tensors.push_back(std::move(classes));
    }
  }

  void collectOps() {
    for (const GraphOp &op : graph.ops) {
      int index = int(&op - graph.ops.data());
      OpClasses classes;
      std::vector<int> begin; // first slot of each factor
      for (size_t f = 0; f < op.rule.factors.size(); ++f) {
        begin.push_back(int(classes.slots.size()));
        if (op.rule.factors[f].size == 1)
          continue;
        leaves.clear();
        forest.leaves(factors[index][f], leaves);
        const RuleFactor &factor = op.rule.factors[f];
        for (int leaf : leaves) {
          bool inside = factor.ranged && leaf != leaves.front();
          classes.slots.push_back({classOf(leaf), int(f),
                                   inside ? FactorKind::Whole : factor.kind});
        }
      }
      begin.push_back(int(classes.slots.size()));
      for (size_t i = 0; i < op.operands.size(); ++i)
        classes.operands.push_back(
            mapAtoms(classes, begin, op.operands[i], op.rule.operands[i]));
      for (size_t i = 0; i < op.results.size(); ++i)
        classes.results.push_back(
            mapAtoms(classes, begin, op.results[i], op.rule.results[i]));
      out.ops.push_back(std::move(classes));
    }
  }

  // For each atom of the tensor the op's slot, -1 in stretches that do not
  // align.
  std::vector<int> mapAtoms(const OpClasses &op, const std::vector<int> &begin,
                            int tensor, const RuleTensor &rule) const {
    const TensorClasses &atoms = out.tensors[tensor];
    std::vector<int> map(atoms.atoms.size(), -1);
    for (size_t d = 0; d < rule.size(); ++d) {
      std::vector<int> slots;
      for (int factor : rule[d])
        for (int slot = begin[factor]; slot < begin[factor + 1]; ++slot)
          slots.push_back(slot);
      int64_t a = 1, b = 1; // products passed on either side
      size_t j = 0;
      for (int i = atoms.dimBegin[d]; i < atoms.dimBegin[d + 1]; ++i) {
        while (b < a && j < slots.size())
          b *= out.classes[op.slots[slots[j++]].cls].size;
        int cls = atoms.atoms[i];
        if (a == b && j < slots.size() && op.slots[slots[j]].cls == cls) {
          map[i] = slots[j++];
          b *= out.classes[cls].size;
        }
        a *= out.classes[cls].size;
      }
    }
    return map;
  }

  const Graph &graph;
  FactorForest forest;
  std::vector<std::vector<int>> dims;    // node per tensor dimension
  std::vector<std::vector<int>> factors; // node per op factor
  std::map<int, int> numbers;
  std::vector<int> leaves;
  Classes out;
};

} // namespace

Classes unify(const Graph &graph) { return Unifier(graph).run(); }

std::string Classes::dimStr(int tensor, int dim) const {
  const TensorClasses &atoms = tensors[tensor];
  std::string text;
  for (int i = atoms.dimBegin[dim]; i < atoms.dimBegin[dim + 1]; ++i)
    text += fmt::format("{}{}", text.empty() ? "" : " x ",
                        classes[atoms.atoms[i]].size);
  return text.empty() ? "1" : text;
}

namespace {

// Classes of the atoms of an operand as the op has them, which differ from the
// tensor's own behind a seam.
std::vector<int> classesAt(const Graph &graph, const Classes &classes, int op,
                           int operand) {
  const int id = graph.ops[op].operands[operand];
  std::vector<int> out = classes.tensors[id].atoms;
  const std::vector<int> &slots = classes.ops[op].operands[operand];
  for (size_t a = 0; a < out.size(); ++a)
    if (slots[a] >= 0)
      out[a] = classes.ops[op].slots[slots[a]].cls;
  return out;
}

// Visits the dimensions' factors: dimension, classes, product outside.
template <typename Visit>
void eachFactor(const Classes &classes, const TensorClasses &tensor,
                const std::vector<int> &atoms, Visit visit) {
  for (size_t d = 0; d + 1 < tensor.dimBegin.size(); ++d) {
    int64_t outer = 1;
    for (int i = tensor.dimBegin[d]; i < tensor.dimBegin[d + 1]; ++i) {
      visit(int(d), atoms[i], outer);
      outer *= classes.classes[atoms[i]].size;
    }
  }
}

} // namespace

std::vector<ClassAnchor> anchorsOf(const Graph &graph, const Classes &classes) {
  auto rank = [](const GraphTensor &tensor) {
    return tensor.parameter ? 0 : tensor.input ? 1 : 2;
  };
  std::vector<ClassAnchor> best(classes.classes.size());
  std::vector<int> ranks(classes.classes.size(), 3);
  // A value and what changes its type have one name, which stands for the
  // first.
  std::set<std::string> seen;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor &tensor = graph.tensors[t];
    if (!seen.insert(tensor.name).second)
      continue;
    eachFactor(
        classes, classes.tensors[t], classes.tensors[t].atoms,
        [&](int dim, int cls, int64_t outer) {
          if (rank(tensor) >= ranks[cls])
            return;
          ranks[cls] = rank(tensor);
          best[cls] = {tensor.name, dim, outer, classes.classes[cls].size};
        });
  }
  // Behind seams only.
  const std::vector<std::string> names = forwardNames(graph);
  for (size_t o = 0; o < graph.ops.size(); ++o)
    for (size_t i = 0; i < graph.ops[o].operands.size(); ++i) {
      const int id = graph.ops[o].operands[i];
      eachFactor(classes, classes.tensors[id],
                 classesAt(graph, classes, int(o), int(i)),
                 [&](int dim, int cls, int64_t outer) {
                   if (ranks[cls] == 3 && best[cls].op.empty() &&
                       !names[o].empty())
                     best[cls] = {graph.tensors[id].name,    dim,      outer,
                                  classes.classes[cls].size, names[o], int(i)};
                 });
    }
  return best;
}

ClassAnchor anchorOf(const Graph &graph, const Classes &classes, int cls) {
  return anchorsOf(graph, classes)[size_t(cls)];
}

std::vector<int> findAnchor(const Graph &graph, const Classes &classes,
                            const ClassAnchor &anchor) {
  const std::vector<std::string> names =
      anchor.op.empty() ? std::vector<std::string>() : forwardNames(graph);
  auto search = [&](int tensor, const std::vector<int> &atoms) {
    std::vector<int> found;
    int64_t size = 1;
    eachFactor(classes, classes.tensors[tensor], atoms,
               [&](int dim, int cls, int64_t outer) {
                 const bool after =
                     dim == anchor.dim && outer == anchor.outer * size;
                 if (!after || (anchor.size > 0 && size >= anchor.size))
                   return;
                 found.push_back(cls);
                 size *= classes.classes[cls].size;
               });
    return anchor.size == 0 || size == anchor.size ? found : std::vector<int>();
  };
  if (anchor.op.empty()) {
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].name == anchor.tensor)
        return search(int(t), classes.tensors[t].atoms);
    return {};
  }
  for (size_t o = 0; o < graph.ops.size(); ++o)
    if (names[o] == anchor.op && anchor.operand >= 0 &&
        anchor.operand < int(graph.ops[o].operands.size()))
      return search(graph.ops[o].operands[anchor.operand],
                    classesAt(graph, classes, int(o), anchor.operand));
  return {};
}

} // namespace merak::planning
