// Where the time of a search goes, for `merakc --timing`.
#pragma once

#include <chrono>
#include <cstdint>

namespace merak::planning {

// How often something was done, and the seconds that it took in all.
struct TimedWork {
  int64_t count = 0;
  double seconds = 0;
  void add(const TimedWork &other) {
    count += other.count;
    seconds += other.seconds;
  }
};

struct SearchTimes {
  TimedWork shardings;          // with the times and bytes of their ops
  TimedWork quick, full, plain; // degrees planned; plain: as others train
  TimedWork parts;              // searches for stages with meshes of their own
  int64_t considered = 0;       // degrees that could have been, in `quick`
  int64_t byFew = 0;            // shardings by few of many equal layers
  void add(const SearchTimes &other) {
    shardings.add(other.shardings);
    quick.add(other.quick);
    full.add(other.full);
    plain.add(other.plain);
    parts.add(other.parts);
    considered += other.considered;
    byFew += other.byFew;
  }
};

// Adds the time until it goes out of scope.
class Stopwatch {
public:
  explicit Stopwatch(TimedWork &work) : work(work) {}
  ~Stopwatch() {
    ++work.count;
    work.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  Stopwatch(const Stopwatch &) = delete;
  Stopwatch &operator=(const Stopwatch &) = delete;

private:
  using Clock = std::chrono::steady_clock;
  TimedWork &work;
  Clock::time_point start = Clock::now();
};

} // namespace merak::planning
