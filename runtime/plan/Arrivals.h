// What the ranks of a plan receive in boxes from stages on other meshes,
// followed back to who made it: a rank that passes a box on adds nothing to it.
#pragma once

#include "runtime/plan/Communication.h"

#include <map>
#include <vector>

namespace merak {

// A box of a buffer: origin and extent by dimension.
struct BufferBox {
  std::vector<int64_t> origin, extent;
  bool operator==(const BufferBox &) const = default;

  int64_t elements() const;
  // Of what both have; false: nothing.
  bool intersect(const BufferBox &other, BufferBox &out) const;
};

struct Arrival {
  BufferBox into;
  int sender = 0, sequence = 0; // among the sender's transfers
  uint32_t buffer = 0;          // of the sender
  BufferBox of;
};

// Whether both lists bring the same elements, whoever sends them: of those that
// bring an element twice, `alike` says whether it may count as the same.
template <typename Alike>
bool bringTheSame(const std::vector<Arrival> &a, const std::vector<Arrival> &b,
                  Alike alike) {
  auto volume = [](const std::vector<Arrival> &list) {
    int64_t sum = 0;
    for (const Arrival &one : list)
      sum += one.into.elements();
    return sum;
  };
  auto shift = [](const Arrival &one, size_t d) {
    return one.of.origin[d] - one.into.origin[d];
  };
  auto same = [&](const Arrival &x, const Arrival &y) {
    if (x.buffer != y.buffer || x.of.origin.size() != y.of.origin.size())
      return false;
    for (size_t d = 0; d < x.of.origin.size(); ++d)
      if (shift(x, d) != shift(y, d))
        return false;
    return alike(x, y);
  };
  int64_t shared = 0;
  BufferBox both;
  for (size_t i = 0; i < a.size(); ++i) {
    // Most often it is the one in the same place.
    if (i < b.size() && a[i].into == b[i].into) {
      if (!same(a[i], b[i]))
        return false;
      shared += a[i].into.elements();
      continue;
    }
    for (const Arrival &y : b) {
      if (!a[i].into.intersect(y.into, both))
        continue;
      if (!same(a[i], y))
        return false;
      shared += both.elements();
    }
  }
  return volume(a) == volume(b) && shared == volume(a);
}

class Arrivals {
public:
  // Of the first of the calls that receive it.
  explicit Arrivals(const CommunicationMap &map);

  const std::vector<Arrival> &of(int rank, uint32_t buffer) const;

private:
  struct Received {
    Arrival arrival;
    int call, instruction; // of the sender
    int ownCall, ownInstruction;
  };
  using Key = std::pair<int, uint32_t>; // rank, buffer

  void collect(int rank);
  int sendTo(int rank, int sequence) const;
  bool passesOn(int sender, const Received &one) const;
  std::vector<Arrival> traced(const Received &one, int depth) const;

  const CommunicationMap &map_;
  std::vector<std::map<std::string, int>> sends_; // by program, channel
  std::map<Key, std::vector<Received>> received_;
  std::map<Key, std::vector<Arrival>> arrivals_;
};

} // namespace merak
