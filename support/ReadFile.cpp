#include "support/ReadFile.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace merak {

static std::string inWords(int error) {
  std::string text = std::strerror(error);
  text[0] = static_cast<char>(std::tolower(text[0]));
  return text;
}

static std::string whyNone(const struct stat &info) {
  if (S_ISREG(info.st_mode))
    return {};
  return S_ISDIR(info.st_mode) ? "is a directory" : "is not a file";
}

std::string whyNoFile(const std::string &path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0)
    return inWords(errno);
  return whyNone(info);
}

std::string readFile(const std::string &path, std::string &contents) {
  // Else opening a pipe waits for its writer.
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0)
    return inWords(errno);
  struct stat info;
  std::string why = ::fstat(fd, &info) != 0 ? inWords(errno) : whyNone(info);
  contents.clear();
  char buffer[1 << 16];
  while (why.empty()) {
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n > 0)
      contents.append(buffer, static_cast<size_t>(n));
    else if (n == 0)
      break;
    else if (errno != EINTR)
      why = inWords(errno);
  }
  ::close(fd);
  return why;
}

} // namespace merak
