#include "passes/Lowering/Passes.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_VERIFYPLAN
#include "passes/Lowering/Passes.h.inc"

namespace {

// Everything that is local to one program; all offenders are reported.
class ProgramVerifier {
public:
  explicit ProgramVerifier(plan::ProgramOp program) : program_(program) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
  }

  bool run() {
    for (auto procedure : program_.getOps<plan::ProcedureOp>()) {
      recorded_.clear();
      for (auto op : procedure.getOps<plan::InstructionOpInterface>())
        verifyInstruction(procedure, op);
    }
    int64_t index = 0;
    for (auto call : program_.getOps<plan::CallOp>())
      verifyCall(call, index++);
    for (auto output : program_.getOps<plan::OutputOp>())
      if (!buffers_.contains(output.getBufferAttr().getAttr()))
        fail(output) << "names the buffer " << output.getBufferAttr()
                     << ", which does not exist";
    return ok_;
  }

private:
  InFlightDiagnostic fail(Operation *op) {
    ok_ = false;
    return op->emitOpError();
  }

  void verifyInstruction(plan::ProcedureOp procedure,
                         plan::InstructionOpInterface instruction) {
    Operation *op = instruction;
    if (instruction.getStream() >= program_.getStreams().size())
      fail(op) << "runs on stream " << instruction.getStream() << " of "
               << program_.getStreams().size();
    for (ArrayAttr views : {instruction.getInputs(), instruction.getOutputs()})
      for (Attribute view : views)
        verifyView(procedure, op, cast<plan::ViewAttr>(view));
    if (auto collective = dyn_cast<plan::CollectiveOp>(op)) {
      if (collective.getGroup() >= program_.getGroups().size())
        fail(op) << "is over group " << collective.getGroup() << " of "
                 << program_.getGroups().size();
    } else if (auto kernel = dyn_cast<plan::KernelOp>(op)) {
      Operation *function = symbols_.lookupNearestSymbolFrom(
          program_->getParentOp(), kernel.getKernelAttr());
      if (!function || !function->hasAttr(plan::kKernelAttr))
        fail(op) << "names " << kernel.getKernelAttr()
                 << ", which is no kernel";
    } else if (auto record = dyn_cast<plan::RecordOp>(op)) {
      verifyEvent(op, record.getEvent());
      if (!recorded_.insert(record.getEvent()).second)
        fail(op) << "records event " << record.getEvent() << " again";
    } else if (auto wait = dyn_cast<plan::WaitOp>(op)) {
      verifyEvent(op, wait.getEvent());
      if (!recorded_.contains(wait.getEvent()))
        fail(op) << "waits for event " << wait.getEvent()
                 << ", which nothing before it records";
    }
  }

  void verifyEvent(Operation *op, uint64_t event) {
    if (event >= program_.getEvents())
      fail(op) << "uses event " << event << " of " << program_.getEvents();
  }

  void verifyView(plan::ProcedureOp procedure, Operation *op,
                  plan::ViewAttr view) {
    plan::BufferOp buffer = buffers_.lookup(view.getBuffer().getAttr());
    if (!buffer) {
      fail(op) << "names the buffer " << view.getBuffer()
               << ", which does not exist";
      return;
    }
    if (buffer.isTransient() &&
        buffer.getProcedureAttr().getAttr() != procedure.getSymNameAttr())
      fail(op) << "uses '" << buffer.getSymName()
               << "', which lives in another procedure";
    int64_t last = view.getOffset();
    bool negative = view.getOffset() < 0;
    for (auto [extent, stride] :
         llvm::zip(view.getShape(), view.getStrides())) {
      last += (extent - 1) * stride;
      negative |= stride < 0 || extent < 0;
    }
    int64_t elements =
        cast<RankedTensorType>(buffer.getType()).getNumElements();
    if (negative || (view.getNumElements() && last >= elements))
      fail(op) << "reaches element " << last << " of '" << buffer.getSymName()
               << "', which has " << elements;
  }

  void verifyCall(plan::CallOp call, int64_t index) {
    if (!symbols_.lookupSymbolIn<plan::ProcedureOp>(
            program_, call.getProcedureAttr().getAttr()))
      fail(call) << "names the procedure " << call.getProcedureAttr()
                 << ", which does not exist";
    for (size_t i = 0; i + 2 < call.getWaits().size(); i += 3) {
      auto waits = call.getWaits();
      int64_t streams = static_cast<int64_t>(program_.getStreams().size());
      if (waits[i] >= streams || waits[i + 1] >= streams)
        fail(call) << "lets stream " << waits[i] << " wait on stream "
                   << waits[i + 1] << " of " << streams;
      if (waits[i + 2] >= index)
        fail(call) << "number " << index << " waits for call " << waits[i + 2]
                   << ", which does not come before it";
    }
  }

  plan::ProgramOp program_;
  SymbolTableCollection symbols_;
  llvm::DenseMap<StringAttr, plan::BufferOp> buffers_;
  llvm::DenseSet<uint64_t> recorded_;
  bool ok_ = true;
};

struct VerifyPlanPass : impl::VerifyPlanBase<VerifyPlanPass> {
  void runOnOperation() override {
    bool ok = true;
    for (auto program : getOperation().getOps<plan::ProgramOp>())
      ok &= ProgramVerifier(program).run();
    if (!ok)
      signalPassFailure();
  }
};

} // namespace
} // namespace merak
