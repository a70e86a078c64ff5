#include "runtime/launch/HostLooks.h"

#include "runtime/core/SecondsSince.h"

#include <sys/wait.h>
#include <thread>
#include <utility>

namespace merak::runtime {

// What a host has to start a process.
constexpr double kAnswerSeconds = 20;

HostLooks::HostLooks(const std::string &launcher,
                     const std::set<std::string> &hosts,
                     const std::vector<std::string> &command) {
  for (const std::string &host : hosts)
    ask(host, launch(launcher, 1, host + ":1", command));
}

void HostLooks::ask(const std::string &host,
                    const std::vector<std::string> &command) {
  if (auto process = ChildProcess::start(command, true))
    looks_.push_back(
        {host, std::move(*process), std::chrono::steady_clock::now()});
}

std::set<std::string> HostLooks::take() {
  std::set<std::string> answered;
  std::vector<Look> rest;
  for (Look &look : looks_) {
    const std::optional<int> status = look.process.ended();
    if (status && WIFEXITED(*status) && WEXITSTATUS(*status) == 0)
      answered.insert(look.host);
    else if (!status && secondsSince(look.begin) < kAnswerSeconds)
      rest.push_back(std::move(look));
  }
  looks_.swap(rest);
  return answered;
}

std::set<std::string> HostLooks::wait() {
  std::set<std::string> answered;
  while (isWaiting()) {
    answered.merge(take());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return answered;
}

bool LostHosts::look() {
  if (!looks_.isWaiting()) {
    if (secondsSince(looked_) < seconds_)
      return false;
    looks_ = HostLooks(launcher_, all_);
    answered_.clear();
  }
  answered_.merge(looks_.take());
  looked_ = std::chrono::steady_clock::now();
  Names lost;
  for (const std::string &host : all_) {
    const bool isAsked = looks_.isWaiting(); // what was said before counts
    if (!answered_.count(host) && !(isAsked && !lost_.count(host)))
      lost.insert(host);
  }
  return std::exchange(lost_, lost) != lost;
}

} // namespace merak::runtime
