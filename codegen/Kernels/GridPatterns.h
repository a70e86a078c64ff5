// Sums of a row that need not be formed term by term in a pass of their own.
#pragma once

#include "codegen/Kernels/KernelGraph.h"

#include <optional>

namespace merak::codegen {

// Sum over j of exp(v[j] - max over j of v[j]). It is formed in the pass of the
// maximum: beside the largest value so far, the sum relative to it, which is
// rescaled when that value grows (Milakov and Gimelshein, 2018, "Online
// normalizer calculation for softmax").
struct RescaledSum {
  mlir::OpResult maximum;
  mlir::Operation *difference = nullptr; // v[j] - maximum, in the sum's body
  mlir::Operation *exponential = nullptr;
};

// Sum over j of (j == position ? v[j] : 0), a value at one place. What is
// compared and chosen is in the sum's body; the position is one for a row.
struct PickedSum {
  mlir::Value position;
  mlir::Value picked;
};

// Of a reduction, if it has that form.
std::optional<RescaledSum> asRescaledSum(const KernelGraph &graph,
                                         mlir::OpResult sum);
std::optional<PickedSum> asPickedSum(const KernelGraph &graph,
                                     mlir::OpResult sum);

} // namespace merak::codegen
