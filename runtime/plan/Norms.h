// Outputs of a step that say how large its gradients are.
#pragma once

#include <string_view>

namespace merak {

// The norm of all gradients.
inline constexpr std::string_view kGradNorm = "grad_norm";
// The same where replicas have not summed some of them yet
// (--delayed-gradients): of those the squares of each replica's own sums count.
inline constexpr std::string_view kReplicaNorm = "replica_norm";

// One of both; finite if all gradients are.
inline bool isNorm(std::string_view output) {
  return output == kGradNorm || output == kReplicaNorm;
}

} // namespace merak
