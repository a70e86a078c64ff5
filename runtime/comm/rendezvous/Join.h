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

// How messages call those who meet there.
struct JoinNames {
  std::string mine;   // who joins: "rank 3"
  std::string server; // whom: "rank 0"
  std::string all;    // "ranks"
};

Result<Joined> joinServer(const TcpStoreOptions &options);
// `final`: the error is of one who was reached, and would say the same again.
Result<Joined> joinServer(const TcpStoreOptions &options,
                          const JoinNames &names, bool &final);

} // namespace merak::runtime
