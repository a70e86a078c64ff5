// The parts of a model whose layouts a search decides apart: what lies between
// the default candidates for seams. A region is what a product of weights, a
// lookup or attention makes together with the element-wise ops behind it;
// norms, residual sums and what else joins several of these lie outside of
// them, in regions of their own.
//
//   x --norm--> | qkv, attention | proj | --add--> | fc1, gelu | fc2 | --add-->
//
// Elementwise ops never have a seam: they follow their heaviest operand.
#pragma once

#include "passes/Planning/Seams.h"

namespace merak::planning {

struct LayoutRegions {
  std::vector<TensorUse> uses; // between two regions, in order
  Classes classes;             // with a seam at each of the uses
  int count = 0;
  std::vector<int> ofOp, ofClass; // -1: none, a scalar
  std::vector<char> varies;       // by tensor: made of inputs
  std::vector<char> weights;      // by tensor: made of parameters alone
  // By class without seams: in a dimension of what a product or a lookup has of
  // weights, and in no dimension of these but of what they have of values.
  std::vector<char> ofWeights, ofTokens;

  // No parameter has a part in it: a mask, positions.
  std::vector<char> isFree; // by region
};

// `unified` are the graph's classes without seams.
Result<LayoutRegions> findRegions(const Graph &graph, const Classes &unified);

// Of the uses, those that keep their layouts apart where the others are no
// seams: a seam that another way leads around separates nothing.
// `differs`: by use, whether its two sides have unlike layouts.
std::vector<TensorUse> seamsBetween(const Graph &graph,
                                    const LayoutRegions &regions,
                                    const std::vector<char> &differs);

} // namespace merak::planning
