// A model of many equal layers in a row as one of few, since planning asks the
// same of each of them: what is asked of a graph without most of the layers in
// the middle has an answer that is that of the whole, repeated.
//
//   embedding | 0 1 2 3 4 ..           R-1 | loss   the whole
//   embedding | 0 1 2     R-3 R-2 R-1      | loss   the few
//
// Layers are found by their ops, not by names: a run of the forward pass that
// has the same ops again and again, with the gradients and updates that belong
// to them, each fed by the layer before in the same way.
#pragma once

#include "passes/Planning/FactorClasses.h"
#include "passes/Planning/StageProblem.h"

#include <memory>
#include <optional>

namespace merak::planning {

class EqualLayers {
public:
  // None where no layers repeat more than so often that it is worth while, or
  // where they are not fed alike. Both must outlive what is found.
  static std::shared_ptr<const EqualLayers> find(const Graph &graph,
                                                 const Classes &classes);

  const Graph &graph() const { return few; } // of the few layers
  const Classes &classes() const { return fewClasses; }
  int layers() const { return int(opAt.size()); }
  // Tensors of the whole graph that the few layers have, as theirs.
  std::vector<int> tensorsOf(const std::vector<int> &whole) const;
  // Classes of the whole graph as those of the few layers; none where layers
  // that are left out have not all what the others have.
  std::optional<std::vector<int>>
  classesOf(const std::vector<int> &whole) const;
  // The problem of the whole graph by that of the few layers, with all that
  // makeStageProblem() says; none where layers in the middle are not alike.
  std::optional<StageProblem> expand(StageProblem problem) const;

private:
  EqualLayers(const Graph &graph, const Classes &classes)
      : whole(graph), wholeClasses(classes) {}
  // In a layer the number of an op or tensor; layer -1: outside of all.
  struct Place {
    int layer = -1, at = -1;
    bool operator==(const Place &) const = default;
  };
  bool findLayers();
  void placeOps(int begin, int period, int count);
  void placeTensors();
  bool areFedAlike() const;
  Place seenFrom(int layer, Place place) const;
  bool makeFew();
  bool addFew(int op);
  bool alignClasses();

  int layersBetween() const { return layers() - kFew; } // left out
  // A layer of the few as one of the whole, and the one that stands for a layer
  // of the whole.
  int wholeLayer(int layer) const {
    return layer < kFew / 2 ? layer : layer + layersBetween();
  }
  int fewLayer(int layer) const {
    return layer < kFew / 2              ? layer
           : layer < layers() - kFew / 2 ? kFew / 2 - 1
                                         : layer - layersBetween();
  }
  bool isKept(int layer) const {
    return layer < 0 || wholeLayer(fewLayer(layer)) == layer;
  }

  class Expander;

  // The layers of the few: so many, half of them at each end. Those next to the
  // ends are beside other ops than the ones in the middle.
  static constexpr int kFew = 6;
  // With fewer layers more is spent than saved.
  static constexpr int kWorthWhile = kFew + 2;

  const Graph &whole;
  const Classes &wholeClasses;
  int firstOp = 0, opsOfLayer = 0;              // of the forward pass
  std::vector<int> kinds;                       // of ops of the whole
  std::vector<Place> opPlace, tensorPlace;      // of the whole
  std::vector<std::vector<int>> opAt, tensorAt; // by layer of the whole
  std::vector<int> fewOp, fewTensor;            // by those of the whole, or -1
  std::vector<int> wholeOp, wholeTensor;        // the other way round
  std::vector<std::vector<int>> fewOfClass;     // by class of the whole
  std::vector<int> stageOps, fewStageOps;       // forward ops, in order
  std::vector<int> stageOf;                     // by op of the whole, or -1
  // Of ops, also as strategies name them, and of tensors of the whole.
  std::vector<SharedName> opNames, keys, tensorNames;
  Graph few;
  Classes fewClasses;
};

} // namespace merak::planning
