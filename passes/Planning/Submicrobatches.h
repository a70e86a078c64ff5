// Two submicrobatches of a microbatch that are no microbatches of their own
// (Lai et al., 2023, Merak, doi 10.1109/TPDS.2023.3247001, sub-pipelined tensor
// parallelism): of the tokens of every sample where their number is odd, of the
// samples where something needs them together, as statistics of a batch do.
//
// The submicrobatches are coordinates of an axis of its own, which counts work
// and no devices. Parameters, data and results lie whole. What needs all tokens
// or samples, as attention or batch norm's statistics do, runs once, on the
// joined values of both submicrobatches; the joins and slices are conversions
// over that axis like any others.
#pragma once

#include "passes/Planning/Partition.h"

namespace merak::planning {

// Whether a dimension has parts along the axis.
bool isSplitOver(const layout::Layout &layout, const std::string &axis);

// Whether a value is of one submicrobatch: part of its tokens or samples, or a
// sum over part.
bool isOfSubmicrobatch(const layout::Layout &layout);

// Whether a product on the way forward sums over the class: submicrobatches of
// it would be summands, which the next op has to add first. Of several factors
// of the class the first one is split.
bool isContracted(const Graph &graph, const Classes &classes, int cls);

// `base` with one more class split, over kSubmicrobatchAxis: the one that lets
// the most bytes of collectives over "tp" be in submicrobatches, and among
// equals the one that has the fewest bytes joined. Errors: no class helps (with
// an odd size, say).
Result<Assignment> splitTokens(const Graph &graph, const Classes &classes,
                               const Assignment &base);

// Whether an op needs the samples of a microbatch together.
bool joinsSamples(const Graph &graph);

// `base` with the batch of each of the tensors `batched` (assignBatch) split
// once more, over kSubmicrobatchAxis. Errors: a batch has no factor left that
// is even.
Result<Assignment> splitBatch(const Graph &graph, const Classes &classes,
                              const std::vector<int> &batched,
                              const Assignment &base);

} // namespace merak::planning
