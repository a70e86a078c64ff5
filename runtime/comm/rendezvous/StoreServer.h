// The serving side of a TcpStore: one thread of rank 0's process that keeps
// the values and watches over all connections (private to this folder). Once
// all ranks have come nobody listens any more.
#pragma once

#include "runtime/comm/rendezvous/Strangers.h"

#include <atomic>
#include <map>
#include <thread>

namespace merak::runtime {

class StoreServer {
public:
  struct Options {
    int size = 1;
    std::string token, host;
    double silenceSeconds = 7;
  };
  // Takes over the listening socket and `own`, the connection of rank 0.
  StoreServer(Options options, int listener, int own);
  // Ends the thread: at once if the last member has left.
  ~StoreServer();

private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int socket = -1;
    int rank = -1;
    std::string host, in, out;
    size_t sent = 0; // of `out`
    Clock::time_point heard;
    bool left = false;
  };
  struct Waiter {
    int peer; // id
    uint64_t question;
    bool takes;
    Clock::time_point deadline;
  };
  struct Collection {
    std::vector<std::string> parts;
    std::vector<bool> there;
    int count = 0, collected = 0;
    std::vector<Waiter> waiters;
  };

  void main();
  int pollMilliseconds() const;
  void meetStrangers(const pollfd *listening, const pollfd *polled);
  void claim(const Claim &claim);
  std::string refusal(const Hello &hello) const;
  void admit(int rank, int socket, const std::string &host);
  void receive(int id);
  void flush(Peer &peer);
  void handle(int id, Frame frame);
  void answerGet(int id, const Frame &frame);
  void answerCollect(const std::string &name, Collection &collection);
  void expire();
  void watch();
  void abort(int rank, const std::string &why, int except = -1);
  void lost(int id, const std::string &how);
  void send(int id, const Frame &frame);
  void broadcast(const Frame &frame, int except = -1);
  void close(int id);
  std::string missing(const Collection &collection) const;

  Options options_;
  int listener_; // -1: nobody is to come any more
  int wake_[2];
  std::atomic<bool> stop_{false};
  std::map<int, Peer> peers_; // by id
  int nextPeer_ = 0;
  std::map<int, int> peerOfRank_;
  std::map<int, std::string> claimed_; // the hosts of ranks, also of gone ones
  Strangers strangers_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Waiter>> waiters_; // by key
  std::map<std::string, Collection> collections_;
  std::map<std::string, int64_t> numbers_;
  bool aborted_ = false;
  std::string abortText_;
  Clock::time_point lastSign_;
  std::thread thread_;
};

} // namespace merak::runtime
