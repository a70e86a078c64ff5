#include "passes/Memory/ArenaPlan.h"
#include "passes/Memory/BufferLives.h"
#include "passes/Memory/Passes.h"

#include <set>

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_VERIFYMEMORY
#include "passes/Memory/Passes.h.inc"

namespace {

// A stretch of the arena that one buffer (all its slots) takes.
struct Stretch {
  int64_t begin, end;
  memory::BufferLife life;
  plan::BufferOp buffer;
};

bool reportOverlap(const Stretch &a, const Stretch &b) {
  InFlightDiagnostic error =
      plan::BufferOp(b.buffer).emitOpError()
      << "at bytes [" << b.begin << ", " << b.end << ") overlaps '"
      << plan::BufferOp(a.buffer).getSymName() << "' at [" << a.begin << ", "
      << a.end << ") while both are live";
  error.attachNote(plan::BufferOp(a.buffer).getLoc()) << "the other buffer";
  return false;
}

// Sweeps over memory; stretches that are open together must not live together.
bool checkStretches(std::vector<Stretch> stretches) {
  llvm::stable_sort(stretches, [](const Stretch &a, const Stretch &b) {
    return a.begin < b.begin;
  });
  bool ok = true;
  std::vector<const Stretch *> open;
  for (const Stretch &stretch : stretches) {
    llvm::erase_if(open, [&](const Stretch *other) {
      return other->end <= stretch.begin;
    });
    for (const Stretch *other : open)
      if (other->life.first <= stretch.life.last &&
          stretch.life.first <= other->life.last)
        ok = reportOverlap(*other, stretch);
    open.push_back(&stretch);
  }
  return ok;
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
    std::vector<Stretch> forTheStep;
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
        forTheStep.push_back({begin, end, {INT64_MIN, INT64_MAX}, buffer});
    }
    if (!ok)
      return false;
    ok &= checkStretches(forTheStep);
    for (auto procedure : program.getOps<plan::ProcedureOp>()) {
      std::vector<Stretch> stretches = forTheStep;
      for (auto &[name, life] : memory::bufferLives(procedure)) {
        plan::BufferOp buffer = transients.lookup(name);
        if (buffer && buffer.getBytes())
          stretches.push_back(
              {static_cast<int64_t>(*buffer.getOffset()),
               static_cast<int64_t>(*buffer.getOffset()) + buffer.getBytes(),
               life, buffer});
      }
      // Overlaps among values of the step were reported above.
      if (ok)
        ok &= checkStretches(std::move(stretches));
    }
    return ok;
  }
};

} // namespace
} // namespace merak
