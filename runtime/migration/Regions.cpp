#include "runtime/migration/Regions.h"

namespace merak::migration {

namespace {

using layout::Box;

// `box` without its part that begins at `origin` of the local tensor, in boxes:
// along each dimension what lies before it and what lies behind. Of [0, 6) x
// [0, 8) without [2, 4) x [0, 3): [0, 2) x [0, 8), [4, 6) x [0, 8), and
// [2, 4) x [3, 8).
void addRest(Box box, const std::vector<int64_t> &origin,
             const std::vector<int64_t> &extent, std::vector<Box> &rest) {
  for (size_t d = 0; d < extent.size(); ++d) {
    const int64_t before = origin[d] - box.localOrigin[d];
    const int64_t behind = box.extent[d] - before - extent[d];
    auto cut = [&](int64_t begin, int64_t length) {
      Box part = box;
      part.globalOrigin[d] += begin;
      part.localOrigin[d] += begin;
      part.extent[d] = length;
      return part;
    };
    if (before > 0)
      rest.push_back(cut(0, before));
    if (behind > 0)
      rest.push_back(cut(before + extent[d], behind));
    box = cut(before, extent[d]);
  }
}

bool touch(const Box &a, const Box &b) {
  for (size_t d = 0; d < a.extent.size(); ++d)
    if (a.globalOrigin[d] + a.extent[d] <= b.globalOrigin[d] ||
        b.globalOrigin[d] + b.extent[d] <= a.globalOrigin[d])
      return false;
  return true;
}

} // namespace

void Regions::take(const Box &source,
                   const std::function<void(const layout::Overlap &)> &each) {
  // Most boxes of a tensor share nothing with what one device needs.
  size_t first = 0;
  while (first < boxes_.size() && !touch(source, boxes_[first]))
    ++first;
  if (first == boxes_.size())
    return;
  std::vector<Box> rest(boxes_.begin(), boxes_.begin() + int64_t(first));
  for (size_t i = first; i < boxes_.size(); ++i) {
    if (!touch(source, boxes_[i])) {
      rest.push_back(std::move(boxes_[i]));
      continue;
    }
    const layout::Overlap shared =
        layout::overlaps({source}, {boxes_[i]}).front();
    each(shared);
    addRest(boxes_[i], shared.originB, shared.extent, rest);
  }
  boxes_ = std::move(rest);
}

int64_t Regions::elements() const {
  int64_t count = 0;
  for (const Box &box : boxes_)
    count += box.elements();
  return count;
}

} // namespace merak::migration
