// Sums over microbatches that are cleared, then added to, twice over all their
// bytes for nothing: what adds to a sum first writes it instead. A call of the
// first microbatch gets a procedure of its own for that, where it pays.
#include "passes/Lowering/CopyProcedure.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"
#include "runtime/layout/Strides.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_WRITESUMS
#include "passes/Lowering/Passes.h.inc"

namespace {

using plan::ViewAttr;
using Instruction = plan::InstructionOpInterface;

// A copy of a procedure that writes a smaller part of the bytes of all sums is
// not worth its instructions: the loss of a forward pass stays cleared.
constexpr double kWorthACopy = 0.01;

class SumWriter {
public:
  explicit SumWriter(plan::ProgramOp program) : program_(program) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
    for (auto call : program.getOps<plan::CallOp>())
      ++calls_[call.getProcedureAttr().getAttr()];
  }

  // How many sums are written.
  int64_t run() {
    for (auto call : program_.getOps<plan::CallOp>())
      for (auto [index, op] :
           llvm::enumerate(procedureOf(call).getOps<Instruction>()))
        visit(call, op, static_cast<int64_t>(index));
    int64_t written = 0;
    for (auto &[call, first] : first_)
      if (calls_.lookup(call.getProcedureAttr().getAttr()) == 1 ||
          first.bytes >= kWorthACopy * bytes_) {
        write(call, first);
        written += static_cast<int64_t>(first.fills.size());
      }
    for (auto call :
         llvm::make_early_inc_range(program_.getOps<plan::CallOp>())) {
      plan::ProcedureOp procedure = procedureOf(call);
      if (written > 0 && cleared_.contains(procedure) &&
          procedure.getBody().front().empty()) {
        call.erase();
        procedure.erase();
      }
    }
    return written;
  }

private:
  // What a call adds to sums first.
  struct First {
    SmallVector<int64_t> writers; // instructions, by their place
    SmallVector<plan::LibraryOp> fills;
    double bytes = 0;
  };

  void write(plan::CallOp call, const First &first) {
    plan::ProcedureOp own = lowering::ownProcedure(program_, call, ".first");
    SmallVector<Instruction> ops(own.getOps<Instruction>());
    for (int64_t writer : first.writers)
      cast<plan::LibraryOp>(*ops[writer]).removeAccumulateAttr();
    for (plan::LibraryOp fill : first.fills)
      fill.erase();
  }

  plan::ProcedureOp procedureOf(plan::CallOp call) {
    return program_.lookupSymbol<plan::ProcedureOp>(call.getProcedure());
  }

  // Sets a buffer of the step to zero, once.
  bool clears(plan::CallOp call, plan::LibraryOp fill) {
    if (fill.getOp() != "fill" || fill.getAccumulate() ||
        fill.getOutputs().size() != 1 || fill.getScalars().size() != 1 ||
        calls_.lookup(call.getProcedureAttr().getAttr()) != 1)
      return false;
    auto scalar = cast<plan::ScalarAttr>(fill.getScalars()[0]);
    auto real = dyn_cast<FloatAttr>(scalar.getValue());
    auto view = cast<ViewAttr>(fill.getOutputs()[0]);
    plan::BufferOp buffer = buffers_.lookup(view.getBuffer().getAttr());
    return real && real.getValue().isZero() &&
           lowering::isWhole(view,
                             buffers_.lookup(view.getBuffer().getAttr())) &&
           !buffer.isTransient() && buffer.getSlots() == 1;
  }

  double bytesOf(plan::LibraryOp fill) {
    auto view = cast<ViewAttr>(fill.getOutputs()[0]);
    return static_cast<double>(
        buffers_.lookup(view.getBuffer().getAttr()).getBytes());
  }

  // Notes sums that are clear, and an op that is the first to add to all that
  // it adds to.
  void visit(plan::CallOp call, Instruction op, int64_t index) {
    auto library = dyn_cast<plan::LibraryOp>(*op);
    if (library && clears(call, library)) {
      const StringAttr name =
          cast<ViewAttr>(library.getOutputs()[0]).getBuffer().getAttr();
      clear_[name] = library;
      cleared_.insert(procedureOf(call));
      bytes_ += bytesOf(library);
      return;
    }
    lowering::BufferNames read;
    lowering::forBuffers(op.getInputs(),
                         [&](StringAttr name) { read.insert(name); });
    bool writes = library && library.getAccumulate();
    SmallVector<plan::LibraryOp> fills;
    lowering::BufferNames sums;
    for (Attribute output : op.getOutputs()) {
      auto view = cast<ViewAttr>(output);
      const StringAttr name = view.getBuffer().getAttr();
      plan::LibraryOp fill = clear_.lookup(name);
      writes &= fill &&
                lowering::isWhole(
                    view, buffers_.lookup(view.getBuffer().getAttr())) &&
                !read.contains(name) && sums.insert(name).second;
      fills.push_back(fill);
    }
    for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
      lowering::forBuffers(views, [&](StringAttr name) { clear_.erase(name); });
    if (!writes)
      return;
    First &first = first_[call];
    first.writers.push_back(index);
    first.fills.append(fills);
    for (plan::LibraryOp fill : fills)
      first.bytes += bytesOf(fill);
  }

  plan::ProgramOp program_;
  llvm::DenseMap<StringAttr, plan::BufferOp> buffers_;
  llvm::DenseMap<StringAttr, int64_t> calls_;         // by procedure
  llvm::DenseMap<StringAttr, plan::LibraryOp> clear_; // fills, by sum
  llvm::SmallPtrSet<Operation *, 2> cleared_;         // procedures of fills
  double bytes_ = 0;                                  // of all sums cleared
  llvm::MapVector<plan::CallOp, First> first_;
};

struct WriteSumsPass : impl::WriteSumsBase<WriteSumsPass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<plan::ProgramOp>())
      sums += SumWriter(program).run();
  }
};

} // namespace
} // namespace merak
