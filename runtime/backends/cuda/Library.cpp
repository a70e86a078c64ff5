#include "runtime/backends/cuda/Library.h"

#include <dlfcn.h>
#include <fmt/ranges.h>

namespace merak::cuda {

Status Library::open(const std::vector<std::string> &names,
                     const std::string &what) {
  what_ = what;
  std::string first;
  for (const std::string &name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) {
      name_ = name;
      return {};
    }
    if (const char *text = dlerror(); text && first.empty())
      first = text;
  }
  return Status::error(
      fmt::format("the cuda backend needs {}: {}", what, first));
}

void *Library::symbol(const char *name) {
  void *found = handle_ ? dlsym(handle_, name) : nullptr;
  if (!found)
    missing_.push_back(name);
  return found;
}

Status Library::complete() const {
  if (missing_.empty())
    return {};
  return Status::error(
      fmt::format("the cuda backend needs a newer version of {}: {} has no {}",
                  what_, name_, fmt::join(missing_, ", ")));
}

} // namespace merak::cuda
