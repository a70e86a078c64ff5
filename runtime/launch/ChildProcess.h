// A command in a process of its own that another one starts and watches: a run
// under its agent (Agent.h), or a look at a host.
#pragma once

#include "runtime/core/Status.h"

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace merak::runtime {

// Where a run that an agent watches tells of each step, and of the last one:
// MERAK_BEAT_FD, a descriptor that is open for writing; -1: nobody watches.
int beatDescriptor();
void beat(int descriptor, bool last = false);

// Whether a command of that name is in a folder of PATH.
bool isOnPath(const std::string &program);

class ChildProcess {
public:
  // In a process group of its own, which ends when this program does. `quiet`:
  // what it prints is nobody's.
  static Result<ChildProcess> start(const std::vector<std::string> &command,
                                    bool quiet = false);
  ChildProcess(ChildProcess &&other) noexcept;
  ChildProcess(const ChildProcess &) = delete;
  ChildProcess &operator=(const ChildProcess &) = delete;
  ~ChildProcess(); // kills what still runs

  // To it and to all that it started.
  void signal(int number) const;
  // As of waitpid; nothing while it runs.
  std::optional<int> ended();
  // How many steps it told of since the last call; `last`: no more will come.
  int beats(bool &last) const;

private:
  ChildProcess(pid_t id, int beats) : id_(id), beats_(beats) {}

  pid_t id_;
  int beats_; // the reading end
  std::optional<int> status_;
};

// "exit code 1", "signal 9 (Killed)".
std::string describeEnd(int status);

} // namespace merak::runtime
