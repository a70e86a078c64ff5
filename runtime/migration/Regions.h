// What is still to come of a local tensor, box by box (private to this folder).
#pragma once

#include "runtime/layout/Layout.h"

#include <functional>

namespace merak::migration {

class Regions {
public:
  explicit Regions(std::vector<layout::Box> boxes) : boxes_(std::move(boxes)) {}

  // Calls `each` for every part that `source` and what is left share, with its
  // origins in the source's and in this local tensor; then it is not left.
  void take(const layout::Box &source,
            const std::function<void(const layout::Overlap &)> &each);
  bool isEmpty() const { return boxes_.empty(); }
  int64_t elements() const;

private:
  std::vector<layout::Box> boxes_; // disjoint
};

} // namespace merak::migration
