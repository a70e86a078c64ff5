// What merak-run's command line and the environment ask for.
#pragma once

#include "runtime/launch/AgentOptions.h"
#include "runtime/launch/ElasticOptions.h"
#include "runtime/launch/Places.h"
#include "runtime/launch/Replan.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunMain.h"
#include "runtime/launch/SaveOptions.h"

#include <CLI/CLI.hpp>

#include <chrono>

namespace merak::runtime {

#if defined(__SANITIZE_ADDRESS__)
// In one allocation a kernel that reads beyond its buffer reads another one.
inline constexpr const char *kArena = "separate";
#else
inline constexpr const char *kArena = "packed";
#endif

struct RunOptions {
  std::string plan, ranks = "inproc", backend = "cpu";
  DataOptions data;
  std::string shuffle; // "true": of the run's seed
  std::string lossScale;
  std::string tokenType = "u16", graphs = "auto", verify = "sampled";
  std::string arena = kArena;
  bool trustPlan = false;
  int64_t steps = 1;
  std::string log, saveGrads, trace, out, links, modelDir, status;
  CheckpointOptions checkpoint;
  SessionOptions session;
  ReplanOptions replan;
  AgentOptions agent;
  ElasticOptions elastic;
  RunCopiesOptions copies;
  int beat = -1; // see beatDescriptor
  // Of an agent that starts ranks on hosts: where its devices are (Places.h).
  std::string placesText;
  std::vector<Place> places;
  std::chrono::steady_clock::time_point begin = // of this process
      std::chrono::steady_clock::now();
};

void addRunOptions(CLI::App &app, RunOptions &options,
                   const BackendRegistry &backends);
// What they mean together; empty: nothing is wrong.
std::string usageProblem(const RunOptions &options);
// What was given as text, for those who use it. Errors: wrong usage.
Status readTexts(RunOptions &options);
// Devices by their numbers among those of all hosts become those of a run that
// has only some of them; others become none.
void followDevices(std::vector<SlowRequest> &slow,
                   const std::vector<Place> &places);
// Variables of the environment. MERAK_FAULT=RANK:STEP:fail|hang|kill, for tests
// of what a lost rank does, and others are read in builds with tests alone.
Status readEnvironment(SessionOptions &session, AgentOptions &agent);

} // namespace merak::runtime
