#include "runtime/core/Output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace merak::runtime {

Status writeLine(std::FILE *file, const std::string &name,
                 const std::string &line) {
  const std::string text = line + "\n";
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
      std::fflush(file) == 0)
    return {};
  return Status::error(
      fmt::format("cannot write {}: {}", name, std::strerror(errno)));
}

Status printLine(const std::string &line) {
  return writeLine(stdout, "to standard output", line);
}

void complain(const std::string &line) {
  (void)writeLine(stderr, "to standard error", line);
}

} // namespace merak::runtime
