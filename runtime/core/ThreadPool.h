// The compute threads of one rank: a loop over [0, n) cut into equal parts,
// with low latency, because a kernel often takes only some microseconds.
//
// Workers spin briefly for the next loop, then sleep. The caller takes part.
// The cut depends only on n, grain and the number of threads, never on timing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace merak::runtime {

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
    run(n, grain,
        [](void *context, int64_t begin, int64_t end) {
          (*static_cast<decltype(address)>(context))(begin, end);
        },
        const_cast<void *>(static_cast<const void *>(address)));
  }

private:
  using Function = void (*)(void *context, int64_t begin, int64_t end);
  void run(int64_t n, int64_t grain, Function function, void *context);
  void runPart(int part);
  void workerMain(int part);

  struct Job {
    Function function = nullptr;
    void *context = nullptr;
    int64_t n = 0, chunk = 0;
    int parts = 0;
  };

  std::vector<std::thread> workers_;
  std::mutex busy_; // held by the caller for the length of a loop
  Job job_;
  // Counts loops; bit 0 is unused, so that a changed value means new work.
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> pending_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex sleepMutex_;
  std::condition_variable wake_;
};

} // namespace merak::runtime
