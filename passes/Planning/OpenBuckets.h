// Which gradients are reduced by one collective: those of a kind in the order
// in which they are ready, as many as a bucket holds. What fills a bucket by
// itself goes alone and leaves the open one to those that come behind it. The
// lowering and the prices of the search both ask here.
#pragma once

#include <cstddef>
#include <map>

namespace merak::planning {

template <typename Kind> class OpenBuckets {
public:
  // The bucket that the next gradient goes into: that of its kind which is
  // open, if `takes(bucket)`, or `next`, a new one.
  template <typename Takes>
  size_t place(const Kind &kind, bool fills, size_t next, Takes takes) {
    if (fills)
      return next;
    auto [it, isNew] = open.try_emplace(kind, next);
    if (!isNew && !takes(it->second))
      it->second = next;
    return it->second;
  }

private:
  std::map<Kind, size_t> open;
};

} // namespace merak::planning
