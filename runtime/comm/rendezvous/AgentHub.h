// Where the agents of one run meet (runtime/launch/Agent.h): one leads the run
// and listens, others are connected to it and know all that it knows, so that
// they can go on without it. Whoever comes shows the run's token first, and
// sees that the leader knows it (Handshake.h).
//
//   leader -> agent   "state": what the leader knows, as often as it changes;
//                     "agents": who is connected, in the order of coming;
//                     Leave: the run is over, with its exit code
//   agent -> leader   "joins": of which run it is, and where it would listen;
//                     "leads": it has taken over; Leave: it ends on purpose
//   both ways         Alive, every second
//
// What a connection says about the other end: one that was closed by the
// system of its host without a word is of a process that is gone. One that is
// silent or breaks otherwise says nothing: the process may go on, cut off.
#pragma once

#include "runtime/comm/rendezvous/TcpStore.h"

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace merak::runtime {

// An agent that is connected to the leader.
struct AgentMember {
  std::string host;
  int port = 0; // where it listens once it leads
  bool operator==(const AgentMember &) const = default;
};

// The leader's end, with a thread of its own. Any thread may call.
class AgentHub {
public:
  struct Options {
    std::string token;
    std::string run; // id; agents that know another one are refused
    double silenceSeconds = 5;
  };
  AgentHub(Options options, std::unique_ptr<StoreListener> listener);
  // Closes the connections. Behind `finish` the others have heard of that.
  ~AgentHub();
  AgentHub(const AgentHub &) = delete;

  int port() const { return port_; }
  // For all that are connected, and will be; for those that are silent once
  // they are heard again: what they know must not be newer than what they may
  // claim (runtime/launch/StartVote.h). Does not wait.
  void publish(const std::string &state);
  // The run is over: all are told, and waited for a second.
  void finish(int code);

  // In the order in which they came.
  std::vector<AgentMember> members() const;
  // Those that have not answered for the time of silence, or whose connection
  // broke: they may go on without this one.
  std::vector<AgentMember> silent() const;
  // They are no members any more, and are not heard.
  void drop(const std::vector<AgentMember> &members);
  // The host whose agent says that it leads by now; empty: none.
  std::string successor() const;
  // Who came and went since the last call, for the user.
  std::vector<std::string> news();

private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int socket = -1; // -1: the connection broke
    AgentMember member;
    bool joined = false;
    bool missed = false; // a state, while it was silent
    std::string in, out;
    Clock::time_point heard;
  };

  void main();
  void admit(int socket, const std::string &host);
  // False: it is gone.
  bool receive(Peer &peer);
  bool handle(Peer &peer, const std::string &bytes);
  void flush(Peer &peer);
  void replace(const Peer &peer);
  void tellState(Peer &peer);
  void sign();
  void tellMembers();
  bool isSilent(const Peer &peer) const;
  std::vector<AgentMember> membersLocked() const;

  Options options_;
  int listener_, port_;
  int wake_[2];
  mutable std::mutex mutex_; // what follows
  bool stop_ = false;
  int nextPeer_ = 0;
  std::map<int, Peer> peers_; // in the order of coming
  std::string state_, successor_;
  std::vector<std::string> news_;
  Clock::time_point signed_, looked_;
  std::thread thread_;
};

// Another agent's end. For one thread.
class AgentLink {
public:
  struct Options {
    std::string token;
    std::string run; // id; empty: whichever the leader has
    int port = 0;    // where this agent would listen
    double silenceSeconds = 5;
  };
  // Tries for so long. `final`: asking again is in vain, since who listens
  // there has refused or is somebody else.
  static Result<std::unique_ptr<AgentLink>> join(const std::string &address,
                                                 int port,
                                                 const Options &options,
                                                 double seconds, bool &final);
  ~AgentLink();
  AgentLink(const AgentLink &) = delete;

  enum class End {
    none,    // it goes on
    over,    // the run is: code()
    refused, // why()
    gone,    // the leader's process is
    broken,  // who knows
  };
  // Takes what is there; waits for something, so long at most.
  End listen(double seconds);
  double secondsSilent() const;

  // The host of the leader.
  const std::string &leader() const { return leader_; }
  // The newest; empty: none came yet.
  const std::string &state() const { return state_; }
  const std::vector<AgentMember> &members() const { return members_; }
  // The place of this agent among them; nothing: it is not there yet.
  std::optional<size_t> place() const { return place_; }
  int code() const { return code_; }
  const std::string &why() const { return why_; }

  // Tells the leader that this agent leads now, if that can still be heard.
  void takeOver();
  // Ends on purpose.
  void leave();

private:
  AgentLink(int socket, std::string leader, const Options &options);
  End handle();

  int socket_;
  std::string leader_, in_, state_, why_;
  Options options_;
  std::vector<AgentMember> members_;
  std::optional<size_t> place_;
  int code_ = 0;
  std::chrono::steady_clock::time_point heard_, signed_, looked_;
};

} // namespace merak::runtime
