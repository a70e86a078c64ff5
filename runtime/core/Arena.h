// Where the buffers of a program lie. Packed: in one allocation, at the offsets
// of the plan, of memory that the transport sends from. Separate: each buffer
// in an allocation of its own, with a red zone before and behind each of its
// slots, so that accesses beyond a buffer do not find another one there:
//
//   - what is written into a zone is found by `check`;
//   - as f32, bf16 and f16 a zone is no number: values that are read from it
//     come out of a run with --check-numerics. Not the same one in every zone,
//     and a signalling one, so that neither a copy nor a sum of what lies in
//     one zone passes for another;
//   - on the host, built for AddressSanitizer, zones are poisoned;
//   - compute-sanitizer sees the ends of the allocations.
//
// Operands of one joined collective stay beside each other (Joined.h).
//
// Single buffers may lie in memory that is given: state that goes on when the
// program does not.
#pragma once

#include "runtime/core/Backend.h"

#include <map>

namespace merak::runtime {

// Of single buffers, by their index.
using BufferMemory = std::map<int, std::shared_ptr<char>>;

class Arena {
public:
  static constexpr uint64_t kZone = 16384; // bytes, at least

  // `packed`: where packed buffers come from; null: from the backend. All must
  // outlive the arena.
  Arena(const planpb::Program &program, Backend &backend,
        MemorySource *packed = nullptr)
      : program_(program), backend_(backend),
        packed_(packed ? *packed : backend) {}
  ~Arena();
  Arena(const Arena &) = delete;
  Arena &operator=(const Arena &) = delete;

  // Bytes that `take` allocates.
  static uint64_t bytes(const planpb::Program &program, bool separate);
  // `given`: memory of buffers that have one slot and share no byte with
  // others; the packed allocation is smaller by them. Not with `separate`.
  Status take(bool separate, BufferMemory given = {});
  // The memory that was given for a buffer, or null.
  std::shared_ptr<char> given(int buffer) const;

  bool isSeparate() const { return separate_; }
  // Of slot 0, and from one slot to the next.
  char *base(int buffer) const { return places_[size_t(buffer)].base; }
  uint64_t stride(int buffer) const { return places_[size_t(buffer)].stride; }

  // Whether the zones of a slot are as they were; of packed buffers, yes.
  // Waits for the stream.
  Status check(int buffer, uint32_t slot, StreamHandle stream) const;
  // All of them.
  Status checkAll(StreamHandle stream) const;

private:
  struct Zone {
    char *begin = nullptr;
    uint64_t bytes = 0;
    uint64_t number = 0; // of the arena's
  };
  struct Place {
    char *base = nullptr;
    uint64_t stride = 0;
    Zone before, behind; // of slot 0
  };
  Status takePacked();
  Status takeSeparate();
  Status fill(Zone zone);
  Status checkZone(Zone zone, int buffer, bool behind,
                   StreamHandle stream) const;

  const planpb::Program &program_;
  Backend &backend_;
  MemorySource &packed_;
  bool separate_ = false;
  BufferMemory given_;
  std::vector<Place> places_; // by buffer
  std::vector<void *> blocks_;
  std::vector<Zone> zones_;
};

} // namespace merak::runtime
