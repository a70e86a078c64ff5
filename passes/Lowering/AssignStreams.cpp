#include "dialects/Dist/Regather.h"
#include "dialects/Support/RanksAxis.h"
#include "passes/Lowering/Buckets.h"
#include "passes/Lowering/DelayedExchanges.h"
#include "passes/Lowering/Passes.h"
#include "runtime/plan/Entries.h"

#include "llvm/ADT/DenseSet.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_ASSIGNSTREAMS
#include "passes/Lowering/Passes.h.inc"

namespace {

bool touches(ArrayAttr views, const llvm::SmallDenseSet<StringAttr> &buffers) {
  return llvm::any_of(views, [&](Attribute view) {
    return buffers.contains(cast<plan::ViewAttr>(view).getBuffer().getAttr());
  });
}

// Whether the instruction right behind `op` depends on it, and `op` on what
// stands in front of it.
bool isAwaitedAtOnce(plan::CollectiveOp op) {
  if (op->hasAttr(dist::kRegatherAttr) && op->getPrevNode())
    return false;
  auto next = dyn_cast_or_null<plan::InstructionOpInterface>(op->getNextNode());
  if (!next || next.getStream() > plan::kCollectiveStream)
    return false;
  llvm::SmallDenseSet<StringAttr> read, written;
  for (Attribute view : op.getInputs())
    read.insert(cast<plan::ViewAttr>(view).getBuffer().getAttr());
  for (Attribute view : op.getOutputs())
    written.insert(cast<plan::ViewAttr>(view).getBuffer().getAttr());
  return touches(next.getInputs(), written) ||
         touches(next.getOutputs(), written) ||
         touches(next.getOutputs(), read);
}

// A collective of what the prologue has left, as a count of tokens: in every
// microbatch the same. At the begin of the procedure it runs beside all that is
// in front of its first use.
class StepCollectives {
public:
  explicit StepCollectives(plan::ProgramOp program) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
  }

  void moveToFront(plan::ProcedureOp procedure) {
    Block &body = procedure.getBody().front();
    Operation *behind = nullptr;
    SmallVector<lowering::Touched> before;
    for (auto op : llvm::make_early_inc_range(
             body.getOps<plan::InstructionOpInterface>())) {
      const lowering::Touched own(op);
      if (isOfStep(op) &&
          llvm::none_of(before, [&](const lowering::Touched &other) {
            return other.conflicts(own);
          })) {
        if (behind)
          op->moveAfter(behind);
        else
          op->moveBefore(&body, body.begin());
        behind = op;
      } else {
        before.push_back(own);
      }
    }
  }

private:
  bool isOfStep(plan::InstructionOpInterface op) const {
    return isa<plan::CollectiveOp>(*op) &&
           llvm::all_of(op.getInputs(), [&](Attribute view) {
             plan::BufferOp buffer = buffers_.lookup(
                 cast<plan::ViewAttr>(view).getBuffer().getAttr());
             return !buffer.isTransient() && buffer.getSlots() == 1 &&
                    buffer.getCategory() == plan::Category::workspace;
           });
  }

  lowering::Buffers buffers_;
};

struct AssignStreamsPass : impl::AssignStreamsBase<AssignStreamsPass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      StepCollectives ofStep(program);
      for (auto procedure : program.getOps<plan::ProcedureOp>())
        if (procedure.getAction() != pipe::Action::U)
          ofStep.moveToFront(procedure);
      program.walk([&](plan::CollectiveOp op) {
        if (isEntry(op->getParentOfType<plan::ProcedureOp>().getSymName()))
          return;
        auto axes = cast<ArrayAttr>(program.getGroups()[op.getGroup()]);
        bool overStages = llvm::any_of(axes, [](Attribute axis) {
          return isAcrossStages(cast<StringAttr>(axis).getValue());
        });
        if (!overStages && isAwaitedAtOnce(op)) {
          op.setStream(plan::kComputeStream);
          ++inline_;
        } else {
          ++beside;
        }
      });
      lowering::placeDelayed(program);
    }
  }
};

} // namespace
} // namespace merak
