// A name that many copies share: stage problems of one model differ in numbers,
// and a search makes hundreds of them.
#pragma once

#include <string>
#include <string_view>

namespace merak::planning {

class SharedName {
public:
  SharedName() = default;
  SharedName(std::string_view name);
  SharedName(const std::string &name) : SharedName(std::string_view(name)) {}
  SharedName(const char *name) : SharedName(std::string_view(name)) {}

  const std::string &str() const;
  bool empty() const { return !name; }
  bool operator==(const SharedName &) const = default;

private:
  // One of each, as long as the process runs; null: empty.
  const std::string *name = nullptr;
};

} // namespace merak::planning
