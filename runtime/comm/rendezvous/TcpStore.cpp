#include "runtime/comm/rendezvous/TcpStore.h"

#include "runtime/comm/rendezvous/StoreServer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fcntl.h>
#include <ifaddrs.h>
#include <mutex>
#include <netdb.h>
#include <netinet/tcp.h>
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
  TcpStore(TcpStoreOptions options, int socket,
           std::unique_ptr<StoreServer> server)
      : options_(std::move(options)), socket_(socket),
        server_(std::move(server)) {}
  ~TcpStore() override {
    leave(0);
    server_.reset();
    ::close(socket_);
  }
  // Says hello and waits for the welcome; then for all others.
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
  void handle(Frame frame);
  void lost(const std::string &how);

  TcpStoreOptions options_;
  int socket_;
  std::unique_ptr<StoreServer> server_; // rank 0
  std::thread reader_;
  std::string in_, serverHost_ = "0";

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
  MERAK_RETURN_IF_ERROR(sendAnyway(
      {Frame::Hello, uint64_t(size()), rank(), hostName(), options_.token}));
  std::vector<Frame> frames;
  const Clock::time_point deadline =
      Clock::now() +
      std::chrono::milliseconds(milliseconds(options_.connectSeconds));
  while (frames.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - Clock::now());
    if (left.count() < 0 || !readFrames(int(left.count()) + 1, frames))
      return Status::error("rank 0 does not answer");
  }
  if (frames[0].type == Frame::Refuse)
    return Status::error(frames[0].value);
  if (frames[0].type != Frame::Welcome)
    return Status::error("something else than rank 0 listens there");
  options_.silenceSeconds = double(frames[0].number) / 1e3;
  serverHost_ = frames[0].key;
  for (size_t i = 1; i < frames.size(); ++i)
    handle(std::move(frames[i]));
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

// ------------------------------------------------------------ connections

// A connected socket to one of the host's addresses, or -1.
int connectTo(const std::string &host, int port, double seconds) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found))
    return -1;
  int connected = -1;
  for (addrinfo *at = found; at && connected < 0; at = at->ai_next) {
    const int socket = ::socket(at->ai_family, at->ai_socktype, 0);
    if (socket < 0)
      continue;
    // Not blocking, so that an address that answers nothing costs little.
    const int flags = fcntl(socket, F_GETFL);
    fcntl(socket, F_SETFL, flags | O_NONBLOCK);
    int error = connect(socket, at->ai_addr, at->ai_addrlen) ? errno : 0;
    pollfd polled{socket, POLLOUT, 0};
    socklen_t length = sizeof(error);
    if (error == EINPROGRESS &&
        (poll(&polled, 1, int(milliseconds(seconds))) <= 0 ||
         getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length)))
      error = ETIMEDOUT;
    if (error) {
      ::close(socket);
      continue;
    }
    fcntl(socket, F_SETFL, flags);
    connected = socket;
  }
  freeaddrinfo(found);
  return connected;
}

// Tries the addresses until one answers; rank 0 may not listen yet.
Result<int> connectToServer(const TcpStoreOptions &options) {
  const Clock::time_point begin = Clock::now();
  while (true) {
    for (const std::string &address : options.addresses)
      if (const int socket = connectTo(address, options.port, 2); socket >= 0) {
        const int on = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        return socket;
      }
    if (std::chrono::duration<double>(Clock::now() - begin).count() >
        options.connectSeconds)
      return Status::error(fmt::format(
          "rank {} on host {} cannot reach rank 0 at {} port {} in {:g} "
          "seconds",
          options.rank, hostName(), fmt::join(options.addresses, " or "),
          options.port, options.connectSeconds));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

} // namespace

Result<std::unique_ptr<StoreListener>> StoreListener::open(int port) {
  std::unique_ptr<StoreListener> listener(new StoreListener);
  auto fail = [&] {
    return Status::error(fmt::format("cannot listen on port {} of host {}: {}",
                                     port, hostName(), std::strerror(errno)));
  };
  // One socket for IPv6 and IPv4, or IPv4 alone where there is no IPv6.
  const int on = 1, off = 0;
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(uint16_t(port));
  listener->socket_ = socket(AF_INET6, SOCK_STREAM, 0);
  if (listener->socket_ >= 0) {
    setsockopt(listener->socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(listener->socket_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (listener->socket_ < 0 ||
      bind(listener->socket_, reinterpret_cast<sockaddr *>(&six),
           sizeof(six))) {
    if (listener->socket_ >= 0)
      ::close(listener->socket_);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(uint16_t(port));
    listener->socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (listener->socket_ < 0)
      return fail();
    setsockopt(listener->socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(listener->socket_, reinterpret_cast<sockaddr *>(&four),
             sizeof(four)))
      return fail();
  }
  if (::listen(listener->socket_, 1024))
    return fail();
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  getsockname(listener->socket_, reinterpret_cast<sockaddr *>(&bound), &length);
  listener->port_ =
      ntohs(bound.ss_family == AF_INET6
                ? reinterpret_cast<sockaddr_in6 *>(&bound)->sin6_port
                : reinterpret_cast<sockaddr_in *>(&bound)->sin_port);
  return listener;
}

StoreListener::~StoreListener() {
  if (socket_ >= 0)
    ::close(socket_);
}

int StoreListener::release() { return std::exchange(socket_, -1); }

Result<std::unique_ptr<Store>>
openTcpStore(const TcpStoreOptions &options,
             std::unique_ptr<StoreListener> listener) {
  std::unique_ptr<StoreServer> server;
  int socket = -1;
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
    socket = ends[0];
    server = std::make_unique<StoreServer>(
        StoreServer::Options{options.size, options.token, hostName(),
                             options.silenceSeconds},
        listener->release(), ends[1]);
  } else {
    auto connected = connectToServer(options);
    if (!connected.ok())
      return connected.status();
    socket = *connected;
  }
  auto store = std::make_unique<TcpStore>(options, socket, std::move(server));
  if (Status status = store->enter(); !status.ok())
    return status;
  return std::unique_ptr<Store>(std::move(store));
}

std::vector<std::string> localAddresses() {
  std::vector<std::string> addresses, loopback;
  ifaddrs *all = nullptr;
  if (getifaddrs(&all))
    return {"127.0.0.1"};
  for (ifaddrs *at = all; at; at = at->ifa_next) {
    if (!at->ifa_addr || (at->ifa_addr->sa_family != AF_INET &&
                          at->ifa_addr->sa_family != AF_INET6))
      continue;
    const bool six = at->ifa_addr->sa_family == AF_INET6;
    // Addresses of one link only mean nothing to others.
    if (six && IN6_IS_ADDR_LINKLOCAL(
                   &reinterpret_cast<sockaddr_in6 *>(at->ifa_addr)->sin6_addr))
      continue;
    char text[NI_MAXHOST];
    if (getnameinfo(at->ifa_addr,
                    six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in), text,
                    sizeof(text), nullptr, 0, NI_NUMERICHOST))
      continue;
    const bool local =
        std::string(text) == "::1" || std::string(text).rfind("127.", 0) == 0;
    (local ? loopback : addresses).push_back(text);
  }
  freeifaddrs(all);
  addresses.insert(addresses.end(), loopback.begin(), loopback.end());
  return addresses.empty() ? std::vector<std::string>{"127.0.0.1"} : addresses;
}

std::string hostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

} // namespace merak::runtime
