// The graph of a search for layouts (LayoutSearch.h): regions are its nodes,
// what crosses between two of them its edges, each with the piece of the model
// by which it is priced. The same at all degrees.
#pragma once

#include "passes/Planning/LayoutPieces.h"
#include "passes/Planning/LayoutRegions.h"

#include <memory>
#include <set>

namespace merak::planning {

class LayoutModel {
public:
  // Both must outlive this.
  static Result<LayoutModel> make(const Graph &graph, const Classes &unified);

  // Equal pieces have one number; by class of the piece, that of the graph.
  struct PieceUse {
    int piece = 0;
    std::vector<int> classes;
  };
  struct Node {
    std::vector<int> ops, classes;
    PieceUse piece;
  };
  struct Edge {
    int from = 0, to = 0;
    PieceUse both, left, right; // what is at the edge, and its two sides alone
  };

  const Graph &graph() const { return *graph_; }
  const Classes &unified() const { return *unified_; }
  const Classes &classes() const { return regions_.classes; }
  const LayoutRegions &regions() const { return regions_; }
  const std::vector<Node> &nodes() const { return nodes_; }
  const std::vector<Edge> &edges() const { return edges_; }
  const LayoutPiece &piece(int number) const {
    return *pieces_[size_t(number)];
  }
  size_t pieces() const { return pieces_.size(); }

private:
  LayoutModel(const Graph &graph, const Classes &unified)
      : graph_(&graph), unified_(&unified) {}
  void makeNodes();
  void makeEdges();
  void
  addCrossing(int tensor, int user,
              std::map<std::pair<int, int>, std::set<int>> &crossing) const;
  PieceUse use(const std::vector<int> &ops);

  const Graph *graph_;
  const Classes *unified_;
  LayoutRegions regions_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<int> producer;
  std::vector<std::vector<int>> users;
  std::vector<std::unique_ptr<LayoutPiece>> pieces_;
  std::map<std::string, int> numbers; // by key
};

} // namespace merak::planning
