// Time that has gone by.
#pragma once

#include <chrono>

namespace merak::runtime {

inline double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

} // namespace merak::runtime
