// Where a strategy has seams, and the axes of the classes that they part.
//
// ZeRO by its levels (Rajbhandari et al., "ZeRO", SC 2020), as layouts of a
// trained parameter of p elements over d replicas:
//
//   level  parameter  gathered         gradient accumulated  state
//   1      p/d        p, once a step   p, summed once        p/d
//   2      p/d        p, once a step   p/d, summed each mb.  p/d
//   3      p/d        p, at each use   p/d, summed each mb.  p/d
//
// Here the parameter as it is stored is what the update and the optimizer's
// state use, in f32; what is gathered has the type of its uses.
#pragma once

#include "passes/Planning/SequenceSeams.h"
#include "passes/Planning/Strategy.h"

namespace merak::planning {

class SeamLayouts {
public:
  // The graph must outlive this. `base`: the layouts of `unified` from which
  // sequence parallelism takes its seams, `batched` as for assignBatch. Errors,
  // all at once: ops, operands and parameters that a strategy names and the
  // model lacks, and those of separate().
  static Result<SeamLayouts> make(const Graph &graph, const Classes &unified,
                                  const Strategy &strategy,
                                  const std::vector<int> &batched = {},
                                  const Assignment &base = {});

  bool empty() const { return seams.empty(); }
  const Classes &classes() const { return separated; }
  // Twins get what their class has in `unified`; then the strategy's classes
  // and stored layouts. Errors, all at once: axes that divide no factor of a
  // dimension.
  Result<Assignment> assign(const Assignment &unified) const;
  // Stored parameters that no factor of lets be split over replicas.
  std::vector<std::string> whole(const Assignment &assignment) const;

private:
  SeamLayouts(const Graph &graph, const Strategy &strategy)
      : graph(&graph), strategy(strategy) {}
  Status findUses();
  Status findStored();
  StoredParameter howStored(int id) const;
  Status findSequence(const Classes &unified, const std::vector<int> &batched,
                      const Assignment &base);
  void splitTokens(Assignment &out) const;
  Status assignClasses(Assignment &out) const;
  void followForward(Assignment &out) const;
  Status storeNamed(int tensor, const Strategy::StoredLayout &layout,
                    Assignment &out) const;
  void storeOver(int tensor, const std::string &axis, Assignment &out) const;
  bool append(int cls, const std::string &axis, Assignment &out) const;

  const Graph *graph;
  Strategy strategy;
  Seams seams;
  Classes separated;
  SequenceSeams sequence;
};

// Splits the class that a strategy names. `samples`: the batch, too, which
// stays split over microbatches only; else over replicas as it is. Errors: the
// model lacks the place, or the axes do not divide it.
Status splitBy(const Graph &graph, const Classes &classes,
               const Strategy::SplitClass &split, bool samples,
               Assignment &out);

// Of the classes that make up an anchored factor the first that the axes
// divide: a graph may refine a factor further than the one that named it did.
int majorPart(const Classes &classes, const std::vector<int> &parts,
              const Assignment &mesh, const std::vector<std::string> &axes);

} // namespace merak::planning
