// Which hosts are there: each is asked to start a process that does nothing, or
// little, and answers when that has ended well.
#pragma once

#include "runtime/launch/ChildProcess.h"
#include "runtime/launch/Hosts.h"

#include <chrono>

namespace merak::runtime {

class HostLooks {
public:
  HostLooks() = default;
  // Asks all of them by the launcher.
  HostLooks(const std::string &launcher, const std::set<std::string> &hosts,
            const std::vector<std::string> &command = {"true"});
  // One more, by a whole command.
  void ask(const std::string &host, const std::vector<std::string> &command);

  // Some have neither answered nor taken too long.
  bool isWaiting() const { return !looks_.empty(); }
  // Those that answered since the last call.
  std::set<std::string> take();
  // All that answer.
  std::set<std::string> wait();

private:
  struct Look {
    std::string host;
    ChildProcess process;
    std::chrono::steady_clock::time_point begin;
  };
  std::vector<Look> looks_;
};

// Hosts that were lost, which are asked again from time to time.
class LostHosts {
public:
  using Names = std::set<std::string>;
  LostHosts(const std::string &launcher, Names lost, double seconds)
      : launcher_(launcher), all_(lost), lost_(std::move(lost)),
        seconds_(seconds) {}

  // Those that did not answer the last time.
  const Names &lost() const { return lost_; }
  // Whether these are others now.
  bool look();

private:
  const std::string &launcher_;
  Names all_, lost_;
  double seconds_; // from one look to the next
  std::chrono::steady_clock::time_point looked_ =
      std::chrono::steady_clock::now();
  HostLooks looks_;
  Names answered_; // by now
};

} // namespace merak::runtime
