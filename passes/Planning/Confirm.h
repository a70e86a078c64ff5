// Which of the plans that a search found are written out and simulated, and
// which is taken. A search prices many plans quickly; what a plan takes when
// all of its instructions are known is simulated for a few of them. One is
// enough where both figures agree and no other plan promises less.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace merak::planning {

// The figures of search and simulation agree up to this part of the simulated.
inline constexpr double kAgrees = 0.02;

struct Finalist {
  double expected = 0;             // seconds, as the search priced it
  std::optional<double> simulated; // none: not yet
  bool failed = false;             // it cannot be written, or does not fit
};

// Best expected first. The one to write and simulate next; none: the best of
// those that were is taken. At most `most` are simulated.
//
//   expected   10.0  10.05  12.0
//   simulated  10.1                 agrees, and 0.5 % is not worth a try: done
//   simulated  11.0                 next: the second
//   simulated  11.0  10.1           the first is off by 9 %: the third may be
//                                   as far off as that, next
std::optional<size_t> nextFinalist(const std::vector<Finalist> &finalists,
                                   size_t most);
// The same where those from each of `begins` on are another kind of plan: the
// next one of the first kind; when these are done, of the next kind, best
// expected first, at most `most` of each.
std::optional<size_t> nextOfKinds(const std::vector<Finalist> &finalists,
                                  const std::vector<size_t> &begins,
                                  size_t most);
// The fastest by simulation, of equals the first; none: nothing was simulated.
std::optional<size_t> bestFinalist(const std::vector<Finalist> &finalists);

} // namespace merak::planning
