#include "runtime/trust/UserKey.h"

#include "runtime/trust/Hmac.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace merak::trust {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kLongest = 4096;

std::string cannot(const std::string &path, const char *what) {
  return fmt::format("{}: cannot be {}: {}", path, what, std::strerror(errno));
}

bool writeAll(int file, const std::string &text) {
  return ::write(file, text.data(), text.size()) == ssize_t(text.size()) &&
         ::fsync(file) == 0;
}

// Under a name of its own first: a key is whole or not there, and of several
// that are made at once the first one stays.
Status makeKey(const std::string &path) {
  std::error_code error;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty())
    fs::create_directories(folder, error);
  if (error)
    return Status::error(fmt::format("{}: cannot be made: {}", folder.string(),
                                     error.message()));
  std::string own = path + ".XXXXXX";
  const int file = ::mkstemp(own.data()); // readable by the owner alone
  if (file < 0)
    return Status::error(cannot(path, "made"));
  Status status;
  if (!writeAll(file, toHex(randomBytes(kKeyBytes)) + "\n"))
    status = Status::error(cannot(path, "written"));
  ::close(file);
  // Not every file system has links.
  if (status.ok() && ::link(own.c_str(), path.c_str()) && errno != EEXIST &&
      ::rename(own.c_str(), path.c_str()))
    status = Status::error(cannot(path, "made"));
  ::unlink(own.c_str());
  return status;
}

// Null for what is set to nothing.
const char *set(const char *value) { return value && *value ? value : nullptr; }

} // namespace

std::string userKeyPath() {
  if (const char *path = set(std::getenv("MERAK_KEY")))
    return path;
  if (const char *config = set(std::getenv("XDG_CONFIG_HOME")))
    return std::string(config) + "/merak/key";
  if (const char *home = set(std::getenv("HOME")))
    return std::string(home) + "/.config/merak/key";
  // Services and clean environments have none; the account has one.
  const passwd *account = ::getpwuid(::geteuid());
  if (account && set(account->pw_dir))
    return std::string(account->pw_dir) + "/.config/merak/key";
  return {};
}

Result<std::string> readShort(const std::string &path) {
  // A pipe or a device would not end.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return Status::error(cannot(path, "read"));
  struct stat found {};
  std::string text(kLongest + 1, '\0');
  const bool isFile = !::fstat(file, &found) && S_ISREG(found.st_mode);
  const ssize_t count = isFile ? ::read(file, text.data(), text.size()) : 0;
  ::close(file);
  if (!isFile)
    return Status::error(fmt::format("{}: is no file", path));
  if (count < 0)
    return Status::error(cannot(path, "read"));
  if (size_t(count) > kLongest)
    return Status::error(fmt::format(
        "{}: expected at most {} bytes, found more", path, kLongest));
  text.resize(size_t(count));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

Result<std::string> readSecret(const std::string &path) {
  struct stat found {};
  if (!::stat(path.c_str(), &found) && S_ISREG(found.st_mode) &&
      found.st_mode & 077)
    return Status::error(fmt::format(
        "{}: others than its owner may use it: chmod 600 \"{}\"", path, path));
  return readShort(path);
}

bool isSecret(const std::string &text) {
  return text.size() >= kLeastDigits &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isxdigit(c); });
}

Result<std::string> userKey() {
  const std::string path = userKeyPath();
  if (path.empty())
    return Status::error("there is no place for this user's key: none of "
                         "MERAK_KEY, XDG_CONFIG_HOME and HOME is set, and "
                         "the account has no home");
  if (::access(path.c_str(), F_OK))
    MERAK_RETURN_IF_ERROR(makeKey(path));
  auto text = readSecret(path);
  if (text.ok() && !isSecret(*text))
    return Status::error(fmt::format(
        "{}: expected at least {} hexadecimal digits, found something else",
        path, kLeastDigits));
  return text;
}

} // namespace merak::trust
