#include "runtime/comm/rendezvous/AgentHub.h"

#include "runtime/comm/rendezvous/Sockets.h"
#include "runtime/comm/rendezvous/Strangers.h"
#include "runtime/core/SecondsSince.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

constexpr double kSignSeconds = 1; // between signs of life
// After a pause of this very process everybody else seems silent.
constexpr double kPauseSeconds = 3;
// For the last word to arrive.
constexpr double kFarewellSeconds = 1;
// Hosts, with one that comes back, more than anybody starts agents on.
constexpr int kMostAgents = 256;
// What an agent says in a time, which is little.
constexpr size_t kMostBytes = size_t(1) << 16;

} // namespace

AgentHub::AgentHub(Options options, std::unique_ptr<StoreListener> listener)
    : options_(std::move(options)), port_(listener->port()),
      signed_(Clock::now()), looked_(signed_) {
  listener_ = listener->release();
  if (pipe(wake_) != 0)
    wake_[0] = wake_[1] = -1;
  setNonBlocking(listener_);
  thread_ = std::thread([this] { main(); });
}

AgentHub::~AgentHub() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  (void)!write(wake_[1], "x", 1);
  thread_.join();
  for (auto &[id, peer] : peers_)
    if (peer.socket >= 0)
      ::close(peer.socket);
  ::close(listener_);
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void AgentHub::main() {
  Strangers strangers(listener_, options_.token, kMostAgents);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    std::vector<pollfd> polled = {
        {wake_[0], POLLIN, 0},
        {strangers.mayAccept() ? listener_ : -1, POLLIN, 0}};
    const size_t firstPeer = polled.size();
    std::vector<int> ids;
    for (auto &[id, peer] : peers_) {
      const short events = POLLIN | (peer.out.empty() ? 0 : POLLOUT);
      polled.push_back({peer.socket, events, 0}); // -1 is not looked at
      ids.push_back(id);
    }
    const size_t firstStranger = polled.size();
    strangers.watch(polled);
    lock.unlock();
    poll(polled.data(), polled.size(), int(kSignSeconds * 250));
    for (const Claim &claim : strangers.receive(&polled[0] + firstStranger)) {
      const Frame welcome{Frame::Welcome, 0,
                          int64_t(options_.silenceSeconds * 1e3), hostName(),
                          ""};
      const std::string bytes = encodeFrame(
          proven(welcome, claim.hello, claim.challenge, options_.token));
      // The buffer of a connection on which almost nothing was sent has room.
      (void)!::send(claim.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      lock.lock();
      admit(claim.socket, claim.hello.host);
      lock.unlock();
    }
    strangers.expire();
    if (polled[1].revents)
      strangers.accept();
    char woken[16];
    if (polled[0].revents)
      (void)!read(wake_[0], woken, sizeof woken);
    lock.lock();
    const Clock::time_point now = Clock::now();
    if (std::chrono::duration<double>(now - looked_).count() > kPauseSeconds)
      for (auto &[id, peer] : peers_)
        peer.heard = now;
    looked_ = now;
    bool changed = false;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto found = peers_.find(ids[i]);
      if (found == peers_.end() || found->second.socket < 0)
        continue;
      const short events = polled[firstPeer + i].revents;
      if (events & POLLOUT)
        flush(found->second);
      const bool before = found->second.joined;
      if ((events & ~POLLOUT) && !receive(found->second)) {
        ::close(found->second.socket);
        changed |= found->second.joined;
        peers_.erase(found);
        continue;
      }
      changed |= found->second.joined != before;
    }
    if (changed)
      tellMembers();
    if (secondsSince(signed_) > kSignSeconds)
      sign();
  }
}

void AgentHub::admit(int socket, const std::string &host) {
  if (peers_.size() >= size_t(kMostAgents)) {
    ::close(socket);
    return;
  }
  Peer &peer = peers_[nextPeer_++];
  peer.socket = socket;
  peer.member.host = host;
  peer.heard = Clock::now();
}

void AgentHub::flush(Peer &peer) {
  while (peer.socket >= 0 && !peer.out.empty()) {
    const ssize_t count = ::send(peer.socket, peer.out.data(), peer.out.size(),
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0)
      return; // the reading end says what is wrong
    peer.out.erase(0, size_t(count));
  }
}

bool AgentHub::receive(Peer &peer) {
  char buffer[4096];
  const ssize_t count = recv(peer.socket, buffer, sizeof buffer, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR))
    return true;
  if (count > 0)
    return handle(peer, {buffer, size_t(count)});
  if (count < 0 && peer.joined) { // it may be there, and lead
    ::close(peer.socket);
    peer.socket = -1;
    peer.heard = {};
    return true;
  }
  if (peer.joined)
    news_.push_back(
        fmt::format("the agent on host {} is gone", peer.member.host));
  return false;
}

