#include "passes/Lowering/DelayedExchanges.h"

#include "dialects/Dist/Trim.h"
#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/CopyProcedure.h"
#include "passes/Lowering/Touched.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/LibraryKernels.h"

using namespace mlir;

namespace merak::lowering {

namespace {

bool isProduct(Operation &op) {
  auto library = dyn_cast<plan::LibraryOp>(op);
  const LibraryKernel *kernel =
      library ? findLibraryKernel(library.getOp().str()) : nullptr;
  return kernel && (kernel->rates == RateClass::Matmul ||
                    kernel->rates == RateClass::Attention ||
                    kernel->rates == RateClass::Conv);
}

// The last exchange in front of the first product; null: there is none.
Operation *lastOfLookups(plan::ProcedureOp procedure) {
  Operation *last = nullptr;
  for (Operation &op : procedure.getBody().front()) {
    if (isProduct(op))
      break;
    if (isa<plan::CollectiveOp>(op) && !op.hasAttr(train::kDelayedAttr))
      last = &op;
  }
  return last;
}

uint64_t addStream(plan::ProgramOp program, StringRef name) {
  SmallVector<Attribute> streams(program.getStreams().getValue());
  streams.push_back(StringAttr::get(program.getContext(), name));
  program.setStreamsAttr(ArrayAttr::get(program.getContext(), streams));
  return streams.size() - 1;
}

void moveBehind(Operation *previous, plan::CollectiveOp op) {
  op->moveAfter(previous);
  op->setAttr(plan::kAfterPreviousAttr, UnitAttr::get(op->getContext()));
}

// The exchange of lookups that a sum of gradients lets pass; null: there is
// none, or something in front of it needs the sum.
Operation *lookupsBefore(plan::CollectiveOp sum) {
  Operation *last = lastOfLookups(sum->getParentOfType<plan::ProcedureOp>());
  if (!last || !sum->isBeforeInBlock(last))
    return nullptr;
  const Touched own(sum);
  for (Operation *op = sum->getNextNode(); op != last->getNextNode();
       op = op->getNextNode())
    if (auto other = dyn_cast<plan::InstructionOpInterface>(op);
        other && Touched(other).conflicts(own))
      return nullptr;
  return last;
}

// In their order, behind what lookups exchange.
void placeSums(plan::ProgramOp program, ArrayRef<plan::CollectiveOp> sums) {
  if (sums.empty())
    return;
  const uint64_t stream = addStream(program, "delayed gradients");
  Operation *previous = nullptr; // of those that have moved
  for (plan::CollectiveOp sum : sums) {
    sum.setStream(stream);
    Operation *behind = lookupsBefore(sum);
    if (!behind)
      continue;
    if (previous && previous->getBlock() == sum->getBlock())
      sum->moveAfter(previous);
    else
      moveBehind(behind, sum);
    previous = sum;
  }
}

// Rows are exchanged behind that; null: there is none.
Operation *lastInFront(plan::ProcedureOp procedure) {
  Operation *last = lastOfLookups(procedure);
  for (auto op : procedure.getOps<plan::CollectiveOp>())
    if (op->hasAttr(train::kDelayedAttr) &&
        (!last || last->isBeforeInBlock(op)))
      last = op;
  return last;
}

plan::CallOp firstForward(plan::ProgramOp program) {
  for (auto call : program.getOps<plan::CallOp>())
    if (program.lookupSymbol<plan::ProcedureOp>(call.getProcedure())
            .getAction() == Action::F)
      return call;
  return {};
}

void eraseIfEmpty(plan::ProgramOp program, plan::ProcedureOp procedure) {
  if (!procedure.getBody().front().empty())
    return;
  for (auto call : llvm::make_early_inc_range(program.getOps<plan::CallOp>()))
    if (call.getProcedure() == procedure.getSymName())
      call.erase();
  procedure.erase();
}

// The update of a program, in parts that are called one after the other.
class UpdateParts {
public:
  using Instruction = plan::InstructionOpInterface;

  UpdateParts(plan::ProgramOp program, plan::ProcedureOp update)
      : program_(program), update_(update),
        transients_(transientsOf(program, update)) {
    for (auto call : program.getOps<plan::CallOp>())
      if (call.getProcedure() == update.getSymName())
        calls_.push_back(call);
  }

