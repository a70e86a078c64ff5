#include "passes/Planning/LayoutModel.h"

#include <algorithm>

namespace merak::planning {

Result<LayoutModel> LayoutModel::make(const Graph &graph,
                                      const Classes &unified) {
  LayoutModel out(graph, unified);
  Result<LayoutRegions> found = findRegions(graph, unified);
  if (!found.ok())
    return found.status();
  out.regions_ = std::move(*found);
  out.makeNodes();
  out.makeEdges();
  return out;
}

LayoutModel::PieceUse LayoutModel::use(const std::vector<int> &ops) {
  auto made = std::make_unique<LayoutPiece>(graph(), classes(), ops);
  std::vector<int> of = made->classes();
  auto [it, isNew] = numbers.try_emplace(made->key(), int(pieces_.size()));
  if (isNew)
    pieces_.push_back(std::move(made));
  return {it->second, std::move(of)};
}

void LayoutModel::makeNodes() {
  nodes_.resize(size_t(regions_.count));
  producer.assign(graph().tensors.size(), -1);
  users.resize(graph().tensors.size());
  std::vector<char> seen(classes().classes.size(), 0);
  for (size_t o = 0; o < graph().ops.size(); ++o) {
    for (int id : graph().ops[o].results)
      producer[size_t(id)] = int(o);
    for (int id : graph().ops[o].operands)
      users[size_t(id)].push_back(int(o));
    const int region = regions_.ofOp[o];
    if (region < 0)
      continue;
    Node &node = nodes_[size_t(region)];
    node.ops.push_back(int(o));
    for (const OpSlot &slot : classes().ops[o].slots)
      if (!seen[size_t(slot.cls)]++)
        node.classes.push_back(slot.cls);
  }
  for (Node &node : nodes_)
    node.piece = use(node.ops);
}

// Maker and user, and the user's own users: what is partial behind it is summed
// there.
void LayoutModel::addCrossing(
    int tensor, int user,
    std::map<std::pair<int, int>, std::set<int>> &crossing) const {
  const int maker = producer[size_t(tensor)];
  if (maker < 0)
    return;
  const int from = regions_.ofOp[size_t(maker)],
            to = regions_.ofOp[size_t(user)];
  if (from < 0 || to < 0 || from == to)
    return;
  std::set<int> &ops = crossing[std::minmax(from, to)];
  ops.insert({maker, user});
  for (int id : graph().ops[size_t(user)].results)
    for (int next : users[size_t(id)])
      if (regions_.ofOp[size_t(next)] == to)
        ops.insert(next);
}

void LayoutModel::makeEdges() {
  std::map<std::pair<int, int>, std::set<int>> crossing; // ops, by regions
  for (size_t t = 0; t < graph().tensors.size(); ++t)
    for (int user : users[t])
      addCrossing(int(t), user, crossing);
  for (const auto &[sides, ops] : crossing) {
    std::vector<int> all(ops.begin(), ops.end()), left, right;
    for (int op : all)
      (regions_.ofOp[size_t(op)] == sides.first ? left : right).push_back(op);
    edges_.push_back(
        {sides.first, sides.second, use(all), use(left), use(right)});
  }
}

} // namespace merak::planning
