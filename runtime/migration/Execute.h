// Executes a transfer program between two steps: from the memories of ranks of
// one plan into those of another.
#pragma once

#include "runtime/checkpoint/Checkpoint.h"
#include "runtime/migration/Migration.h"

#include <span>

namespace merak::migration {

// A device of this process. The memories outlive the call.
struct DeviceMemory {
  int device = 0;
  // Null: no rank of the plan is there.
  const runtime::RankMemory *source = nullptr, *target = nullptr;
  // Of a world whose ranks are the devices of the program; may be null if
  // nothing is sent.
  runtime::Communicator *communicator = nullptr;
};

// What a device did, counted where it was done.
struct Moved {
  // Of kept buffers: those that both plans have at one address, and those that
  // were copied, since the plans have memory of their own.
  int64_t keptBytes = 0, keptByCopyBytes = 0;
  int64_t copiedBytes = 0;
  int64_t sentBytes = 0, receivedBytes = 0, messages = 0; // messages: sent
  // Of host memory at a time: pack and receive buffers, and, of devices, rows
  // of the buffers that are read and written (twice the largest one at most).
  int64_t peakBytes = 0;
};

// All processes of the run call it with the devices that they have; each device
// is a thread. Afterwards every buffer of the target that holds state has the
// bits that a checkpoint of the source would have brought there; the source is
// as it was. Result: by `memories`. Memory of devices goes through the host's,
// which is what communicators send. Errors: those of copies and communicators,
// after which the target's state is lost.
Result<std::vector<Moved>>
executeMigration(const Migration &migration,
                 std::span<const DeviceMemory> memories);

} // namespace merak::migration
