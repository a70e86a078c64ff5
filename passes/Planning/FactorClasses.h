// Factors of all ops unified into classes.
//
// Two factors that describe the same dimension of a tensor are one *class*. A
// dimension is an ordered list of classes, major to minor: a reshape of [192]
// to [3, 64] refines the class of 192 into classes of 3 and 64, everywhere. Two
// factorisations that do not align (6 x 4 against 8 x 3) are refined as far as
// they agree (2 x ...) and the rest is marked as not splittable.
#pragma once

#include "passes/Planning/FactorGraph.h"

namespace merak::planning {

struct ClassInfo {
  int64_t size = 1;
  // Twins have the same: the class that they are without seams (Seams.h).
  int root = 0;
  bool splittable = true;
  std::string reason;    // why not splittable: names the op
  std::string refinedBy; // the op that made it a part of a larger factor
};

// A factor of an op after refinement: `cls` is the class, `factor` the index in
// the op's rule, from which the kind is inherited; Whole for all but the major
// part of a factor that must stay a range.
struct OpSlot {
  int cls = 0;
  int factor = 0;
  FactorKind kind = FactorKind::Parallel;
};

struct OpClasses {
  std::vector<OpSlot> slots; // in the order of the rule's factors
  // For every operand and result, the slot of each of its tensor's atoms in
  // order (all dimensions concatenated), -1 where the op and the tensor do not
  // align.
  std::vector<std::vector<int>> operands, results;
};

struct TensorClasses {
  std::vector<int> atoms;    // classes of all dimensions, concatenated
  std::vector<int> dimBegin; // dims + 1 offsets into `atoms`
};

struct Classes {
  std::vector<ClassInfo> classes;
  std::vector<TensorClasses> tensors;
  std::vector<OpClasses> ops;

  // "3 x 4 x 16" for a dimension of a tensor.
  std::string dimStr(int tensor, int dim) const;
};

// Requires graph.check().
Classes unify(const Graph &graph);

// Names a class in a way that survives a change of the graph's ops: a factor of
// a dimension of a named tensor, found by the product of the factors outside
// it. With an op: of the tensor as operand number `operand` of the op, which
// differs from the tensor itself behind a seam only.
struct ClassAnchor {
  std::string tensor;
  int dim = 0;
  int64_t outer = 1;
  int64_t size = 1;    // 0: all of the dimension from `outer` on
  std::string op = {}; // see forwardNames
  int operand = 0;
  bool operator==(const ClassAnchor &) const = default;
};
// The first parameter, then input, then any tensor that has the class.
ClassAnchor anchorOf(const Graph &graph, const Classes &classes, int cls);
// The same of all classes, in one pass.
std::vector<ClassAnchor> anchorsOf(const Graph &graph, const Classes &classes);
// All classes that make up the anchored factor (several when the graph refines
// it further), major to minor; empty if there is none.
std::vector<int> findAnchor(const Graph &graph, const Classes &classes,
                            const ClassAnchor &anchor);

} // namespace merak::planning
