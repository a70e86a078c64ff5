#include "runtime/comm/rendezvous/StoreServer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

constexpr double kSignSeconds = 1; // between signs of life

double secondsSince(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - time)
      .count();
}

void setNonBlocking(int socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
}

} // namespace

StoreServer::StoreServer(Options options, int listener, int own)
    : options_(std::move(options)), listener_(listener),
      lastSign_(Clock::now()) {
  if (pipe(wake_) != 0)
    wake_[0] = wake_[1] = -1;
  setNonBlocking(listener_);
  setNonBlocking(own);
  Peer &peer = peers_[nextPeer_++];
  peer.socket = own;
  peer.heard = Clock::now();
  thread_ = std::thread([this] { main(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  if (wake_[1] >= 0)
    (void)!write(wake_[1], "x", 1);
  thread_.join();
  for (auto &[id, peer] : peers_)
    ::close(peer.socket);
  ::close(listener_);
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void StoreServer::main() {
  while (!stop_) {
    std::vector<pollfd> polled = {{wake_[0], POLLIN, 0},
                                  {listener_, POLLIN, 0}};
    std::vector<int> ids;
    for (auto &[id, peer] : peers_) {
      const short events = POLLIN | (peer.sent < peer.out.size() ? POLLOUT : 0);
      polled.push_back({peer.socket, events, 0});
      ids.push_back(id);
    }
    poll(polled.data(), polled.size(), pollMilliseconds());
    if (polled[1].revents)
      accept();
    for (size_t i = 0; i < ids.size(); ++i) {
      const short events = polled[i + 2].revents;
      if (!events)
        continue;
      if (events & POLLOUT)
        if (auto found = peers_.find(ids[i]); found != peers_.end())
          flush(found->second);
      if (events & (POLLIN | POLLHUP | POLLERR))
        receive(ids[i]);
    }
    expire();
    watch();
    std::vector<int> closing;
    for (auto &[id, peer] : peers_)
      if (peer.closing && peer.sent >= peer.out.size())
        closing.push_back(id);
    for (int id : closing)
      close(id);
  }
}

// Until the next deadline, a sign of life at the latest.
int StoreServer::pollMilliseconds() const {
  Clock::time_point next =
      Clock::now() + std::chrono::milliseconds(int(kSignSeconds * 500));
  for (const auto &[key, waiters] : waiters_)
    for (const Waiter &waiter : waiters)
      next = std::min(next, waiter.deadline);
  for (const auto &[name, collection] : collections_)
    for (const Waiter &waiter : collection.waiters)
      next = std::min(next, waiter.deadline);
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(
      next - Clock::now());
  return std::max<int>(0, int(wait.count()) + 1);
}

void StoreServer::accept() {
  while (true) {
    const int socket = ::accept(listener_, nullptr, nullptr);
    if (socket < 0)
      return;
    setNonBlocking(socket);
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Peer &peer = peers_[nextPeer_++];
    peer.socket = socket;
    peer.heard = Clock::now();
  }
}

void StoreServer::receive(int id) {
  const auto found = peers_.find(id);
  if (found == peers_.end())
    return;
  char buffer[1 << 16];
  bool open = true;
  while (true) {
    const ssize_t count = recv(found->second.socket, buffer, sizeof(buffer), 0);
    if (count > 0) {
      found->second.in.append(buffer, size_t(count));
      continue;
    }
    open = count < 0 && (errno == EAGAIN || errno == EINTR);
    if (count < 0 && errno == EINTR)
      continue;
    break;
  }
  found->second.heard = Clock::now();
  // Frames are handled before the end of the connection: a leave may be one.
  size_t position = 0;
  bool broken = false;
  std::string bytes = std::move(found->second.in);
  while (auto frame = decodeFrame(bytes, position, broken)) {
    handle(id, std::move(*frame));
    if (!peers_.count(id))
      return;
  }
  peers_[id].in = bytes.substr(position);
  if (broken)
    lost(id, "sent what no rank sends");
  else if (!open)
    lost(id, "is gone: its connection closed without a word");
}

void StoreServer::flush(Peer &peer) {
  while (peer.sent < peer.out.size()) {
    const ssize_t count =
        ::send(peer.socket, peer.out.data() + peer.sent,
               peer.out.size() - peer.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0)
      return; // full, or gone: reading will tell
    peer.sent += size_t(count);
  }
  peer.out.clear();
  peer.sent = 0;
}

void StoreServer::send(int id, const Frame &frame) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.closing)
    return;
  found->second.out += encodeFrame(frame);
  flush(found->second);
}

void StoreServer::broadcast(const Frame &frame, int except) {
  for (const auto &[rank, id] : std::map<int, int>(peerOfRank_))
    if (id != except)
      send(id, frame);
}

void StoreServer::hello(int id, const Frame &frame) {
  Peer &peer = peers_[id];
  const int rank = int(frame.number);
  std::string why;
  if (frame.value != options_.token)
    why = "another run listens there";
  else if (int64_t(frame.id) != options_.size)
    why = fmt::format("rank {} was started as one of {} ranks, rank 0 as one "
                      "of {}",
                      rank, frame.id, options_.size);
  else if (rank < 0 || rank >= options_.size)
    why = fmt::format("there is no rank {} of {}", rank, options_.size);
  else if (peerOfRank_.count(rank))
    why = fmt::format("there is a rank {} already, on host {}", rank,
                      peers_[peerOfRank_[rank]].host);
  else if (aborted_)
    why = abortText_;
  if (!why.empty()) {
    send(id, {Frame::Refuse, 0, 0, "", why});
    peers_[id].closing = true;
    if (frame.value == options_.token) // it will be missing
      abort(rank, why);
    return;
  }
  peer.rank = rank;
  peer.host = frame.key;
  peerOfRank_[rank] = id;
  send(id, {Frame::Welcome, 0, int64_t(options_.silenceSeconds * 1e3),
            options_.host, ""});
}

void StoreServer::handle(int id, Frame frame) {
  Peer &peer = peers_[id];
  if (peer.rank < 0 && frame.type != Frame::Hello)
    return close(id);
  switch (frame.type) {
  case Frame::Hello:
    return hello(id, frame);
  case Frame::Put: {
    values_[frame.key] = std::move(frame.value);
    const auto waiting = waiters_.find(frame.key);
    if (waiting == waiters_.end())
      return;
    for (const Waiter &waiter : std::exchange(waiting->second, {})) {
      const auto value = values_.find(frame.key);
      if (value == values_.end()) { // another took it
        waiting->second.push_back(waiter);
        continue;
      }
      send(waiter.peer, {Frame::Answer, waiter.question, 0, "", value->second});
      if (waiter.takes)
        values_.erase(value);
    }
    if (waiting->second.empty())
      waiters_.erase(waiting);
    return;
  }
  case Frame::Get:
  case Frame::Take:
    return answerGet(id, frame);
  case Frame::Contribute: {
    Collection &collection = collections_[frame.key];
    collection.parts.resize(options_.size);
    collection.there.resize(options_.size);
    collection.count += !collection.there[peer.rank];
    collection.there[peer.rank] = true;
    collection.parts[peer.rank] = std::move(frame.value);
    return answerCollect(frame.key, collection);
  }
  case Frame::Collect: {
    Collection &collection = collections_[frame.key];
    collection.waiters.push_back(
        {id, frame.id, false,
         Clock::now() + std::chrono::milliseconds(frame.number)});
    return answerCollect(frame.key, collection);
  }
  case Frame::Number: {
    const auto entry =
        numbers_.try_emplace(frame.key, int64_t(numbers_.size())).first;
    return send(id, {Frame::Answer, frame.id, entry->second, "", ""});
  }
  case Frame::Notice:
    frame.number = peer.rank;
    return broadcast(frame, id);
  case Frame::Abort:
    return abort(int(frame.number), frame.value, id);
  case Frame::Leave:
    peer.left = true;
    // The last one lets all go.
    for (const auto &[rank, other] : peerOfRank_)
      if (!peers_[other].left)
        return;
    if (int(peerOfRank_.size()) == options_.size || aborted_)
      broadcast({Frame::Leave, 0, 0, "", ""});
    return;
  default:
    return;
  }
}

void StoreServer::answerGet(int id, const Frame &frame) {
  const bool takes = frame.type == Frame::Take;
  const auto value = values_.find(frame.key);
  if (value == values_.end()) {
    waiters_[frame.key].push_back(
        {id, frame.id, takes,
         Clock::now() + std::chrono::milliseconds(frame.number)});
    return;
  }
  send(id, {Frame::Answer, frame.id, 0, "", value->second});
  if (takes)
    values_.erase(value);
}

void StoreServer::answerCollect(const std::string &name,
                                Collection &collection) {
  if (collection.count < options_.size)
    return;
  const std::string all = packStrings(collection.parts);
  for (const Waiter &waiter : collection.waiters)
    send(waiter.peer, {Frame::Answer, waiter.question, 0, "", all});
  collection.collected += int(collection.waiters.size());
  collection.waiters.clear();
  if (collection.collected == options_.size)
    collections_.erase(name);
}

std::string StoreServer::missing(const Collection &collection) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.size; ++rank)
    if (collection.there.empty() || !collection.there[rank])
      ranks.push_back(rank);
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks",
                     fmt::join(ranks, ", "));
}

