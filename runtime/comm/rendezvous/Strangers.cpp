#include "runtime/comm/rendezvous/Strangers.h"

#include "runtime/comm/rendezvous/Sockets.h"
#include "runtime/trust/Hmac.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

// Of a run's files, libraries and devices.
constexpr size_t kOwnDescriptors = 256;
constexpr size_t kLeastStrangers = 16;
// Then others have their turn: the ranks that are there already.
constexpr int kAcceptsAtOnce = 64;

std::array<unsigned char, 16> addressOf(const sockaddr_storage &from) {
  std::array<unsigned char, 16> address{};
  if (from.ss_family == AF_INET)
    std::memcpy(address.data(),
                &reinterpret_cast<const sockaddr_in &>(from).sin_addr, 4);
  if (from.ss_family != AF_INET6)
    return address;
  const in6_addr &six = reinterpret_cast<const sockaddr_in6 &>(from).sin6_addr;
  // A host has 2^64 addresses of its own.
  std::memcpy(address.data(), &six, IN6_IS_ADDR_V4MAPPED(&six) ? 16 : 8);
  return address;
}

// How many strangers leave `ranks` and the rest of the process its
// descriptors. Raises the limit of this process where the system lets it.
size_t roomFor(size_t ranks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit))
    return kLeastStrangers;
  const rlim_t wanted = kOwnDescriptors + ranks + kMostStrangers;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < kOwnDescriptors + ranks + kLeastStrangers)
    return kLeastStrangers;
  return std::min<size_t>(kMostStrangers,
                          limit.rlim_cur - kOwnDescriptors - ranks);
}

} // namespace

Strangers::Strangers(int listener, std::string token, int ranks)
    : listener_(listener), token_(std::move(token)),
      most_(roomFor(size_t(ranks))) {}

void Strangers::accept() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    const int socket = ::accept4(listener_, reinterpret_cast<sockaddr *>(&from),
                                 &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      add(socket, addressOf(from));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
               errno == ENOMEM) {
      if (strangers_.empty()) {
        // Asking again at once would only take time from the ranks.
        acceptAgain_ = Clock::now() + std::chrono::milliseconds(100);
        return;
      }
      drop(0);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

void Strangers::add(int socket, const Address &address) {
  makeRoom(address);
  setPrompt(socket);
  std::string nonce = trust::randomBytes(kNonceBytes);
  const std::string challenge = encodeChallenge(nonce);
  // The buffer of a new connection has room for these few bytes.
  if (::send(socket, challenge.data(), challenge.size(), MSG_NOSIGNAL) !=
      ssize_t(challenge.size())) {
    ::close(socket);
    return;
  }
  strangers_.push_back(
      {socket, address, Clock::now(), std::move(nonce), {}, 0});
}

// Whoever opens many pushes out their own: of the address that asks for one
// too many, else of the one with the most.
void Strangers::makeRoom(const Address &address) {
  std::map<Address, size_t> counts;
  for (const Stranger &stranger : strangers_)
    ++counts[stranger.address];
  if (counts[address] >= kMostStrangersOfOneAddress)
    return dropOldest(address);
  if (strangers_.size() < most_)
    return;
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](auto &a, auto &b) { return a.second < b.second; });
  dropOldest(most->first);
}

void Strangers::dropOldest(const Address &of) {
  for (size_t i = 0; i < strangers_.size(); ++i)
    if (strangers_[i].address == of)
      return drop(i);
}

void Strangers::drop(size_t at) {
  ::close(strangers_[at].socket);
  strangers_.erase(strangers_.begin() + long(at));
}

void Strangers::dropAll() {
  for (const Stranger &stranger : strangers_)
    ::close(stranger.socket);
  strangers_.clear();
}

void Strangers::watch(std::vector<pollfd> &polled) const {
  for (const Stranger &stranger : strangers_)
    polled.push_back({stranger.socket, POLLIN, 0});
}

bool Strangers::read(Stranger &stranger) {
  const ssize_t count = recv(stranger.socket, &stranger.hello[stranger.got],
                             kHelloBytes - stranger.got, 0);
  if (count < 0)
    return errno == EAGAIN || errno == EINTR;
  stranger.got += size_t(count);
  return count > 0;
}

std::vector<Claim> Strangers::receive(const pollfd *polled) {
  std::vector<Claim> claims;
  std::vector<Stranger> stay;
  for (size_t i = 0; i < strangers_.size(); ++i) {
    Stranger &stranger = strangers_[i];
    if (polled[i].revents && !read(stranger)) {
      ::close(stranger.socket);
      continue;
    }
    if (stranger.got < kHelloBytes) {
      stay.push_back(std::move(stranger));
      continue;
    }
    bool proven = false;
    auto hello = decodeHello({stranger.hello.data(), kHelloBytes},
                             stranger.challenge, token_, proven);
    if (hello && proven) {
      claims.push_back(
          {stranger.socket, std::move(*hello), std::move(stranger.challenge)});
      continue;
    }
    // A rank of another run is told; others did not ask.
    const std::string refusal = encodeFrame({Frame::Refuse, 0, 0, "", ""});
    if (hello)
      (void)!::send(stranger.socket, refusal.data(), refusal.size(),
                    MSG_NOSIGNAL);
    ::close(stranger.socket);
  }
  strangers_ = std::move(stay);
  return claims;
}

void Strangers::expire() {
  const Clock::time_point last =
      Clock::now() - std::chrono::milliseconds(int(kStrangerSeconds * 1e3));
  while (!strangers_.empty() && strangers_.front().since < last)
    drop(0);
}

} // namespace merak::runtime
