#include "passes/Lowering/DelayedExchanges.h"

#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/CopyProcedure.h"
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
    if (isa<plan::CollectiveOp>(op))
      last = &op;
  }
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

} // namespace

void placeDelayed(plan::ProgramOp program) {
  SmallVector<plan::CollectiveOp> delayed;
  program.walk([&](plan::CollectiveOp op) {
    auto procedure = op->getParentOfType<plan::ProcedureOp>();
    if (op->hasAttr(train::kDelayedAttr) && !isEntry(procedure.getSymName()))
      delayed.push_back(op);
  });
  if (delayed.empty())
    return;
  SmallVector<Attribute> streams(program.getStreams().getValue());
  streams.push_back(StringAttr::get(program.getContext(), "delayed rows"));
  program.setStreamsAttr(ArrayAttr::get(program.getContext(), streams));
  plan::CallOp call = firstForward(program);
  for (plan::CollectiveOp op : delayed) {
    op.setStream(streams.size() - 1);
    if (!call)
      continue;
    auto from = op->getParentOfType<plan::ProcedureOp>();
    plan::ProcedureOp to = ownProcedure(program, call, ".first");
    if (Operation *last = lastOfLookups(to)) {
      op->moveAfter(last);
      op->setAttr(plan::kAfterPreviousAttr,
                  UnitAttr::get(program.getContext()));
    } else {
      Block &body = to.getBody().front();
      op->moveBefore(&body, body.begin());
    }
    eraseIfEmpty(program, from);
  }
}

} // namespace merak::lowering
