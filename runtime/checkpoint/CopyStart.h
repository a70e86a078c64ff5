// A run that begins, or goes on, with copies in its hosts' memory: which of
// them are there, which is taken, and the parts that a host lacks. All
// processes call the same functions in the same order.
#pragma once

#include "runtime/checkpoint/HostCopies.h"

namespace merak::runtime {

class CopyStart {
public:
  // Takes the folders and looks at what is there, all of it. `store`: null for
  // one process. `diskStep`: of the checkpoint to go on
  // from otherwise, -1: none; of rank 0's process. The newest state counts, of
  // one step that in memory.
  static Result<std::unique_ptr<CopyStart>>
  open(const CopyRun &run, Store *store, int64_t diskStep,
       const std::string &base = copiesBase());

  // Between two starts: what only hosts have that the next one has no ranks on
  // goes to the first `targets` processes, which are on those that it has. One
  // process a host; changes nothing else. Returns the bytes that went.
  static Result<uint64_t> pass(const CopyRun &run, int targets, World &world,
                               int64_t diskStep,
                               const std::string &base = copiesBase());

  CopyFolder &folder() { return *folder_; }
  const CopyHosts &hosts() const { return hosts_; }
  // What to load: a generation in this host's memory; empty: no copies are
  // taken.
  const std::string &load() const { return load_; }
  // For the user, on rank 0's process: which newer copies are not whole.
  const std::vector<std::string> &notes() const { return notes_; }
  // Puts what these ranks need of the generation beside its manifest. Returns
  // the bytes that came from other hosts.
  Result<uint64_t> fetch(std::span<const RankMemory> ranks, World *world);

private:
  static Result<std::unique_ptr<CopyStart>> look(const CopyRun &run,
                                                 Store *store, int64_t diskStep,
                                                 const std::string &base);
  Status findHosts(Store *store);
  Status choose(Store *store, int64_t diskStep);
  Status exchangeManifests(Store *store);
  void noteLacking(const std::vector<std::string> &described);
  std::string describe(const CopyChoice::Lacking &lacking) const;
  Status settle();
  Status placeManifest();
  Result<uint64_t> move(const std::vector<std::vector<int>> &wanted,
                        const std::vector<std::vector<int>> &present,
                        World &world) const;
  Result<std::vector<int64_t>> partBytes() const;
  std::vector<int> wantedBy(std::span<const RankMemory> ranks) const;

  std::unique_ptr<CopyFolder> folder_;
  CopyHosts hosts_;
  CopyChoice choice_;
  std::string load_, text_; // of the manifest
  std::vector<std::string> notes_;
};

} // namespace merak::runtime
