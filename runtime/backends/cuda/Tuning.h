// Which of several ways to compute one thing is the fastest on this machine:
// timed once, and remembered in a file, so that the next run takes the same way
// and gives the same bits.
//
// Ways differ in how they round. All who compute something that must be equal
// need one choice: ranks that are threads share the process's; processes take
// choices from a file only and time nothing, so that the ones of different
// hosts cannot choose differently (docs/rationale/cuda-tuning.md).
#pragma once

#include "runtime/core/Status.h"

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace merak::cuda {

class Tuning {
public:
  // `file`: empty, nothing is remembered. `times`: what the file lacks is
  // timed, and written there.
  explicit Tuning(std::string file = {}, bool times = true);
  // The process's own: the file that MERAK_TUNING names, or the user's cache.
  static Tuning &ofProcess();
  // From now on choices come from what MERAK_TUNING names, if that is a file,
  // or there are none.
  void shareWithProcesses();

  struct Choice {
    size_t index = 0;
    double seconds = 0;
    bool operator==(const Choice &) const = default;
  };
  // Seconds of a run of an alternative, or why it cannot run.
  using Timer = std::function<Result<double>(size_t alternative)>;
  // The fastest of `count` >= 1 alternatives, the least of some rounds
  // counting; an earlier one wins unless a later one is clearly faster. `key`
  // says all that times depend on: device, library, problem. Nothing where the
  // answer is not known and may not be timed, or no alternative runs.
  std::optional<Choice> choose(const std::string &key, size_t count,
                               const Timer &time);
  // Whether `choose` can have an answer at all.
  bool active() const;
  // What was in the way of reading or writing the file; empty: nothing.
  std::string problem() const;

private:
  struct Known {
    size_t count;
    Choice choice;
  };
  void read();
  void write();

  mutable std::mutex mutex_;
  std::string file_, problem_;
  bool named_ = false; // the file, by the user
  bool tells_ = false; // on standard error, once, why it cannot be written
  bool times_;
  std::map<std::string, Known> known_;
};

} // namespace merak::cuda
