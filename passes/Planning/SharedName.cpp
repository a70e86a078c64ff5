#include "passes/Planning/SharedName.h"

#include <mutex>
#include <unordered_set>

namespace merak::planning {

SharedName::SharedName(std::string_view of) {
  if (of.empty())
    return;
  static std::mutex mutex;
  static std::unordered_set<std::string> all; // elements stay where they are
  std::lock_guard lock(mutex);
  name = &*all.emplace(of).first;
}

const std::string &SharedName::str() const {
  static const std::string none;
  return name ? *name : none;
}

} // namespace merak::planning
