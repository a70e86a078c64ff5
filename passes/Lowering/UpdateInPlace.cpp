#include "passes/Lowering/Overwrites.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Touched.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_UPDATEINPLACE
#include "passes/Lowering/Passes.h.inc"

namespace {

using plan::ViewAttr;

// Works on one procedure; `Use` of a buffer counts instructions.
class InPlace {
public:
  InPlace(plan::ProgramOp program, plan::ProcedureOp procedure)
      : procedure_(procedure) {
    for (auto buffer : program.getOps<plan::BufferOp>())
      buffers_[buffer.getSymNameAttr()] = buffer;
    for (auto other : program.getOps<plan::ProcedureOp>())
      if (other != procedure)
        for (auto op : other.getOps<plan::InstructionOpInterface>())
          forViews(op, [&](ViewAttr view) {
            elsewhere_.insert(view.getBuffer().getAttr());
          });
  }

  int64_t run() {
    int64_t position = 0;
    for (auto op : procedure_.getOps<plan::InstructionOpInterface>()) {
      forViews(op, [&](ViewAttr view) {
        auto [it, fresh] =
            uses_.try_emplace(view.getBuffer().getAttr(), position, position);
        it->second.second = position;
      });
      ++position;
    }
    position = 0;
    for (auto op : procedure_.getOps<plan::InstructionOpInterface>()) {
      op.setInputsAttr(renamed(op.getInputs()));
      op.setOutputsAttr(renamed(op.getOutputs()));
      tryMerge(op, position);
      ++position;
    }
    for (plan::BufferOp buffer : dead_)
      buffer.erase();
    return static_cast<int64_t>(dead_.size());
  }

private:
  template <typename Visit>
  static void forViews(plan::InstructionOpInterface op, Visit visit) {
    for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
      for (Attribute view : views)
        visit(cast<ViewAttr>(view));
  }

  ArrayAttr renamed(ArrayAttr views) {
    SmallVector<Attribute> list;
    bool changed = false;
    for (Attribute attr : views) {
      auto view = cast<ViewAttr>(attr);
      if (auto it = name_.find(view.getBuffer().getAttr()); it != name_.end()) {
        view = lowering::viewOf(it->second, view);
        changed = true;
      }
      list.push_back(view);
    }
    return changed ? ArrayAttr::get(views.getContext(), list) : views;
  }

  void tryMerge(plan::InstructionOpInterface op, int64_t position) {
    llvm::SmallDenseSet<StringAttr> taken;
    for (unsigned o = 0; o < op.getOutputs().size(); ++o) {
      auto output = cast<ViewAttr>(op.getOutputs()[o]);
      StringAttr outName = output.getBuffer().getAttr();
      plan::BufferOp out = buffers_.lookup(outName);
      // The output begins its life here, as a buffer that nobody shares.
      bool named = out.getCategory() == plan::Category::gradients &&
                   out.getTensor() && !out.isTransient() &&
                   !elsewhere_.contains(outName);
      if (!(out.isTransient() || named) || !lowering::isWhole(output, out) ||
          uses_.lookup(outName).first != position)
        continue;
      for (unsigned i : lowering::overwritable(op, o)) {
        auto input = cast<ViewAttr>(op.getInputs()[i]);
        StringAttr inName = input.getBuffer().getAttr();
        plan::BufferOp in = buffers_.lookup(inName);
        bool accumulator = in.getCategory() == plan::Category::gradients &&
                           !in.getTensor() && !in.isTransient() &&
                           procedure_.getAction() == Action::U;
        if (!(in.isTransient() || accumulator) || in.getTensor() ||
            !lowering::isWhole(input, in) ||
            input.getShape() != output.getShape() ||
            uses_.lookup(inName).second != position ||
            cast<RankedTensorType>(in.getType()).getElementType() !=
                cast<RankedTensorType>(out.getType()).getElementType() ||
            countIn(op, inName) != 1 || !taken.insert(inName).second)
          continue;
        merge(op, out, in);
        break;
      }
    }
  }

  static int64_t countIn(plan::InstructionOpInterface op, StringAttr name) {
    int64_t count = 0;
    forViews(op, [&](ViewAttr view) {
      count += view.getBuffer().getAttr() == name;
    });
    return count;
  }

  void merge(plan::InstructionOpInterface op, plan::BufferOp out,
             plan::BufferOp in) {
    StringAttr outName = out.getSymNameAttr(), inName = in.getSymNameAttr();
    name_[outName] = inName;
    uses_[inName].second = uses_.lookup(outName).second;
    if (!out.isTransient()) { // the gradient of a parameter
      in.removeProcedureAttr();
      in.setCategory(out.getCategory());
      in.setTypeAttr(out.getTypeAttr()); // [1, n] may stand for [n]
      in.setTensorAttr(out.getTensorAttr());
      in.setLayoutAttr(out.getLayoutAttr());
    }
    op.setOutputsAttr(renamed(op.getOutputs()));
    dead_.push_back(out);
  }

  plan::ProcedureOp procedure_;
  llvm::DenseMap<StringAttr, plan::BufferOp> buffers_;
  // First and last instruction that touches a buffer.
  llvm::DenseMap<StringAttr, std::pair<int64_t, int64_t>> uses_;
  llvm::DenseMap<StringAttr, StringAttr> name_;
  llvm::DenseSet<StringAttr> elsewhere_; // used by other procedures
  SmallVector<plan::BufferOp> dead_;
};

struct UpdateInPlacePass : impl::UpdateInPlaceBase<UpdateInPlacePass> {
  void runOnOperation() override {
    for (auto program : getOperation().getOps<plan::ProgramOp>()) {
      for (auto procedure : program.getOps<plan::ProcedureOp>())
        buffersSaved += InPlace(program, procedure).run();
      buffersSaved += lowering::writeOverKept(program);
    }
  }
};

} // namespace
} // namespace merak
