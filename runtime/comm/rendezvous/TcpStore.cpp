#include "runtime/comm/rendezvous/TcpStore.h"

#include "runtime/comm/rendezvous/Join.h"
#include "runtime/comm/rendezvous/StoreServer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace merak::runtime {
namespace {

using Clock = std::chrono::steady_clock;

int64_t milliseconds(double seconds) { return int64_t(seconds * 1e3); }

class TcpStore : public Store {
public:
  TcpStore(TcpStoreOptions options, Joined joined,
           std::unique_ptr<StoreServer> server)
      : options_(std::move(options)), socket_(joined.socket),
        server_(std::move(server)), in_(std::move(joined.bytes)),
        serverHost_(std::move(joined.serverHost)) {
    options_.silenceSeconds = joined.silenceSeconds;
  }
  ~TcpStore() override {
    leave(0);
    server_.reset();
    ::close(socket_);
  }
  // Waits for all others.
  Status enter();

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  Status put(const std::string &key, const std::string &value) override {
    return send({Frame::Put, 0, 0, key, value});
  }
  Result<std::string> get(const std::string &key, double seconds) override {
    return textOf(ask({Frame::Get, 0, milliseconds(seconds), key, ""}),
                  seconds);
  }
  Result<std::string> take(const std::string &key, double seconds) override {
    return textOf(ask({Frame::Take, 0, milliseconds(seconds), key, ""}),
                  seconds);
  }
  Status contribute(const std::string &name,
                    const std::string &value) override {
    std::unique_lock lock(mutex_);
    const uint64_t round = ++rounds_[name].first;
    lock.unlock();
    return send(
        {Frame::Contribute, 0, 0, fmt::format("{}#{}", name, round), value});
  }
  Result<std::vector<std::string>> collect(const std::string &name,
                                           double seconds) override {
    std::unique_lock lock(mutex_);
    const uint64_t round = ++rounds_[name].second;
    lock.unlock();
    auto text = textOf(ask({Frame::Collect, 0, milliseconds(seconds),
                            fmt::format("{}#{}", name, round), ""}),
                       seconds);
    if (!text.ok())
      return text.status();
    return unpackStrings(*text);
  }
  Result<int64_t> number(const std::string &key) override {
    auto answer = ask({Frame::Number, 0, 0, key, ""});
    if (!answer.ok())
      return answer.status();
    return answer->number;
  }
  Status notify(const std::string &topic, const std::string &text) override {
    return send({Frame::Notice, 0, rank(), topic, text});
  }
  void listen(Listener listener) override {
    std::lock_guard lock(listenerMutex_);
    listener_ = std::move(listener);
  }
  void abort(const Status &reason) override {
    if (setAborted(reason, rank()))
      (void)sendAnyway({Frame::Abort, 0, rank(), "", reason.str()});
  }
  const std::atomic<bool> &aborted() const override { return aborted_; }
  Status abortReason() const override {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  int abortedBy() const override { return abortedBy_; }
  void leave(double seconds) override;

private:
  // Sends; fails if the run was aborted.
  Status send(const Frame &frame) {
    if (aborted_)
      return abortReason();
    return sendAnyway(frame);
  }
  Status sendAnyway(const Frame &frame);
  Result<Frame> ask(Frame frame);
  static Result<std::string> textOf(Result<Frame> answer, double seconds) {
    if (!answer.ok())
      return answer.status();
    if (answer->type == Frame::Failure)
      return Status::error(
          fmt::format("{} in {:g} seconds", answer->value, seconds));
    return std::move(answer->value);
  }
  bool setAborted(const Status &reason, int by);
  void readerMain();
  // False at the end of the connection.
  bool readFrames(int timeoutMilliseconds, std::vector<Frame> &frames);
  // The whole frames of what was received; false if there is something else.
  bool takeFrames(std::vector<Frame> &frames);
  void handle(Frame frame);
  void lost(const std::string &how);

  TcpStoreOptions options_;
  int socket_;
  std::unique_ptr<StoreServer> server_; // rank 0
  std::thread reader_;
  std::string in_, serverHost_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::optional<Frame>> answers_; // by question
  uint64_t lastQuestion_ = 0;
  std::map<std::string, std::pair<uint64_t, uint64_t>> rounds_;
  Status reason_;
  std::atomic<bool> aborted_{false}, closed_{false}, released_{false};
  std::atomic<int> abortedBy_{-1};
  bool left_ = false;

  std::mutex sendMutex_, listenerMutex_;
  Listener listener_;
};

Status TcpStore::sendAnyway(const Frame &frame) {
  if (frame.key.size() > kLongestKey || frame.value.size() > kLongestValue)
    return Status::error(fmt::format(
        "\"{}\" has {} bytes, processes exchange at most {}",
        frame.key.substr(0, 80), frame.value.size(), kLongestValue));
  std::lock_guard lock(sendMutex_);
  if (sendAll(socket_, encodeFrame(frame)))
    return {};
  return Status::error(fmt::format("cannot reach rank 0 on host {}: {}",
                                   serverHost_, std::strerror(errno)));
}

bool TcpStore::setAborted(const Status &reason, int by) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_)
      return false;
    reason_ = reason;
    abortedBy_ = by;
    aborted_ = true;
  }
  changed_.notify_all();
  return true;
}

