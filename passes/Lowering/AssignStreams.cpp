#include "dialects/Dist/Regather.h"
#include "passes/Lowering/Passes.h"

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

struct AssignStreamsPass : impl::AssignStreamsBase<AssignStreamsPass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<plan::ProgramOp>())
      program.walk([&](plan::CollectiveOp op) {
        auto axes = cast<ArrayAttr>(program.getGroups()[op.getGroup()]);
        bool overStages = llvm::any_of(axes, [](Attribute axis) {
          return cast<StringAttr>(axis).getValue() == "pp";
        });
        if (!overStages && isAwaitedAtOnce(op)) {
          op.setStream(plan::kComputeStream);
          ++inline_;
        } else {
          ++beside;
        }
      });
  }
};

} // namespace
} // namespace merak
