// The compute threads of one rank: a loop over [0, n) cut into equal parts,
// with low latency, because a kernel often takes only some microseconds.
//
// Workers spin briefly for the next loop, then sleep. The caller takes part,
// and takes over the parts of workers that are late. The cut depends only on n,
// grain and the number of threads, never on timing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace merak::runtime {

// Tells the processor that this thread only waits.
inline void cpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class ThreadPool {
public:
  // `threads` counts the caller: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on disjoint parts that cover [0, n), each at least
  // `grain` long (but for the last), at most one part per thread, and returns
  // when all are done. Nested calls, and calls while another thread uses the
  // pool, run body(0, n) on the calling thread.
  template <typename Body>
  void parallelFor(int64_t n, int64_t grain, Body &&body) {
    if (n <= 0)
      return;
    if (workers_.empty() || n <= grain) {
      body(int64_t{0}, n);
      return;
    }
    auto *address = std::addressof(body);
    run(
        n, grain,
        [](void *context, int64_t begin, int64_t end) {
          (*static_cast<decltype(address)>(context))(begin, end);
        },
        const_cast<void *>(static_cast<const void *>(address)));
  }

private:
  using Function = void (*)(void *context, int64_t begin, int64_t end);
  struct Job {
    Function function = nullptr;
    void *context = nullptr;
    int64_t n = 0, chunk = 0;
  };

  void run(int64_t n, int64_t grain, Function function, void *context);
  // Takes one part of the current loop, if one is left, and runs it.
  bool runOnePart();
  void workerMain();

  std::vector<std::thread> workers_;
  std::atomic_flag busy_; // held by the caller for the length of a loop
  // Stable from the publication of a ticket until `pending_` is zero.
  Job job_;
  // loop number (32 bits) | parts taken (16) | parts (16). A part belongs to
  // the thread that raised "taken", so a late worker never touches a job whose
  // parts are all taken.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleepMutex_;
  std::condition_variable wake_;
};

} // namespace merak::runtime
