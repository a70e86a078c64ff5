#include "runtime/launch/StartVote.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

constexpr const char *kGranted = "granted";
constexpr size_t kIdDigits = 16, kLongestName = 256;

std::optional<StartVote> voteOf(const std::string &text) {
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first != kIdDigits || second == std::string::npos ||
      text.find_first_not_of("0123456789abcdef") != kIdDigits)
    return std::nullopt;
  StartVote vote{{text.substr(0, first), 0}, text.substr(second + 1)};
  const char *end = text.data() + second;
  const auto read =
      std::from_chars(text.data() + first + 1, end, vote.start.start);
  if (read.ec != std::errc() || read.ptr != end || vote.start.start < 0 ||
      vote.agent.empty() || vote.agent.size() > kLongestName ||
      vote.agent.find_first_of(" \n\t/") != std::string::npos)
    return std::nullopt;
  return vote;
}

Status failed(const std::string &path) {
  return Status::error(
      fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
}

} // namespace

std::string grantArgument(const StartVote &vote) {
  return fmt::format("--grant={}:{}:{}", vote.start.id, vote.start.start,
                     vote.agent);
}

Status grantStart(const std::string &text, const std::string &base) {
  const auto vote = voteOf(text);
  if (!vote)
    return Status::error(
        fmt::format("--grant: expected ID:NUMBER:AGENT, found \"{}\"", text));
  const std::string folder = copiesPath(vote->start.id, base);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return failed(folder);
  const std::string path = joinPath(folder, kGranted);
  const int file =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0)
    return failed(path);
  Status status;
  char before[kLongestName + 32] = {};
  if (flock(file, LOCK_EX) != 0 ||
      pread(file, before, sizeof before - 1, 0) < 0) {
    status = failed(path);
  } else {
    std::istringstream words(before);
    int64_t number = -1;
    std::string agent;
    words >> number >> agent;
    if (number > vote->start.start ||
        (number == vote->start.start && agent != vote->agent)) {
      status = Status::error(fmt::format(
          "start {} of the run was granted to the agent on host {}, not start "
          "{} to that on host {}",
          number, agent, vote->start.start, vote->agent));
    } else {
      const std::string now =
          fmt::format("{} {}\n", vote->start.start, vote->agent);
      if (ftruncate(file, 0) != 0 ||
          pwrite(file, now.data(), now.size(), 0) != ssize_t(now.size()))
        status = failed(path);
    }
  }
  ::close(file); // and with it the lock
  return status;
}

bool mayLead(size_t granted, size_t hosts, bool isFirstStandby) {
  return granted > 0 &&
         (isFirstStandby ? 2 * granted >= hosts : 2 * granted > hosts);
}

} // namespace merak::runtime
