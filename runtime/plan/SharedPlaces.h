// Which operand a library kernel may write its result over: the two may be one
// view of one buffer, as each element is read before it is written, by the
// thread that writes it. Kernels that compute it otherwise do not go here; the
// conformance tests run each kernel so as well.
#pragma once

#include <optional>
#include <string_view>

namespace merak {

struct SharedPlace {
  std::string_view kernel;
  int input = 0; // the first output is written over it
};

inline constexpr SharedPlace kSharedPlaces[] = {
    {"softmax_cross_entropy_grad", 0}, // dlogits over logits
};

constexpr std::optional<int> sharedInput(std::string_view kernel) {
  for (const SharedPlace &place : kSharedPlaces)
    if (place.kernel == kernel)
      return place.input;
  return std::nullopt;
}

} // namespace merak
