#include "runtime/core/ThreadPool.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

using merak::runtime::ThreadPool;

TEST(ThreadPool, PartsCoverTheRangeOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 7, 64, 1001})
      for (int64_t grain : {1, 3, 50, 5000}) {
        std::vector<std::atomic<int>> hits(n);
        pool.parallelFor(n, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            ++hits[i];
        });
        for (int64_t i = 0; i < n; ++i)
          ASSERT_EQ(hits[i], 1) << threads << " " << n << " " << grain;
      }
  }
}

TEST(ThreadPool, CutDependsOnlyOnSizes) {
  ThreadPool pool(3);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::mutex mutex;
    std::set<std::pair<int64_t, int64_t>> parts;
    pool.parallelFor(100, 10, [&](int64_t begin, int64_t end) {
      std::lock_guard lock(mutex);
      parts.insert({begin, end});
    });
    const std::set<std::pair<int64_t, int64_t>> expected = {
        {0, 34}, {34, 68}, {68, 100}};
    ASSERT_EQ(parts, expected);
  }
}

TEST(ThreadPool, GrainLimitsParts) {
  ThreadPool pool(4);
  std::atomic<int> parts{0};
  pool.parallelFor(10, 5, [&](int64_t, int64_t) { ++parts; });
  EXPECT_EQ(parts, 2);
}

TEST(ThreadPool, NestedLoopsRunInline) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  pool.parallelFor(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      pool.parallelFor(10, 1, [&](int64_t b, int64_t e) { sum += e - b; });
  });
  EXPECT_EQ(sum, 80);
}

TEST(ThreadPool, TwoCallersShareOnePool) {
  ThreadPool pool(2);
  std::atomic<int64_t> sum{0};
  auto work = [&] {
    for (int i = 0; i < 5000; ++i)
      pool.parallelFor(16, 1, [&](int64_t b, int64_t e) { sum += e - b; });
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(sum, 2 * 5000 * 16);
}

// Workers fall asleep between loops and must not miss one.
TEST(ThreadPool, WakesAfterPauses) {
  ThreadPool pool(3);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int64_t> sum{0};
    pool.parallelFor(30, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    ASSERT_EQ(sum, 30);
  }
}
