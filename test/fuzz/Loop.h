// The loop of every fuzzer: makes inputs and runs them in a worker process with
// a bound on its memory, watched for crashes and hangs.
//
//   ... [--executions=N] [--from=N] [--seed=N] [--seconds=N] [--save=DIR]
//       [--replay=DIR] [--target=NAME]
//
// Exit code 0 if nothing crashed, hung, went over the bound or gave a wrong
// result, else 1; what did so is saved. The same seed gives the same inputs;
// --from goes on with a later one. --replay runs the files of a folder as they
// are, before the others.
#pragma once

#include "test/fuzz/Mutate.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace merak::fuzz {

struct LoopOptions {
  std::vector<std::string> seeds;
  uint64_t executions = 10000, from = 0, seed = 1, seconds = 0;
  std::string save = ".", replay, target;
};

enum class Outcome {
  Refused,
  Accepted,
  Wrong, // accepted, and another result than it may give
};

struct Target {
  std::string name;
  std::string suffix; // of files that are kept
  // An input; the same for the same state of `random`.
  std::function<std::string(Random &random)> make;
  std::function<Outcome(const std::string &input)> run;
  std::function<void()> begin;   // in each worker, before its memory is bounded
  std::vector<std::string> kept; // inputs that run first, as they are
};

// False: wrong usage.
bool readArguments(int argc, char **argv, LoopOptions &options);
std::string contents(const std::string &path);
// The exit code.
int runLoop(LoopOptions options, const Target &target);

} // namespace merak::fuzz
