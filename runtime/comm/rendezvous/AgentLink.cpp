#include "runtime/comm/rendezvous/AgentHub.h"
#include "runtime/comm/rendezvous/Join.h"
#include "runtime/comm/rendezvous/Wire.h"
#include "runtime/core/SecondsSince.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

constexpr double kSignSeconds = 1, kPauseSeconds = 3;

} // namespace

Result<std::unique_ptr<AgentLink>>
AgentLink::join(const std::string &address, int port, const Options &options,
                double seconds, bool &final) {
  TcpStoreOptions server;
  server.addresses = {address};
  server.port = port;
  server.token = options.token;
  server.connectSeconds = seconds;
  auto joined = joinServer(
      server, {"the agent", "an agent that leads a run", "agents"}, final);
  if (!joined)
    return joined.status();
  Options mine = options;
  mine.silenceSeconds = joined->silenceSeconds;
  std::unique_ptr<AgentLink> link(
      new AgentLink(joined->socket, joined->serverHost, mine));
  link->in_ = std::move(joined->bytes);
  if (!sendAll(link->socket_,
               encodeFrame({Frame::Put, 0, mine.port, "joins", mine.run})))
    return Status::error(
        fmt::format("the agent on host {} is gone again", link->leader_));
  return link;
}

AgentLink::AgentLink(int socket, std::string leader, const Options &options)
    : socket_(socket), leader_(std::move(leader)), options_(options),
      heard_(std::chrono::steady_clock::now()), signed_(heard_),
      looked_(heard_) {}

// What is unread would make a broken connection of one that ends in order.
AgentLink::~AgentLink() {
  char buffer[4096];
  while (recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {
  }
  ::close(socket_);
}

double AgentLink::secondsSilent() const { return secondsSince(heard_); }

AgentLink::End AgentLink::listen(double seconds) {
  if (const End end = handle(); end != End::none)
    return end;
  if (secondsSince(looked_) > kPauseSeconds)
    heard_ = std::chrono::steady_clock::now();
  if (secondsSince(signed_) > kSignSeconds) {
    signed_ = std::chrono::steady_clock::now();
    const std::string sign = encodeFrame({Frame::Alive, 0, 0, "", ""});
    // Who does not read it is silent, too.
    (void)!::send(socket_, sign.data(), sign.size(),
                  MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  pollfd polled{socket_, POLLIN, 0};
  const int ready = poll(&polled, 1, int(seconds * 1e3));
  looked_ = std::chrono::steady_clock::now();
  if (ready <= 0)
    return End::none;
  char buffer[1 << 16];
  const ssize_t count = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR))
    return End::none;
  if (count <= 0)
    return count == 0 ? End::gone : End::broken;
  heard_ = looked_;
  in_.append(buffer, size_t(count));
  return handle();
}

AgentLink::End AgentLink::handle() {
  size_t position = 0;
  bool broken = false;
  End end = End::none;
  while (auto frame = decodeFrame(in_, position, broken)) {
    if (frame->type == Frame::Leave) {
      code_ = int(frame->number);
      end = End::over;
    } else if (frame->type == Frame::Refuse) {
      why_ = frame->value;
      end = End::refused;
    } else if (frame->type == Frame::Put && frame->key == "state") {
      state_ = std::move(frame->value);
    } else if (frame->type == Frame::Put && frame->key == "agents") {
      members_.clear();
      const std::vector<std::string> parts = unpackStrings(frame->value);
      for (size_t i = 0; i + 1 < parts.size(); i += 2)
        members_.push_back({parts[i], std::atoi(parts[i + 1].c_str())});
      place_ = size_t(frame->number);
    }
    if (end != End::none)
      break;
  }
  in_.erase(0, position);
  return broken ? End::broken : end;
}

void AgentLink::leave() {
  const std::string bye = encodeFrame({Frame::Leave, 0, 0, "", ""});
  (void)!::send(socket_, bye.data(), bye.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void AgentLink::takeOver() {
  const std::string word = encodeFrame({Frame::Put, 0, 0, "leads", ""});
  (void)!::send(socket_, word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

} // namespace merak::runtime
