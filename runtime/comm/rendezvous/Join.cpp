#include "runtime/comm/rendezvous/Join.h"

#include "runtime/comm/rendezvous/Handshake.h"
#include "runtime/comm/rendezvous/Sockets.h"
#include "runtime/trust/Hmac.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace merak::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// For an answer that takes a round trip; rank 0 may be busy with strangers.
constexpr double kAnswerSeconds = 10;

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::milliseconds(int64_t(seconds * 1e3));
}

class Attempt {
public:
  Attempt(const TcpStoreOptions &options, const JoinNames &names, int socket,
          Clock::time_point deadline)
      : options_(options), names_(names), socket_(socket),
        deadline_(std::min(deadline, after(kAnswerSeconds))) {}

  // Joined, or why not; `final`: and never will be.
  Result<Joined> run(bool &final);

private:
  // At least `count` bytes; false if they do not come.
  bool read(size_t count);
  std::optional<Frame> readVerdict();
  Status fail(std::string text) const { return Status::error(std::move(text)); }
  std::string where() const {
    return fmt::format("{} port {}", fmt::join(options_.addresses, " or "),
                       options_.port);
  }

  const TcpStoreOptions &options_;
  const JoinNames &names_;
  int socket_;
  Clock::time_point deadline_;
  std::string bytes_;
};

bool Attempt::read(size_t count) {
  while (bytes_.size() < count) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline_ - Clock::now());
    pollfd polled{socket_, POLLIN, 0};
    if (left.count() < 0 || poll(&polled, 1, int(left.count()) + 1) < 0)
      return false;
    char buffer[kVerdictBytes];
    const ssize_t got =
        polled.revents
            ? recv(socket_, buffer, std::min(sizeof(buffer), kVerdictBytes), 0)
            : 0;
    if (polled.revents && got <= 0)
      return false;
    bytes_.append(buffer, size_t(got));
  }
  return true;
}

// The first frame; none if what comes is no verdict.
std::optional<Frame> Attempt::readVerdict() {
  while (true) {
    size_t position = 0;
    bool broken = false;
    if (auto frame = decodeFrame(bytes_, position, broken)) {
      bytes_.erase(0, position);
      return frame;
    }
    if (broken || bytes_.size() > kVerdictBytes || !read(bytes_.size() + 1))
      return {};
  }
}

Result<Joined> Attempt::run(bool &final) {
  final = false;
  if (!read(kChallengeBytes))
    return fail(names_.server + " does not answer");
  final = true;
  const auto challenge = decodeChallenge(bytes_);
  if (!challenge)
    return fail(fmt::format("something else than {} of this version "
                            "listens at {}",
                            names_.server, where()));
  bytes_.clear();
  const Hello hello{options_.rank, options_.size,
                    hostName().substr(0, kHostBytes),
                    trust::randomBytes(kNonceBytes)};
  std::optional<Frame> verdict;
  if (sendAll(socket_, encodeHello(hello, *challenge, options_.token)))
    verdict = readVerdict();
  if (!verdict) { // too many strangers pushed this rank out
    final = false;
    return fail(names_.server + " does not answer");
  }
  if (!checkProof(*verdict, hello, *challenge, options_.token))
    return fail(fmt::format(
        "{} on host {} and what listens at {} know different secrets: "
        "another run is there, or the {} were not given one MERAK_TOKEN",
        names_.mine, hostName(), where(), names_.all));
  if (verdict->type != Frame::Welcome)
    return fail(verdict->value);
  return Joined{socket_, verdict->key, double(verdict->number) / 1e3,
                std::move(bytes_)};
}

} // namespace

Result<Joined> joinServer(const TcpStoreOptions &options) {
  bool final = false;
  return joinServer(options,
                    {fmt::format("rank {}", options.rank), "rank 0", "ranks"},
                    final);
}

Result<Joined> joinServer(const TcpStoreOptions &options,
                          const JoinNames &names, bool &final) {
  final = false;
  const Clock::time_point deadline = after(options.connectSeconds);
  Status problem = Status::error(fmt::format(
      "{} on host {} cannot reach {} at {} port {} in {:g} seconds", names.mine,
      hostName(), names.server, fmt::join(options.addresses, " or "),
      options.port, options.connectSeconds));
  while (true) {
    for (const std::string &address : options.addresses) {
      const int socket = connectTo(address, options.port, 2);
      if (socket < 0)
        continue;
      setPrompt(socket);
      auto joined = Attempt(options, names, socket, deadline).run(final);
      if (joined.ok())
        return joined;
      ::close(socket);
      if (final)
        return joined;
      problem = joined.status();
    }
    if (Clock::now() >= deadline)
      return problem;
    // Rank 0 may not listen yet.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

} // namespace merak::runtime