  void cut(ArrayRef<plan::CollectiveOp> exchanges) {
    const SmallVector<Instruction> leading = leadingTo(exchanges);
    if (calls_.size() != 1 || leading.empty())
      return;
    BufferNames arriving;
    for (plan::CollectiveOp exchange : exchanges) {
      const Touched own(exchange);
      arriving.insert_range(own.writes);
      underWay_.insert_range(own.reads);
    }
    moveToFront(leading, ".prior");
    SmallVector<Instruction> until;
    for (auto op : update_.getOps<Instruction>()) {
      const Touched own(op);
      if (llvm::any_of(arriving,
                       [&](StringAttr name) { return own.has(name); }))
        break;
      until.push_back(op);
    }
    moveToFront(until, ".delayed");
    assignBuffers();
  }

private:
  // The exchanges and all that they depend on; none if it cannot leave what
  // stands between.
  SmallVector<Instruction> leadingTo(ArrayRef<plan::CollectiveOp> exchanges) {
    SmallVector<Instruction> all(update_.getOps<Instruction>());
    llvm::SmallDenseSet<Operation *> chosen;
    BufferNames needed;
    for (Instruction op : llvm::reverse(all)) {
      const Touched own(op);
      if (!llvm::is_contained(exchanges, op) &&
          llvm::none_of(own.writes,
                        [&](StringAttr name) { return needed.contains(name); }))
        continue;
      chosen.insert(op);
      needed.insert_range(own.reads);
    }
    SmallVector<Instruction> leading;
    SmallVector<Touched> others;
    for (Instruction op : all) {
      const Touched own(op);
      if (!chosen.contains(op)) {
        others.push_back(own);
        continue;
      }
      if (llvm::any_of(others, [&](const Touched &other) {
            return other.conflicts(own);
          }))
        return {};
      leading.push_back(op);
    }
    return leading;
  }

  void moveToFront(ArrayRef<Instruction> ops, StringRef suffix) {
    if (ops.empty())
      return;
    OpBuilder builder(update_);
    auto part = plan::ProcedureOp::create(builder, update_.getLoc(),
                                          (update_.getSymName() + suffix).str(),
                                          update_.getAction());
    Block &body = part.getBody().emplaceBlock();
    for (Instruction op : ops)
      op->moveBefore(&body, body.end());
    builder.setInsertionPoint(calls_.front());
    auto call = cast<plan::CallOp>(builder.clone(*calls_.front()));
    call.setProcedure(part.getSymName());
    parts_.push_back(part);
  }

  // What several parts touch outlasts each of them, and so does what is sent
  // while the next part runs.
  void assignBuffers() {
    parts_.push_back(update_);
    for (plan::BufferOp buffer : transients_) {
      SmallVector<plan::ProcedureOp> users;
      for (plan::ProcedureOp part : parts_)
        if (llvm::any_of(part.getOps<Instruction>(), [&](Instruction op) {
              return Touched(op).has(buffer.getSymNameAttr());
            }))
          users.push_back(part);
      if (users.size() > 1 || underWay_.contains(buffer.getSymNameAttr()))
        buffer.removeProcedureAttr();
      else if (users.size() == 1)
        buffer.setProcedureAttr(
            FlatSymbolRefAttr::get(users.front().getSymNameAttr()));
    }
  }

  plan::ProgramOp program_;
  plan::ProcedureOp update_;
  SmallVector<plan::BufferOp> transients_;
  SmallVector<plan::CallOp> calls_;
  SmallVector<plan::ProcedureOp> parts_;
  BufferNames underWay_;
};

void cutUpdates(plan::ProgramOp program) {
  for (auto update : llvm::to_vector(program.getOps<plan::ProcedureOp>())) {
    if (update.getAction() != Action::U || isEntry(update.getSymName()))
      continue;
    SmallVector<plan::CollectiveOp> exchanges;
    for (auto op : update.getOps<plan::CollectiveOp>())
      if (op->hasAttr(dist::kTrimAttr))
        exchanges.push_back(op);
    if (!exchanges.empty())
      UpdateParts(program, update).cut(exchanges);
  }
}

} // namespace

void placeDelayed(plan::ProgramOp program) {
  SmallVector<plan::CollectiveOp> sums, rows;
  program.walk([&](plan::CollectiveOp op) {
    auto procedure = op->getParentOfType<plan::ProcedureOp>();
    if (op->hasAttr(train::kDelayedAttr) && !isEntry(procedure.getSymName()))
      (op.getOp() == plan::Collective::all_reduce ? sums : rows).push_back(op);
  });
  placeSums(program, sums);
  if (rows.empty())
    return;
  const uint64_t stream = addStream(program, "delayed rows");
  plan::CallOp call = firstForward(program);
  for (plan::CollectiveOp op : rows) {
    op.setStream(stream);
    if (!call)
      continue;
    auto from = op->getParentOfType<plan::ProcedureOp>();
    plan::ProcedureOp to = ownProcedure(program, call, ".first");
    if (Operation *last = lastInFront(to)) {
      moveBehind(last, op);
    } else {
      Block &body = to.getBody().front();
      op->moveBefore(&body, body.begin());
    }
    eraseIfEmpty(program, from);
  }
  cutUpdates(program);
}

} // namespace merak::lowering
