// A rank's way to rank 0: connecting and showing the token, again and again
// until the time is over (private to this folder).
#pragma once

#include "runtime/comm/rendezvous/TcpStore.h"

namespace merak::runtime {

struct Joined {
  int socket = -1;
  std::string serverHost;
  double silenceSeconds = 0; // as rank 0 has it
  std::string bytes;         // that came behind the welcome
};

Result<Joined> joinServer(const TcpStoreOptions &options);

} // namespace merak::runtime
