// Seams: uses of a tensor across which classes are not unified, so that the
// tensor is made or stored in one layout and used in another.
//
// The two sides of a seam have *twin* classes: the same sizes and the same
// refinement (a reshape on one side refines the other), but axes of their own.
// apply() converts between them as it does everywhere else.
//
//   x --norm--> y --seam--> y * w --seam--> + x     tokens over tp outside,
//                                                   width over tp inside
//
// Gradients follow the forward pass: a gradient op lies on the side of the op
// whose gradient it is, a sum over the uses of a value on the side of the
// value, unless all of its summands lie on one other side, where it is one
// conversion instead of many.
//
// A *stored* parameter has a layout of its own: its other side are the update,
// the optimizer's state and a change of type in front of all other uses (what
// is gathered is the narrow copy). Gradients of several uses are added in front
// of the update, as the uses have them: they are converted once. Where each
// microbatch scatters them, they are converted apart, and parts are added.
#pragma once

#include "passes/Planning/FactorClasses.h"

#include <map>

namespace merak::planning {

// The place where a tensor enters an op.
struct TensorUse {
  int op = 0, operand = 0;
  auto operator<=>(const TensorUse &) const = default;
};

struct Seams {
  std::vector<TensorUse> uses; // of forward ops, of values that ops make
  // The same from a technique: those that separate nothing are no error.
  std::vector<TensorUse> implied;
  std::vector<int> stored; // parameters (tensor ids) that are trained
  // Of these, those whose gradients each microbatch scatters.
  std::vector<int> scattered;
  bool empty() const {
    return uses.empty() && implied.empty() && stored.empty();
  }
};

// By op, the parameter that it computes on as that is stored: its update, the
// change of its type and, where each microbatch scatters its gradients, the sum
// of those of several uses. -1: none.
std::vector<int> storedSides(const Graph &graph, const Seams &seams);

// Whether an op adds gradients of two uses of a parameter, in front of its
// update.
bool isSumOfGradients(const GraphOp &op);

// Classes that gradients alone have, as those of a bias behind which a seam
// lies: by these, the class of the same root that the op has whose gradients
// they are. Nothing of the forward pass names them; they follow it.
std::map<int, int> gradientTwins(const Graph &graph, const Classes &classes);

// The classes with a seam at each of the places; without any `unified` as it
// is. A class that lies on both sides of a seam becomes several; the first one,
// in the order of tensors, keeps the number, others come behind all. Errors,
// all at once: a use that does not exist, is of an input or a parameter, or
// separates nothing, since another way leads around it.
Result<Classes> separate(const Graph &graph, const Classes &unified,
                         const Seams &seams);

} // namespace merak::planning
