#include "passes/Lowering/Overwrites.h"
#include "passes/Lowering/Touched.h"
#include "passes/Memory/SlotPlan.h"
#include "runtime/plan/SharedPlaces.h"

#include "llvm/ADT/MapVector.h"

using namespace mlir;

namespace merak::lowering {

using plan::ViewAttr;
using Instruction = plan::InstructionOpInterface;

SmallVector<unsigned> overwritable(Instruction op, unsigned output) {
  SmallVector<unsigned> inputs;
  if (op.accumulates())
    return inputs;
  if (auto library = dyn_cast<plan::LibraryOp>(*op)) {
    if (std::optional<int> input = sharedInput(library.getOp());
        input && output == 0)
      inputs.push_back(*input);
    return inputs;
  }
  auto collective = dyn_cast<plan::CollectiveOp>(*op);
  if (collective ? collective.getOp() != plan::Collective::all_reduce
                 : !isa<plan::KernelOp>(*op) || !op->hasAttr("in_place"))
    return inputs;
  // What has an element for several of another operand's may be read again
  // after it is written.
  auto elements = [](Attribute view) {
    return cast<ViewAttr>(view).getNumElements();
  };
  const int64_t written = elements(op.getOutputs()[output]);
  if (!collective)
    for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
      for (Attribute view : views)
        if (elements(view) > written)
          return inputs;
  for (unsigned input = 0; input < op.getInputs().size(); ++input)
    inputs.push_back(input);
  return inputs;
}

namespace {

StringAttr nameOf(ViewAttr view) { return view.getBuffer().getAttr(); }

class KeptWriter {
public:
  explicit KeptWriter(plan::ProgramOp program) : program_(program) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
    for (auto output : program.getOps<plan::OutputOp>())
      results_.insert(output.getBufferAttr().getAttr());
    for (auto procedure : program.getOps<plan::ProcedureOp>())
      for (auto op : procedure.getOps<Instruction>())
        forUses(op, [&](StringAttr name) { note(name, op); });
  }

  int64_t run() {
    int64_t saved = 0;
    for (auto procedure : program_.getOps<plan::ProcedureOp>())
      if (procedure.getAction() == Action::B)
        for (auto op : procedure.getOps<Instruction>())
          for (unsigned o = 0;
               mayOverwriteKept(op) && o < op.getOutputs().size(); ++o)
            for (unsigned i : overwritable(op, o))
              if (tryMerge(procedure, op, i, o)) {
                ++saved;
                break;
              }
    return saved;
  }

private:
  // Instructions that touch a buffer; those of a procedure in its order.
  using Users = SmallVector<Instruction>;

  template <typename Visit> static void forUses(Instruction op, Visit visit) {
    forBuffers(op.getInputs(), visit);
    forBuffers(op.getOutputs(), visit);
  }
  void note(StringAttr name, Instruction op) {
    Users &of = users_[name];
    if (of.empty() || of.back() != op)
      of.push_back(op);
  }

  static bool mayOverwriteKept(Instruction op) {
    return isa<plan::LibraryOp>(*op) || op->hasAttr(kOverKeptAttr);
  }
  static Action actionOf(Instruction op) {
    return op->getParentOfType<plan::ProcedureOp>().getAction();
  }
  // Transfers and collectives run beside the computation.
  static bool isComputed(Instruction op) {
    return isa<plan::KernelOp, plan::LibraryOp>(*op);
  }

  bool haveOneLayout(ViewAttr a, plan::BufferOp in, ViewAttr b,
                     plan::BufferOp out) {
    auto elementOf = [](plan::BufferOp buffer) {
      return cast<RankedTensorType>(buffer.getType()).getElementType();
    };
    if (a.getShape() != b.getShape() || elementOf(in) != elementOf(out))
      return false;
    return (isWhole(a, in) && isWhole(b, out)) ||
           (in.getType() == out.getType() && a.getOffset() == b.getOffset() &&
            a.getStrides() == b.getStrides());
  }

