// The options of merak-run that concern checkpoints and steps gone wrong.
#pragma once

#include "runtime/launch/Session.h"

#include <CLI/CLI.hpp>

namespace merak::runtime {

struct CheckpointOptions {
  SaveOptions save;
  int64_t saveEvery = 0; // steps; 0: only at the end
  bool wait = false;     // steps wait for what is written
  std::string load;
  bool force = false; // go on with other data or another seed
  std::optional<uint64_t> seed;
};

void addCheckpointOptions(CLI::App &app, CheckpointOptions &options,
                          SessionOptions &session);
// What they mean together; empty: nothing is wrong.
std::string usageProblem(const CheckpointOptions &options);
// Whether the plan can do what is asked.
Status checkAgainst(const SessionOptions &session,
                    const planpb::PlanFile &plan);

} // namespace merak::runtime
