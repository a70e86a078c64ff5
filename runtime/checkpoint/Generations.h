// A folder of generations:
//
//   DIR/step-<N>/index.json, rank-<r>.safetensors     a whole generation
//   DIR/latest      "step-<N> <checksum of that name>": the last one written
//   DIR/.lock       held by the run that writes; its text says which that is
//   DIR/.saving-<run>-step-<N>, .removing-<run>-step-<N>, .latest-<run>
//                   names of one run for what is not whole yet, or no more
//
// Nothing else in DIR is ever changed, and nothing behind a link.
#pragma once

#include "runtime/checkpoint/Files.h"

#include <cstdint>
#include <optional>

namespace merak::runtime {

// The folder of one generation that `path` means: one itself, an older
// checkpoint, or what the folder's `latest` names. Without that file, or if
// what it names is gone, the newest; `note` says so.
Result<std::string> findGeneration(const std::string &path, std::string &note);

// Whole generations in a folder, or the folder itself if it is one.
Result<std::vector<std::string>> generationsIn(const std::string &path);

// "step-12" -> 12.
std::optional<int64_t> stepOfName(const std::string &name);
std::string generationName(int64_t step);

// A new name for a run.
std::string newRun();
// "(process 7 on host h)", for those who are refused.
std::string thisProcess();

class Generations {
public:
  // `owner`: who writes, for those who are refused.
  Generations(std::string dir, Files &files, std::string run, std::string owner)
      : dir_(std::move(dir)), files_(files), run_(std::move(run)),
        owner_(std::move(owner)) {}
  ~Generations();
  Generations(const Generations &) = delete;
  Generations &operator=(const Generations &) = delete;

  // Makes the folder if it is not there and takes it. If another process of
  // this run has it, `leads` stays false. Refuses a folder that another run
  // writes, naming it.
  Status take();
  bool leads() const { return leads_; }
  // What to tell the user, e.g. that this file system has no locks.
  const std::string &note() const { return note_; }

  // The following are for the process that leads.
  // Removes what killed runs left under names of theirs.
  Status removeLeftovers();
  // An empty folder for the generation.
  Status begin(int64_t step);
  std::string temporaryOf(int64_t step) const;
  // Once all of it is written and synced: puts it in its place, then `latest`.
  Status commit(int64_t step);
  // Removes all but the newest `keep` up to `step`, which are not touched by
  // commits any more. What is not ours stays.
  Status prune(int64_t step, int keep);
  // After a failure: as if nothing had begun.
  void discard(int64_t step);

private:
  Status lock();
  Status checkNames(int64_t step) const;
  Status removeGeneration(const std::string &name);
  Status removeOurs(const std::string &folder);
  std::string at(const std::string &name) const { return joinPath(dir_, name); }

  std::string dir_;
  Files &files_;
  std::string run_, owner_, note_;
  int lock_ = -1;
  bool leads_ = false;
};

} // namespace merak::runtime
