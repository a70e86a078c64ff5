// Connections to rank 0 that have not shown the run's token yet (private to
// this folder). Their number is bounded, each costs a fixed amount of memory,
// and none stays longer than kStrangerSeconds.
#pragma once

#include "runtime/comm/rendezvous/Handshake.h"

#include <array>
#include <chrono>
#include <poll.h>
#include <vector>

namespace merak::runtime {

// A rank's whole handshake takes one round trip.
constexpr double kStrangerSeconds = 5;
constexpr size_t kMostStrangers = 256, kMostStrangersOfOneAddress = 64;

// A rank that has shown the token.
struct Claim {
  int socket;
  Hello hello;
  std::string challenge;
};

class Strangers {
public:
  // `listener`: stays the caller's. `ranks`: connections that are still to
  // come, for which descriptors are kept free.
  Strangers(int listener, std::string token, int ranks);
  ~Strangers() { dropAll(); }
  Strangers(const Strangers &) = delete;

  // Takes what waits at the listener; drops the oldest where there are too
  // many. Returns after a bounded number.
  void accept();
  // Appends what `poll` is to look at.
  void watch(std::vector<pollfd> &polled) const;
  // Reads what is there, from all that `watch` appended; returns those who
  // have shown the token. Whoever sent something else is gone.
  std::vector<Claim> receive(const pollfd *polled);
  // Drops who takes too long.
  void expire();
  void dropAll();
  size_t size() const { return strangers_.size(); }
  // False for a moment where the process has no descriptors left.
  bool mayAccept() const { return Clock::now() >= acceptAgain_; }

private:
  using Clock = std::chrono::steady_clock;
  // The part of an address that one owner has to themselves.
  using Address = std::array<unsigned char, 16>;
  struct Stranger {
    int socket;
    Address address;
    Clock::time_point since;
    std::string challenge;
    std::array<char, kHelloBytes> hello;
    size_t got = 0; // of it
  };

  void add(int socket, const Address &address);
  // Room for one more from the address.
  void makeRoom(const Address &address);
  void drop(size_t at);
  void dropOldest(const Address &of);
  // False if the connection is to be dropped.
  bool read(Stranger &stranger);

  int listener_;
  std::string token_;
  size_t most_ = kMostStrangers;
  std::vector<Stranger> strangers_; // the oldest first
  Clock::time_point acceptAgain_;
};

} // namespace merak::runtime