bool AgentHub::handle(Peer &peer, const std::string &bytes) {
  peer.heard = Clock::now();
  peer.in += bytes;
  size_t position = 0;
  bool broken = false;
  while (auto frame = decodeFrame(peer.in, position, broken)) {
    if (frame->type == Frame::Leave) {
      if (peer.joined)
        news_.push_back(
            fmt::format("the agent on host {} has left", peer.member.host));
      return false;
    }
    if (frame->type != Frame::Put)
      continue;
    if (frame->key == "leads" && peer.joined) {
      successor_ = peer.member.host;
    } else if (frame->key == "joins" && !peer.joined) {
      if (!frame->value.empty() && frame->value != options_.run) {
        peer.out +=
            encodeFrame({Frame::Refuse, 0, 0, "",
                         fmt::format("the agent on host {} leads another run",
                                     hostName())});
        flush(peer);
        return false;
      }
      peer.member.port = int(frame->number);
      replace(peer);
      peer.joined = true;
      news_.push_back(fmt::format("an agent stands by on host {} port {}",
                                  peer.member.host, peer.member.port));
      peer.missed = true;
    }
  }
  if (peer.missed && peer.joined)
    tellState(peer);
  peer.in.erase(0, position);
  return !broken && peer.in.size() < kMostBytes;
}

// One that was cut off comes again on a new connection, before the old one is
// known to be broken.
void AgentHub::replace(const Peer &peer) {
  for (auto at = peers_.begin(); at != peers_.end();) {
    const bool isOld = at->second.joined && at->second.member == peer.member;
    if (isOld && at->second.socket >= 0)
      ::close(at->second.socket);
    at = isOld ? peers_.erase(at) : std::next(at);
  }
}

void AgentHub::tellState(Peer &peer) {
  peer.missed = false;
  if (!state_.empty())
    peer.out += encodeFrame({Frame::Put, 0, 0, "state", state_});
  flush(peer);
}

void AgentHub::sign() {
  signed_ = Clock::now();
  for (auto &[id, peer] : peers_) {
    if (peer.socket < 0 || peer.out.size() > kMostBytes)
      continue;
    peer.out += encodeFrame({Frame::Alive, 0, 0, "", ""});
    flush(peer);
  }
}

std::vector<AgentMember> AgentHub::membersLocked() const {
  std::vector<AgentMember> members;
  for (const auto &[id, peer] : peers_)
    if (peer.joined)
      members.push_back(peer.member);
  return members;
}

void AgentHub::tellMembers() {
  std::vector<std::string> parts;
  for (const AgentMember &member : membersLocked()) {
    parts.push_back(member.host);
    parts.push_back(std::to_string(member.port));
  }
  int64_t place = 0;
  for (auto &[id, peer] : peers_) {
    if (!peer.joined)
      continue;
    peer.out +=
        encodeFrame({Frame::Put, 0, place++, "agents", packStrings(parts)});
    flush(peer);
  }
}

bool AgentHub::isSilent(const Peer &peer) const {
  return peer.socket < 0 || secondsSince(peer.heard) > options_.silenceSeconds;
}

void AgentHub::publish(const std::string &state) {
  std::lock_guard lock(mutex_);
  if (state == state_)
    return;
  state_ = state;
  for (auto &[id, peer] : peers_)
    if (peer.joined && isSilent(peer))
      peer.missed = true;
    else if (peer.joined)
      tellState(peer);
}

void AgentHub::finish(int code) {
  const auto begin = Clock::now();
  bool waits = true;
  for (bool first = true; waits && secondsSince(begin) < kFarewellSeconds;
       first = false) {
    {
      std::lock_guard lock(mutex_);
      waits = false;
      for (auto &[id, peer] : peers_) {
        if (first)
          peer.out += encodeFrame({Frame::Leave, 0, code, "", ""});
        flush(peer);
        waits |= peer.socket >= 0 && peer.joined; // until it has left
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::vector<AgentMember> AgentHub::members() const {
  std::lock_guard lock(mutex_);
  return membersLocked();
}

std::vector<AgentMember> AgentHub::silent() const {
  std::lock_guard lock(mutex_);
  std::vector<AgentMember> members;
  for (const auto &[id, peer] : peers_)
    if (peer.joined && isSilent(peer))
      members.push_back(peer.member);
  return members;
}

void AgentHub::drop(const std::vector<AgentMember> &members) {
  std::lock_guard lock(mutex_);
  for (auto at = peers_.begin(); at != peers_.end();) {
    Peer &peer = at->second;
    const bool goes = peer.joined && std::find(members.begin(), members.end(),
                                               peer.member) != members.end();
    if (goes && peer.socket >= 0) {
      // Else it would look as if this process were gone.
      peer.out += encodeFrame(
          {Frame::Refuse, 0, 0, "", "it was silent, and may join again"});
      flush(peer);
      ::close(peer.socket);
    }
    at = goes ? peers_.erase(at) : std::next(at);
  }
  tellMembers();
}

std::string AgentHub::successor() const {
  std::lock_guard lock(mutex_);
  return successor_;
}

std::vector<std::string> AgentHub::news() {
  std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

} // namespace merak::runtime