  bool tryMerge(plan::ProcedureOp procedure, Instruction op, unsigned i,
                unsigned o) {
    auto input = cast<ViewAttr>(op.getInputs()[i]),
         output = cast<ViewAttr>(op.getOutputs()[o]);
    plan::BufferOp in = buffers_.lookup(nameOf(input)),
                   out = buffers_.lookup(nameOf(output));
    if (in == out || !isKept(in) || !(out.isTransient() || isKept(out)) ||
        out.getTensor() || !haveOneLayout(input, in, output, out))
      return false;
    int64_t reads = 0;
    forUses(op, [&](StringAttr name) { reads += name == in.getSymNameAttr(); });
    if (reads != 1)
      return false;
    // Made by earlier actions, read here for the last time.
    for (Instruction user : users_[in.getSymNameAttr()]) {
      const Action action = actionOf(user);
      const bool before = user->getBlock() == op->getBlock()
                              ? user == op || user->isBeforeInBlock(op)
                              : action == Action::F || action == Action::R;
      if (!before || !isComputed(user))
        return false;
    }
    // Made here, read by later actions.
    for (Instruction user : users_[out.getSymNameAttr()]) {
      const bool behind = user->getBlock() == op->getBlock()
                              ? user == op || op->isBeforeInBlock(user)
                              : actionOf(user) == Action::W;
      if (!behind || !isComputed(user))
        return false;
    }
    setSlots(in, out);
    rename(out, in);
    return true;
  }

  // A value of one microbatch that actions leave to others.
  bool isKept(plan::BufferOp buffer) {
    return !buffer.isTransient() && !buffer.getTensor() &&
           buffer.getCategory() == plan::Category::activations &&
           !results_.contains(buffer.getSymNameAttr());
  }

  void setSlots(plan::BufferOp in, plan::BufferOp out) {
    if (out.isTransient())
      return; // lives as long as before
    llvm::DenseSet<StringAttr> touching;
    for (plan::BufferOp buffer : {in, out})
      for (Instruction user : users_[buffer.getSymNameAttr()])
        touching.insert(
            user->getParentOfType<plan::ProcedureOp>().getSymNameAttr());
    // Calls as a schedule in which the value lives in forward actions.
    std::vector<Step> steps;
    size_t classes = 0;
    for (auto call : program_.getOps<plan::CallOp>()) {
      const auto microbatch = static_cast<int64_t>(call.getMicrobatch());
      const bool touches = microbatch >= 0 &&
                           touching.contains(call.getProcedureAttr().getAttr());
      steps.push_back({touches ? Action::F : Action::W,
                       static_cast<int>(std::max<int64_t>(0, microbatch))});
      classes = std::max(classes, call.getSlots().size());
    }
    memory::SlotPlan slots = memory::planSlots(steps, {ActionId{Action::F, 0}});
    if (slots.slots == int64_t(in.getSlots()) && slots.slots == 1)
      return; // all microbatches have the first one
    for (auto call : program_.getOps<plan::CallOp>()) {
      SmallVector<int64_t> of(call.getSlots());
      of.resize(classes, 0);
      const auto microbatch = static_cast<int64_t>(call.getMicrobatch());
      const bool has = microbatch >= 0 &&
                       microbatch < static_cast<int64_t>(slots.slotOf.size());
      of.push_back(has ? slots.slotOf[size_t(microbatch)] : 0);
      call.setSlots(of);
    }
    in.setSlots(slots.slots);
    in.setSlotClass(static_cast<int64_t>(classes));
  }

  void rename(plan::BufferOp out, plan::BufferOp in) {
    const StringAttr from = out.getSymNameAttr(), to = in.getSymNameAttr();
    auto renamed = [&](ArrayAttr views) {
      SmallVector<Attribute> list;
      for (Attribute attr : views) {
        auto view = cast<ViewAttr>(attr);
        list.push_back(nameOf(view) == from ? viewOf(to, view) : view);
      }
      return ArrayAttr::get(views.getContext(), list);
    };
    for (Instruction user : users_[from]) {
      user.setInputsAttr(renamed(user.getInputs()));
      user.setOutputsAttr(renamed(user.getOutputs()));
      note(to, user);
    }
    users_.erase(from);
    buffers_.erase(from);
    out.erase();
  }

  plan::ProgramOp program_;
  llvm::DenseMap<StringAttr, plan::BufferOp> buffers_;
  llvm::DenseMap<StringAttr, Users> users_;
  llvm::DenseSet<StringAttr> results_; // read after the step
};

} // namespace

int64_t writeOverKept(plan::ProgramOp program) {
  return KeptWriter(program).run();
}

} // namespace merak::lowering