void StoreServer::expire() {
  const auto now = Clock::now();
  auto split = [&](std::vector<Waiter> &waiters, auto &&why) {
    std::erase_if(waiters, [&](const Waiter &waiter) {
      if (waiter.deadline > now)
        return false;
      send(waiter.peer, {Frame::Failure, waiter.question, 0, "", why()});
      return true;
    });
  };
  for (auto entry = waiters_.begin(); entry != waiters_.end();) {
    split(entry->second,
          [&] { return fmt::format("no rank has put \"{}\"", entry->first); });
    entry = entry->second.empty() ? waiters_.erase(entry) : std::next(entry);
  }
  for (auto &[name, collection] : collections_)
    split(collection.waiters, [&, &all = collection] {
      return fmt::format("{} did not come to \"{}\"", missing(all),
                         name.substr(0, name.rfind('#')));
    });
}

// Gives and expects signs of life.
void StoreServer::watch() {
  if (secondsSince(lastSign_) < kSignSeconds)
    return;
  // After a pause of this very process all others seem silent.
  const bool paused = secondsSince(lastSign_) > 3 * kSignSeconds;
  lastSign_ = Clock::now();
  broadcast({Frame::Alive, 0, 0, "", ""});
  std::vector<int> silent;
  for (auto &[id, peer] : peers_) {
    if (paused)
      peer.heard = Clock::now();
    if (options_.silenceSeconds > 0 && !peer.left &&
        secondsSince(peer.heard) > options_.silenceSeconds)
      silent.push_back(id);
  }
  for (int id : silent)
    lost(id, fmt::format("has not answered for {:g} seconds",
                         options_.silenceSeconds));
}

void StoreServer::lost(int id, const std::string &how) {
  const Peer peer = peers_[id];
  close(id);
  if (peer.rank >= 0 && !peer.left)
    abort(peer.rank,
          fmt::format("rank {} on host {} {}", peer.rank, peer.host, how));
}

void StoreServer::abort(int rank, const std::string &why, int except) {
  if (aborted_)
    return;
  aborted_ = true;
  abortText_ = why;
  broadcast({Frame::Abort, 0, rank, "", why}, except);
}

void StoreServer::close(int id) {
  const auto found = peers_.find(id);
  if (found == peers_.end())
    return;
  ::close(found->second.socket);
  if (found->second.rank >= 0) {
    peerOfRank_.erase(found->second.rank);
    // Whoever still waits to leave need not wait for this one.
    bool all = aborted_;
    for (const auto &[rank, other] : peerOfRank_)
      all = all && peers_[other].left;
    if (all)
      broadcast({Frame::Leave, 0, 0, "", ""});
  }
  peers_.erase(found);
}

} // namespace merak::runtime
