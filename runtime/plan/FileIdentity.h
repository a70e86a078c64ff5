// What is remembered of a file whose bytes a plan points into, so that another
// file in its place is noticed: its length and a hash of its contents. Moving
// or copying a file changes neither.
#pragma once

#include "runtime/core/Status.h"
#include "runtime/plan/plan.pb.h"

#include <cstdint>
#include <string>

namespace merak {

struct FileIdentity {
  uint64_t bytes = 0;
  uint64_t hash = 0;
  // Of 4 MiB spread over the file, not of all of it.
  bool sampled = false;
  int64_t modified = 0; // nanoseconds since 1970
};

// Reads the file: all of it up to `whole` bytes (and in any case where samples
// would be no less), samples above. An error if it cannot be read, is no
// regular file, or is written meanwhile.
Result<FileIdentity> identifyFile(const std::string &path, uint64_t whole);

// How a run looks at the files that a plan points into.
enum class SourceCheck { Off, Sampled, Full };

// The record of a Source.path; none in plans that are older than records.
const planpb::SourceFile *findSourceFile(const planpb::PlanFile &file,
                                         const std::string &path);

// That the file at `path` is the one of which `record` was made. `note`, if
// given, gets a sentence where samples cannot tell.
Status checkSourceFile(const planpb::SourceFile &record,
                       const std::string &path, SourceCheck check,
                       std::string *note = nullptr);

} // namespace merak
