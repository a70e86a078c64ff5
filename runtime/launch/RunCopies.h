// Copies of a run's state in its hosts' memory
// (runtime/checkpoint/HostCopies.h) as merak-run has them: what it goes on
// from, and when it copies.
#pragma once

#include "runtime/checkpoint/CopyStart.h"
#include "runtime/launch/Session.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include <chrono>

namespace merak::runtime {

struct RunCopiesOptions {
  CopyOptions copies;
  int64_t every = 0; // as given; 0: the default
  // What the agent that starts the run says of it: ID:START:LAST, with the last
  // step, and, of one that is started again (with copies or without), why, as
  // JSON.
  std::string of, restarted;
  // Instead of a run: an id; ID:START:TARGETS:STEP, see CopyStart::pass.
  std::string remove, pass;

  int64_t stepsBetween() const { return every > 0 ? every : copies.every; }
};

void addCopyOptions(CLI::App &app, RunCopiesOptions &options);
// What they mean together; empty: nothing is wrong.
std::string usageProblem(const RunCopiesOptions &options, int64_t restarts);
std::string copiesArgument(const CopyRun &run, int64_t last);
// `targets`: how many processes are on hosts of the next start; `diskStep`: of
// the checkpoint that there is besides, -1: none.
std::string passArgument(const CopyRun &run, int64_t targets, int64_t diskStep);
Status passCopies(const RunCopiesOptions &options, World &world);

// How the log tells of a run that was started again; null: it was not.
nlohmann::ordered_json restartEntry(const RunCopiesOptions &options,
                                    int64_t step);

class RunCopies {
public:
  // All processes. `load`: the checkpoint to go on from if no copies are newer;
  // becomes what is to be loaded. `steps`: becomes those that are left.
  static Result<std::unique_ptr<RunCopies>>
  open(const RunCopiesOptions &options, Store *store, std::string &load,
       int64_t &steps);
  // Before the session loads what `load` became.
  Status fetch(Session &session, World *world);
  // Whether processes send each other what they keep: there are several hosts.
  bool areSent() const { return start_->hosts().names.size() > 1; }
  // Behind that: what is told, on rank 0's process.
  std::vector<std::string> notes(int64_t step);
  // The same, with where the state came from.
  nlohmann::ordered_json restartEntry(int64_t step) const;

  // Begins to keep copies of a session; of the next one after the plan was
  // changed. `tooLittle`: the error is that of memory.
  Status keep(Session &session, const SessionOptions &options, World *world,
              bool &tooLittle);
  // After a step, before the next one.
  Status after(int64_t step, Session &session);
  // Of a run that ends early, where nothing else keeps its state.
  Status last(Session &session);
  int64_t newest() const; // step of the newest copy; 0: none
  std::vector<std::string> news();
  // What the log does not say yet: the step of the newest copy and how many
  // were left out; at first who keeps how many bytes, and where. Null: nothing.
  nlohmann::ordered_json logEntry();
  // Waits for what is under way.
  std::string summary();

private:
  RunCopiesOptions options_;
  std::unique_ptr<CopyStart> start_;
  std::unique_ptr<HostCopies> copies_; // null: no memory for them
  std::string from_ = "beginning";     // "copies", "checkpoint"
  bool kept_ = false;                  // copies at any time
  uint64_t fetched_ = 0;               // bytes
  std::optional<HostCopies::Made> logged_;
  std::chrono::steady_clock::time_point begin_;
  double seconds_ = 0; // of choosing, fetching and loading
  std::vector<std::string> notes_;
};

} // namespace merak::runtime
