#include "runtime/comm/rendezvous/Sockets.h"

#include "runtime/comm/rendezvous/TcpStore.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace merak::runtime {

void setNonBlocking(int socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
}

void setPrompt(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

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
        (poll(&polled, 1, int(seconds * 1e3)) <= 0 ||
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

// Numbers; empty: it has none.
static std::string textOf(const sockaddr &address) {
  char text[NI_MAXHOST];
  const socklen_t length = address.sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                         : sizeof(sockaddr_in);
  return getnameinfo(&address, length, text, sizeof(text), nullptr, 0,
                     NI_NUMERICHOST)
             ? ""
             : text;
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
    const std::string text = textOf(*at->ifa_addr);
    if (text.empty())
      continue;
    const bool local = text == "::1" || text.rfind("127.", 0) == 0;
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

namespace {

bool isAddress(const std::string &name) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

// As text; empty where nobody knows the name.
std::vector<std::string> addressesOf(const std::string &name) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found))
    return {};
  std::vector<std::string> addresses;
  for (addrinfo *at = found; at; at = at->ai_next)
    addresses.push_back(textOf(*at->ai_addr));
  freeaddrinfo(found);
  return addresses;
}

} // namespace

int thisHostAmong(const std::vector<std::string> &names) {
  const std::string host = hostName();
  if (const auto at = std::find(names.begin(), names.end(), host);
      at != names.end())
    return int(at - names.begin());
  const auto firstPart = [](const std::string &name) {
    return isAddress(name) ? name : name.substr(0, name.find('.'));
  };
  std::vector<size_t> alike;
  for (size_t i = 0; i < names.size(); ++i)
    if (firstPart(names[i]) == firstPart(host))
      alike.push_back(i);
  if (alike.size() == 1)
    return int(alike.front());
  const std::vector<std::string> own = localAddresses();
  for (size_t i = 0; i < names.size(); ++i)
    for (const std::string &address : addressesOf(names[i]))
      if (std::find(own.begin(), own.end(), address) != own.end())
        return int(i);
  return -1;
}

} // namespace merak::runtime
