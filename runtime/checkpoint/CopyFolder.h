// The folder of a host's memory in which copies of a run's state lie:
//
//   BASE/merak-<run>/                  of this user, for nobody else
//     .lock                            held while the run has processes there
//     base                             what the newest start went on from
//     step-<N>/index.json, part-<i>.safetensors
//                                      a generation (Generations.h), of which
//                                      this host has some of the parts
//     .saving-<name>-step-<0|1>/       the slots that generations are made in
//
// BASE is /dev/shm, or what MERAK_COPIES says. A run is started again and again
// under one id; `start` counts that, and stands in the name of what each wrote.
#pragma once

#include "runtime/checkpoint/CopyChoice.h"
#include "runtime/checkpoint/Generations.h"
#include "runtime/checkpoint/Manifest.h"

#include <memory>

namespace merak::runtime {

struct CopyRun {
  std::string id; // 16 hexadecimal digits
  int64_t start = 0;
  // As manifests have it: the first half of the id, and the start.
  std::string name() const;
};
// The start in a name of the run; nothing: it is of another run.
std::optional<int64_t> startOf(const CopyRun &run, const std::string &name);

std::string copiesBase();
std::string copiesPath(const std::string &id,
                       const std::string &base = copiesBase());
// Whether a run can have a folder there.
Status checkCopiesBase(const std::string &base = copiesBase());
std::string partName(int part);

class CopyFolder {
public:
  // Makes the folder if it is not there and takes it; of the processes of a
  // host that do so one leads. Refuses one that others can write, or that is
  // no folder. A process of an earlier start that is about to end is waited
  // for.
  static Result<std::unique_ptr<CopyFolder>>
  open(const CopyRun &run, const std::string &base = copiesBase());

  const std::string &path() const { return path_; }
  const std::string &base() const { return base_; }
  std::string at(const std::string &name) const {
    return joinPath(path_, name);
  }
  std::string generation(int64_t step) const {
    return at(generationName(step));
  }
  std::string slot(int index) const { return generations_->temporaryOf(index); }
  bool leads() const { return generations_->leads(); }
  const CopyRun &run() const { return run_; }
  // Which folder it is, on which machine: the same for those that share it.
  Result<std::string> identity() const;

  // The following are for the process that leads.
  // Removes what killed runs left: in this folder, and, where nobody has
  // touched it for an hour, whole folders of other runs of this user.
  Status removeLeftovers();
  // Generations of this run, with the parts that are there and undamaged.
  Result<FoundCopies> find() const;
  Status writeBase(const CopyBase &base);
  Status removeGeneration(int64_t step);
  // All generations but that of `step`.
  Status removeOthers(int64_t step);
  // Bytes of generations that lie there, and that the file system has free.
  uint64_t bytesOfGenerations() const;
  Result<uint64_t> freeBytes() const;

private:
  CopyFolder(CopyRun run, std::string base);

  CopyRun run_;
  std::string base_, path_;
  std::unique_ptr<Generations> generations_;
};

// Of a run that has ended; others may be doing the same.
Status removeCopies(const std::string &id);
// The newest whole step that this host's folder has a part of, if any.
std::optional<int64_t> newestCopy(const std::string &id);

} // namespace merak::runtime
