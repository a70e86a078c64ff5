// Steps by gradients that the step before left. They stand in front of the
// first microbatch, one behind the other, each behind its sum over replicas:
// there the computation would wait for all links at once. A step goes in front
// of the first instruction that reads its parameter; what the prologue makes of
// parameters once a step goes along. Sums go to the begin of that call, in the
// order of the steps: streams are set later (AssignStreams).
#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/CopyProcedure.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_PLACEDELAYED
#include "passes/Lowering/Passes.h.inc"

namespace {

using lowering::Touched;
using Instruction = plan::InstructionOpInterface;

class Placer {
public:
  Placer(plan::ProgramOp program, plan::CallOp gather)
      : program_(program), gather_(gather),
        from_(program.lookupSymbol<plan::ProcedureOp>(gather.getProcedure())) {}

  // How many steps have moved.
  int64_t run() {
    SmallVector<Instruction> ops(from_.getOps<Instruction>());
    lowering::BufferNames changed; // by what moves
    SmallVector<Instruction> moving;
    for (Instruction op : ops) {
      const Touched own(op);
      if (!isOfGradient(op) && llvm::none_of(changed, [&](StringAttr name) {
            return own.has(name);
          }))
        continue;
      changed.insert_range(own.writes);
      moving.push_back(op);
    }
    transients_ = lowering::transientsOf(program_, from_);
    for (Instruction op : llvm::reverse(moving))
      move(op);
    assignBuffers();
    if (from_.getBody().front().empty()) {
      gather_.erase();
      from_.erase();
    }
    return steps_;
  }

private:
  static bool isOfGradient(Instruction op) {
    auto collective = dyn_cast<plan::CollectiveOp>(*op);
    return op->hasAttr(train::kDelayedAttr) &&
           (isStep(op) ||
            (collective && collective.getOp() == plan::Collective::all_reduce));
  }
  static bool isStep(Operation *op) {
    return isa<plan::LibraryOp>(op) && op->hasAttr(plan::kUpdateAttr);
  }

  void move(Instruction op) {
    // What clears a sum for the step follows the step by the sum that was left.
    if (auto fill = dyn_cast<plan::LibraryOp>(*op);
        fill && fill.getOp() == "fill") {
      lowering::forBuffers(op.getOutputs(), [&](StringAttr sum) {
        clears_[sum] = op.getOperation();
      });
      return;
    }
    const Touched own(op);
    for (Operation *next = gather_->getNextNode(); next;
         next = next->getNextNode()) {
      auto call = dyn_cast<plan::CallOp>(next);
      const int64_t at = call ? firstConflict(call, own) : -1;
      if (at < 0)
        continue;
      plan::ProcedureOp to = lowering::ownProcedure(program_, call, ".first");
      SmallVector<Instruction> there(to.getOps<Instruction>());
      const bool isSum = isa<plan::CollectiveOp>(*op);
      op->moveBefore(there[isSum ? 0 : static_cast<size_t>(at)]);
      steps_ += isStep(op);
      break;
    }
    if (isStep(op))
      for (StringAttr name : own.reads)
        if (Operation *fill = clears_.lookup(name))
          fill->moveAfter(op);
  }

  int64_t firstConflict(plan::CallOp call, const Touched &own) {
    auto procedure =
        program_.lookupSymbol<plan::ProcedureOp>(call.getProcedure());
    for (auto [index, op] : llvm::enumerate(procedure.getOps<Instruction>()))
      if (Touched(op).conflicts(own))
        return static_cast<int64_t>(index);
    return -1;
  }

  // Of a procedure alone where only that still touches them.
  void assignBuffers() {
    for (plan::BufferOp buffer : transients_) {
      llvm::SmallPtrSet<Operation *, 2> users;
      for (auto procedure : program_.getOps<plan::ProcedureOp>())
        for (auto op : procedure.getOps<Instruction>())
          if (Touched(op).has(buffer.getSymNameAttr()))
            users.insert(procedure);
      if (users.size() > 1)
        buffer.removeProcedureAttr();
      else if (users.size() == 1)
        buffer.setProcedureAttr(FlatSymbolRefAttr::get(
            cast<plan::ProcedureOp>(*users.begin()).getSymNameAttr()));
    }
  }

  plan::ProgramOp program_;
  plan::CallOp gather_;
  plan::ProcedureOp from_;
  SmallVector<plan::BufferOp> transients_;
  llvm::DenseMap<StringAttr, Operation *> clears_; // fills, by sum
  int64_t steps_ = 0;
};

struct PlaceDelayedPass : impl::PlaceDelayedBase<PlaceDelayedPass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<plan::ProgramOp>())
      for (auto call :
           llvm::make_early_inc_range(program.getOps<plan::CallOp>()))
        if (program.lookupSymbol<plan::ProcedureOp>(call.getProcedure())
                .getAction() == Action::G)
          steps += Placer(program, call).run();
  }
};

} // namespace
} // namespace merak
