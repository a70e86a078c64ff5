// Working memory of the calling thread, kept from call to call.
#pragma once

#include <cstdint>

namespace merak::cpu {

// Purposes that may be in use at the same time on one thread.
enum class ScratchSlot {
  PackA,
  PackB,
  TileC,
  Scores,
  ScoreGrads,
  Row0,
  Row1,
  Row2,
  Row3,
  Columns,
  Partial,
  RoundedA,
  RoundedB,
  Count
};

// At least `bytes` bytes aligned to 64; valid until the thread asks for the
// same slot again. The contents are undefined.
void *scratchBytes(ScratchSlot slot, int64_t bytes);

template <typename T = float> T *scratch(ScratchSlot slot, int64_t count) {
  return static_cast<T *>(
      scratchBytes(slot, count * static_cast<int64_t>(sizeof(T))));
}

} // namespace merak::cpu