Result<Frame> TcpStore::ask(Frame frame) {
  std::unique_lock lock(mutex_);
  const uint64_t question = frame.id = ++lastQuestion_;
  answers_[question];
  lock.unlock();
  Status status = send(frame);
  lock.lock();
  if (status.ok())
    changed_.wait(lock, [&] {
      return answers_[question].has_value() || aborted_ || closed_;
    });
  auto answer = std::move(answers_[question]);
  answers_.erase(question);
  if (answer)
    return std::move(*answer);
  if (aborted_)
    return reason_;
  return status.ok() ? Status::error("the run has ended") : status;
}

Status TcpStore::enter() {
  std::vector<Frame> frames;
  if (!takeFrames(frames))
    return Status::error("rank 0 sent what it never sends");
  for (Frame &frame : frames)
    handle(std::move(frame));
  reader_ = std::thread([this] { readerMain(); });
  return barrier("the start", options_.connectSeconds);
}

bool TcpStore::readFrames(int timeoutMilliseconds, std::vector<Frame> &frames) {
  pollfd polled{socket_, POLLIN, 0};
  if (poll(&polled, 1, timeoutMilliseconds) <= 0)
    return true;
  char buffer[1 << 16];
  const ssize_t count = recv(socket_, buffer, sizeof(buffer), 0);
  if (count < 0 && errno == EINTR)
    return true;
  if (count <= 0)
    return false;
  in_.append(buffer, size_t(count));
  return takeFrames(frames);
}

bool TcpStore::takeFrames(std::vector<Frame> &frames) {
  size_t position = 0;
  bool broken = false;
  while (auto frame = decodeFrame(in_, position, broken))
    frames.push_back(std::move(*frame));
  in_.erase(0, position);
  return !broken;
}

void TcpStore::readerMain() {
  Clock::time_point heard = Clock::now(), looked = heard;
  while (!closed_) {
    std::vector<Frame> frames;
    if (!readFrames(500, frames))
      return lost("is gone: its connection closed without a word");
    const Clock::time_point now = Clock::now();
    // After a pause of this very process the other end seems silent.
    if (!frames.empty() || now - looked > std::chrono::seconds(3))
      heard = now;
    looked = now;
    for (Frame &frame : frames)
      handle(std::move(frame));
    if (options_.silenceSeconds > 0 &&
        std::chrono::duration<double>(now - heard).count() >
            options_.silenceSeconds)
      return lost(fmt::format("has not answered for {:g} seconds",
                              options_.silenceSeconds));
  }
}

void TcpStore::handle(Frame frame) {
  switch (frame.type) {
  case Frame::Answer:
  case Frame::Failure: {
    std::lock_guard lock(mutex_);
    if (auto found = answers_.find(frame.id); found != answers_.end())
      found->second = std::move(frame);
    break;
  }
  case Frame::Alive:
    (void)sendAnyway({Frame::Alive, 0, 0, "", ""});
    return;
  case Frame::Abort: {
    Status reason;
    for (size_t at = 0; at < frame.value.size();) {
      const size_t end =
          std::min(frame.value.find('\n', at), frame.value.size());
      reason.merge(Status::error(frame.value.substr(at, end - at)));
      at = end + 1;
    }
    setAborted(reason.ok() ? Status::error("aborted") : reason,
               int(frame.number));
    return;
  }
  case Frame::Notice: {
    std::lock_guard lock(listenerMutex_);
    if (listener_)
      listener_(int(frame.number), frame.key, frame.value);
    return;
  }
  case Frame::Leave: {
    std::lock_guard lock(mutex_);
    released_ = true;
    break;
  }
  default:
    return;
  }
  changed_.notify_all();
}

void TcpStore::lost(const std::string &how) {
  if (!released_ && !closed_)
    setAborted(
        Status::error(fmt::format("rank 0 on host {} {}", serverHost_, how)),
        0);
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  // Whoever is sending must not wait for ever.
  shutdown(socket_, SHUT_RDWR);
  changed_.notify_all();
}

void TcpStore::leave(double seconds) {
  if (std::exchange(left_, true))
    return;
  if (reader_.joinable()) {
    (void)sendAnyway({Frame::Leave, 0, 0, "", ""});
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(milliseconds(seconds)),
                      // Without rank 0 nobody knows who is still there.
                      [&] { return released_ || (closed_ && !aborted_); });
    lock.unlock();
    closed_ = true;
    shutdown(socket_, SHUT_RDWR);
    reader_.join();
  }
}

} // namespace

Result<std::unique_ptr<Store>>
openTcpStore(const TcpStoreOptions &options,
             std::unique_ptr<StoreListener> listener) {
  std::unique_ptr<StoreServer> server;
  if (options.token.empty())
    return Status::error("a run of several processes needs a secret");
  Result<Joined> joined = Joined{-1, hostName(), options.silenceSeconds, ""};
  if (options.rank == 0) {
    if (!listener) {
      auto opened = StoreListener::open(options.port);
      if (!opened.ok())
        return opened.status();
      listener = std::move(*opened);
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
      return Status::error(
          fmt::format("cannot make a socket: {}", std::strerror(errno)));
    joined->socket = ends[0];
    server = std::make_unique<StoreServer>(
        StoreServer::Options{options.size, options.token, hostName(),
                             options.silenceSeconds},
        listener->release(), ends[1]);
  } else {
    joined = joinServer(options);
    if (!joined.ok())
      return joined.status();
  }
  auto store = std::make_unique<TcpStore>(options, std::move(*joined),
                                          std::move(server));
  if (Status status = store->enter(); !status.ok())
    return status;
  return std::unique_ptr<Store>(std::move(store));
}

} // namespace merak::runtime
