// Bytes that the runtime of this process holds for plans: arenas and working
// memory of kernels. What `merak-run` reports beside the prediction. Any
// thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace merak::runtime {

class MemoryCount {
public:
  static void add(int64_t bytes) {
    const int64_t held = held_.fetch_add(bytes) + bytes;
    int64_t most = most_.load();
    while (most < held && !most_.compare_exchange_weak(most, held)) {
    }
  }
  static void remove(int64_t bytes) { held_.fetch_sub(bytes); }
  static int64_t held() { return held_.load(); }
  // The most that was ever held at once.
  static int64_t most() { return most_.load(); }

private:
  static inline std::atomic<int64_t> held_{0}, most_{0};
};

} // namespace merak::runtime
