// A block of the emulated device. With several threads they run as fibers that
// change at every sum, maximum and barrier, in an order that is not that of
// their numbers.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace merak::cuda {

class Fibers {
public:
  // Runs body(thread) for each thread to its end.
  Fibers(int count, std::function<void(int)> body)
      : body_(std::move(body)), fibers_(count) {
    for (int i = 0; i < count; ++i) {
      Fiber &fiber = fibers_[i];
      fiber.stack.resize(kStack);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.data();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = &main_;
      const auto self = reinterpret_cast<uintptr_t>(this);
      makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Fibers::enter),
                  3, int(self >> 32), int(self & 0xffffffff), i);
    }
  }
  void run() {
    for (bool more = true; more;) {
      more = false;
      for (int i = static_cast<int>(fibers_.size()); i-- > 0;) {
        if (fibers_[i].done)
          continue;
        swapcontext(&main_, &fibers_[i].context);
        more = true;
      }
    }
  }
  // Called by a fiber: until all others have come as far.
  void yield(int thread) { swapcontext(&fibers_[thread].context, &main_); }

private:
  static constexpr size_t kStack = 64 << 10;
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
  };
  static void enter(int high, int low, int thread) {
    auto *self = reinterpret_cast<Fibers *>(uintptr_t(uint32_t(high)) << 32 |
                                            uint32_t(low));
    self->body_(thread);
    self->fibers_[thread].done = true;
  }
  std::function<void(int)> body_;
  std::vector<Fiber> fibers_;
  ucontext_t main_;
};

// What the threads of a block share.
struct HostBlockState {
  int64_t block = 0, blocks = 1;
  int threads = 1;
  Fibers *fibers = nullptr; // null with one thread
  std::vector<uint64_t> words[2];
  std::vector<std::max_align_t> scratch;
};

class HostBlock {
public:
  HostBlock(HostBlockState &state, int thread)
      : state_(state), thread_(thread) {}
  int64_t block() const { return state_.block; }
  int64_t blocks() const { return state_.blocks; }
  int thread() const { return thread_; }
  int threads() const { return state_.threads; }
  void sync() {
    if (state_.fibers)
      state_.fibers->yield(thread_);
  }
  template <typename T, int bytes> T *scratch() {
    static_assert(bytes <= kMostScratch);
    if (state_.scratch.empty()) { // of the first thread that asks
      state_.scratch.resize(bytes / sizeof(std::max_align_t));
      std::memset(state_.scratch.data(), 0xcd, bytes);
    }
    return reinterpret_cast<T *>(state_.scratch.data());
  }
  template <typename T> T sum(T value) {
    return reduce(value, [](T a, T b) { return a + b; });
  }
  template <typename T> T max(T value) {
    return reduce(value, [](T a, T b) { return b > a ? b : a; });
  }
  int before(bool flag, int &total) {
    int count = 0;
    total = flag;
    if (!state_.fibers)
      return 0;
    std::vector<uint64_t> &words = state_.words[turn_++ % 2];
    words.resize(state_.threads);
    words[thread_] = flag;
    sync();
    total = 0;
    for (int i = 0; i < state_.threads; ++i) {
      count += i < thread_ && words[i] != 0;
      total += words[i] != 0;
    }
    return count;
  }

private:
  // Two sets alternate, so that one barrier a reduction is enough.
  template <typename T, typename Op> T reduce(T value, const Op &op) {
    if (!state_.fibers)
      return value;
    std::vector<uint64_t> &words = state_.words[turn_++ % 2];
    words.resize(state_.threads);
    std::memcpy(&words[thread_], &value, sizeof(T));
    sync();
    T result, next;
    std::memcpy(&result, &words[0], sizeof(T));
    for (int i = 1; i < state_.threads; ++i) {
      std::memcpy(&next, &words[i], sizeof(T));
      result = op(result, next);
    }
    return result;
  }
  HostBlockState &state_;
  int thread_;
  int turn_ = 0;
};

} // namespace merak::cuda
