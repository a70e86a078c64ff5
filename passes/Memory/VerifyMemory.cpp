#include "passes/Memory/ArenaPlan.h"
#include "passes/Memory/BufferLives.h"
#include "passes/Memory/Passes.h"

#include <set>

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_VERIFYMEMORY
#include "passes/Memory/Passes.h.inc"

namespace {

// Stretches of the arena, each of one buffer (all its slots).
struct Stretches {
  std::vector<memory::PlacedRange> ranges;
  std::vector<plan::BufferOp> buffers;

  void add(plan::BufferOp buffer, int64_t begin, int64_t end,
           memory::BufferLife life) {
    ranges.push_back({begin, end, life.first, life.last});
    buffers.push_back(buffer);
  }
};

// Stretches that share bytes must not live together.
bool checkStretches(Stretches &stretches) {
  auto overlaps = memory::findOverlaps(stretches.ranges);
  for (auto [a, b] : overlaps) {
    const memory::PlacedRange &one = stretches.ranges[a],
                              &other = stretches.ranges[b];
    InFlightDiagnostic error =
        stretches.buffers[b].emitOpError()
        << "at bytes [" << other.begin << ", " << other.end << ") overlaps '"
        << stretches.buffers[a].getSymName() << "' at [" << one.begin << ", "
        << one.end << ") while both are live";
    error.attachNote(stretches.buffers[a].getLoc()) << "the other buffer";
  }
  return overlaps.empty();
}

struct VerifyMemoryPass : impl::VerifyMemoryBase<VerifyMemoryPass> {
  void runOnOperation() override {
    bool ok = true;
    for (auto program : getOperation().getOps<plan::ProgramOp>())
      ok &= verify(program);
    if (!ok)
      signalPassFailure();
  }

  bool verify(plan::ProgramOp program) {
    bool ok = true;
    llvm::DenseMap<StringAttr, plan::BufferOp> transients;
    Stretches forTheStep;
    for (auto buffer : program.getOps<plan::BufferOp>()) {
      if (!buffer.getOffset()) {
        buffer.emitOpError("has no offset");
        ok = false;
        continue;
      }
      int64_t begin = *buffer.getOffset();
      int64_t end = begin +
                    (static_cast<int64_t>(buffer.getSlots()) - 1) *
                        static_cast<int64_t>(buffer.getSlotStride()) +
                    buffer.getBytes();
      if (begin % memory::kArenaAlignment) {
        buffer.emitOpError("at byte ")
            << begin << " is not aligned to " << memory::kArenaAlignment;
        ok = false;
      }
      if (end > static_cast<int64_t>(program.getArenaBytes())) {
        buffer.emitOpError("ends at byte ")
            << end << " of an arena of "
            << static_cast<int64_t>(program.getArenaBytes());
        ok = false;
      }
      if (buffer.isTransient())
        transients[buffer.getSymNameAttr()] = buffer;
      else if (begin < end)
        forTheStep.add(buffer, begin, end, {INT64_MIN, INT64_MAX});
    }
    if (!ok)
      return false;
    ok &= checkStretches(forTheStep);
    for (auto procedure : program.getOps<plan::ProcedureOp>()) {
      Stretches stretches = forTheStep;
      for (auto &[name, life] : memory::bufferLives(procedure)) {
        plan::BufferOp buffer = transients.lookup(name);
        if (buffer && buffer.getBytes())
          stretches.add(buffer, static_cast<int64_t>(*buffer.getOffset()),
                        static_cast<int64_t>(*buffer.getOffset()) +
                            buffer.getBytes(),
                        life);
      }
      // Overlaps among values of the step were reported above.
      if (ok)
        ok &= checkStretches(stretches);
    }
    return ok;
  }
};

} // namespace
} // namespace merak
