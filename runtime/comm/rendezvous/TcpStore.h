// A Store over TCP: rank 0 listens until all others have connected and shown
// that they know the run's token (Handshake.h). The connection
// is also the sign of life: a process that is killed closes it at once, one
// whose host is lost stops answering.
#pragma once

#include "runtime/comm/rendezvous/Store.h"

#include <memory>

namespace merak::runtime {

struct TcpStoreOptions {
  int rank = 0, size = 1;
  // Where rank 0 listens; tried in turn. Host names and addresses, IPv4 or 6.
  std::vector<std::string> addresses;
  int port = 0;
  std::string token;          // a secret of all processes of the run
  double connectSeconds = 60; // for all to come
  double silenceSeconds = 7;  // without a sign of life; 0: for ever
};

// The listening socket of rank 0, apart so that the port can be chosen freely
// and told to the others before they connect.
class StoreListener {
public:
  // Port 0: any that is free.
  static Result<std::unique_ptr<StoreListener>> open(int port);
  ~StoreListener();
  int port() const { return port_; }
  int release(); // the socket; the caller closes it

private:
  int socket_ = -1, port_ = 0;
};

// Returns when all ranks are there. Rank 0 gives the listener or lets one be
// opened on `options.port`. Errors name the ranks that did not come, or why
// this one was refused (another token or size, a rank twice).
Result<std::unique_ptr<Store>>
openTcpStore(const TcpStoreOptions &options,
             std::unique_ptr<StoreListener> listener = nullptr);

// Addresses of this machine under which others may reach it, loopback last.
std::vector<std::string> localAddresses();
// Name of this machine, for messages.
std::string hostName();
// Which of these names of hosts is this machine's: the name itself, or its
// first part where no other begins so, or one of its addresses; -1: none is.
int thisHostAmong(const std::vector<std::string> &names);

} // namespace merak::runtime
