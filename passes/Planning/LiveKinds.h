// Values that live from one action of a microbatch to another, by the kind of
// their lives: how many copies of each kind a schedule needs at once, as the
// plan will lay them out (passes/Memory/SlotPlan.h).
#pragma once

#include "passes/Planning/TransferPlaces.h"

#include <array>

namespace merak::planning {

// First and last action: F to R is what recomputation reads, B to W what the
// gradients of weights read of those before.
enum class LiveKind { F, FR, FB, FW, RB, RW, B, BW };
inline constexpr int kLiveKinds = 8;

// A number for each kind of life; received values are there one call earlier
// and sent ones one call longer, since transfers run beside the computation, or
// as long as TransferPlaces.h says.
template <typename T> struct PerLiveKind {
  std::array<T, kLiveKinds * 4> all{};
  T &at(LiveKind life, bool received = false, bool sent = false) {
    return all[size_t(life) * 4 + size_t(received) * 2 + size_t(sent)];
  }
  T at(LiveKind life, bool received = false, bool sent = false) const {
    return all[size_t(life) * 4 + size_t(received) * 2 + size_t(sent)];
  }
};
using LiveBytes = PerLiveKind<double>; // bytes of a microbatch

// The most copies at once on each virtual stage, of received values those that
// come from `distance` virtual stages away. Where a schedule lacks W or R,
// values for them live until B or from F.
std::vector<PerLiveKind<int>> copiesOf(const Schedule &schedule,
                                       int distance = 1);

// The same for one virtual stage and distance after the other: the lists are
// run only once.
class CopyCounter {
public:
  explicit CopyCounter(const Schedule &schedule);
  PerLiveKind<int> of(int virtualStage, int distance) const;

private:
  int stages, virtualStages;
  bool backward = false;
  // Stages wait for their neighbours, whatever else they receive: what comes
  // from farther away is there before.
  TransferPlaces transfers;
};

inline double bytesOf(const LiveBytes &lives, const PerLiveKind<int> &copies) {
  double bytes = 0;
  for (size_t i = 0; i < lives.all.size(); ++i)
    bytes += lives.all[i] * copies.all[i];
  return bytes;
}

} // namespace merak::planning
