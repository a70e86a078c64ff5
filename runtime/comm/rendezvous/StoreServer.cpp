#include "runtime/comm/rendezvous/StoreServer.h"
#include "runtime/core/SecondsSince.h"

#include "runtime/comm/rendezvous/Sockets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <sys/socket.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

constexpr double kSignSeconds = 1; // between signs of life
// Of one rank, then the others have their turn.
constexpr int kReadsAtOnce = 64;

} // namespace

StoreServer::StoreServer(Options options, int listener, int own)
    : options_(std::move(options)), listener_(listener),
      strangers_(listener, options_.token, options_.size),
      lastSign_(Clock::now()) {
  if (pipe(wake_) != 0)
    wake_[0] = wake_[1] = -1;
  setNonBlocking(listener_);
  setNonBlocking(own);
  admit(0, own, options_.host);
  thread_ = std::thread([this] { main(); });
}

StoreServer::~StoreServer() {
  stop_ = true;
  if (wake_[1] >= 0)
    (void)!write(wake_[1], "x", 1);
  thread_.join();
  for (auto &[id, peer] : peers_)
    ::close(peer.socket);
  if (listener_ >= 0)
    ::close(listener_);
  ::close(wake_[0]);
  ::close(wake_[1]);
}

void StoreServer::main() {
  while (!stop_) {
    std::vector<pollfd> polled = {
        {wake_[0], POLLIN, 0},
        {strangers_.mayAccept() ? listener_ : -1, POLLIN, 0}};
    const size_t firstStranger = polled.size();
    strangers_.watch(polled);
    const size_t firstPeer = polled.size();
    std::vector<int> ids;
    for (auto &[id, peer] : peers_) {
      const short events = POLLIN | (peer.sent < peer.out.size() ? POLLOUT : 0);
      polled.push_back({peer.socket, events, 0});
      ids.push_back(id);
    }
    poll(polled.data(), polled.size(), pollMilliseconds());
    for (size_t i = 0; i < ids.size(); ++i) {
      const short events = polled[i + firstPeer].revents;
      if (!events)
        continue;
      if (events & POLLOUT)
        if (auto found = peers_.find(ids[i]); found != peers_.end())
          flush(found->second);
      if (events & (POLLIN | POLLHUP | POLLERR))
        receive(ids[i]);
    }
    if (listener_ >= 0)
      meetStrangers(&polled[1], &polled[0] + firstStranger);
    expire();
    watch();
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

void StoreServer::meetStrangers(const pollfd *listening, const pollfd *polled) {
  for (const Claim &each : strangers_.receive(polled))
    claim(each);
  strangers_.expire();
  if (int(claimed_.size()) == options_.size) {
    // All have come: to the rest of the world nobody is here.
    strangers_.dropAll();
    ::close(std::exchange(listener_, -1));
  } else if (listening->revents) {
    strangers_.accept();
  }
}

// Why a process that knows the token may not be the rank that it says; empty:
// it may.
std::string StoreServer::refusal(const Hello &hello) const {
  if (hello.size != options_.size)
    return fmt::format("rank {} was started as one of {} ranks, rank 0 as one "
                       "of {}",
                       hello.rank, hello.size, options_.size);
  if (hello.rank < 0 || hello.rank >= options_.size)
    return fmt::format("there is no rank {} of {}", hello.rank, options_.size);
  const auto claimed = claimed_.find(int(hello.rank));
  if (claimed != claimed_.end())
    return fmt::format("there is a rank {} already, on host {}", hello.rank,
                       claimed->second);
  return aborted_ ? abortText_ : std::string();
}

void StoreServer::claim(const Claim &claim) {
  const std::string why = refusal(claim.hello);
  Frame verdict{Frame::Welcome, 0, int64_t(options_.silenceSeconds * 1e3),
                options_.host, ""};
  if (!why.empty())
    verdict = {Frame::Refuse, 0, 0, "", why.substr(0, kVerdictBytes / 2)};
  const std::string bytes = encodeFrame(
      proven(verdict, claim.hello, claim.challenge, options_.token));
  // The buffer of a connection on which almost nothing was sent has room.
  (void)!::send(claim.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (why.empty())
    return admit(int(claim.hello.rank), claim.socket, claim.hello.host);
  ::close(claim.socket);
  abort(int(claim.hello.rank), why); // it will be missing
}

void StoreServer::admit(int rank, int socket, const std::string &host) {
  const int id = nextPeer_++;
  Peer &peer = peers_[id];
  peer.socket = socket;
  peer.rank = rank;
  peer.host = host;
  peer.heard = Clock::now();
  peerOfRank_[rank] = id;
  claimed_[rank] = host;
}

void StoreServer::receive(int id) {
  const auto found = peers_.find(id);
  if (found == peers_.end())
    return;
  char buffer[1 << 16];
  bool open = true;
  std::string bytes = std::move(found->second.in);
  for (int i = 0; open && i < kReadsAtOnce; ++i) {
    const ssize_t count = recv(found->second.socket, buffer, sizeof(buffer), 0);
    if (count > 0)
      bytes.append(buffer, size_t(count));
    else if (count < 0 && errno == EAGAIN)
      break;
    else
      open = count < 0 && errno == EINTR;
  }
  found->second.heard = Clock::now();
  // Frames are handled before the end of the connection: a leave may be one.
  size_t position = 0;
  bool broken = false;
  while (auto frame = decodeFrame(bytes, position, broken)) {
    handle(id, std::move(*frame));
    if (!peers_.count(id))
      return;
  }
  if (position)
    bytes.erase(0, position);
  peers_[id].in = std::move(bytes);
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
  if (found == peers_.end())
    return;
  found->second.out += encodeFrame(frame);
  flush(found->second);
}

void StoreServer::broadcast(const Frame &frame, int except) {
  for (const auto &[rank, id] : std::map<int, int>(peerOfRank_))
    if (id != except)
      send(id, frame);
}

void StoreServer::handle(int id, Frame frame) {
  Peer &peer = peers_[id];
  switch (frame.type) {
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
