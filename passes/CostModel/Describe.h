// What a kernel has to do, from the sizes of its operands: one description for
// the instructions of a plan (PlanCosts.h), for the ops that the search prices
// (passes/Planning/StageCosts.h) and for those that overlap orders
// (passes/Sharding/SubmicrobatchChain.h).
#pragma once

#include "passes/CostModel/Cost.h"

#include <span>

namespace merak::costmodel {

using Sizes = std::span<const int64_t>;

// Sizes of an einsum: an index of both operands is of the batch or contracted,
// one of the first only belongs to m, of the second only to n. The variant says
// which operands have the contracted index where a matrix product m x k times
// k x n would not ("t"): "nn" forward, "nt" and "tn" in the gradients.
void describeProduct(const std::string &equation, Sizes a, Sizes b,
                     Kernel &kernel);
// Of factors in so many bytes an element that are rounded to 8 bits.
void describeRounding(Sizes a, Sizes b, double elementBytes, Kernel &kernel);
// Queries [b, t, heads, d] and keys [b, t, heads, d]. The flops count masked
// elements, which a causal kernel skips: its efficiency is a class of its own.
void describeAttention(Sizes queries, Sizes keys, Kernel &kernel);
// Batch of x times its spatial places, channels of the output, elements of one
// filter; gradients have the same three in another order.
void describeConv(Sizes y, Sizes weight, Kernel &kernel);
// By its class, from the sizes of the operands in their order.
void describeLibrary(const std::string &op, const std::string &equation,
                     const std::vector<Sizes> &inputs,
                     const std::vector<Sizes> &outputs, Kernel &kernel);
// A generated kernel, by the elements of its largest input and output: what it
// sums away costs more than what it writes.
std::string generatedName(double input, double output);
// A copy between these layouts.
std::string copyName(Sizes shape, Sizes from, Sizes to);

} // namespace merak::costmodel
