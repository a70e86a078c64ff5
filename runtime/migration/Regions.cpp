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

} // namespace

void Regions::take(const Box &source,
                   const std::function<void(const layout::Overlap &)> &each) {
  std::vector<Box> rest;
  for (Box &box : boxes_) {
    const std::vector<layout::Overlap> shared =
        layout::overlaps({source}, {box});
    if (shared.empty()) {
      rest.push_back(std::move(box));
      continue;
    }
    each(shared[0]);
    addRest(box, shared[0].originB, shared[0].extent, rest);
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
