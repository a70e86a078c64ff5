// Waiting for a condition that another thread makes true: a short spin, then
// yields, then sleep. Many ranks share few cores, so the spin is short. Brief
// threads go to sleep at once.
#pragma once

#include "runtime/core/PromptThread.h"
#include "runtime/core/ThreadPool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace merak::runtime {

class Gate {
public:
  // Returns true when ready() is, false when `abort` is raised first. Sleepers
  // look at `abort` some times a second, so raising it needs no notify.
  template <typename Ready>
  bool wait(Ready &&ready, const std::atomic<bool> &abort) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready())
        return true;
      cpuRelax();
    }
    const auto sleep = std::chrono::steady_clock::now() + kAwake;
    while (!wakesPromptly() && std::chrono::steady_clock::now() < sleep) {
      if (ready())
        return true;
      std::this_thread::yield();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    bool result = true;
    while (!ready()) {
      if (abort.load()) {
        result = false;
        break;
      }
      changed_.wait_for(lock, std::chrono::milliseconds(50));
    }
    sleepers_.fetch_sub(1);
    return result;
  }

  // After the condition was made true by a sequentially consistent store.
  void notify() {
    if (sleepers_.load() == 0)
      return;
    { std::lock_guard lock(mutex_); }
    changed_.notify_all();
  }

private:
  static constexpr int kSpins = 100;
  // What falling asleep and being woken costs on a virtual machine. Whoever
  // else wants the core gets it.
  static constexpr std::chrono::microseconds kAwake{100};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
};

} // namespace merak::runtime
