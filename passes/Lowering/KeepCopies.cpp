// What action G converts of parameters for the microbatches of a step
// (train.cast to 16 bits) is what it was in the step before, but for what the
// update changed. So it stays in memory from step to step, and the update,
// which has the parameter in registers, writes it: a quarter of the bytes, and
// no kernel of its own. docs/rationale/kept-copies.md.
#include "dialects/Dist/DistDialect.h"
#include "dialects/Pipe/Copies.h"
#include "dialects/Pipe/PipeDialect.h"
#include "dialects/Train/SparseAttributes.h"
#include "passes/Lowering/Passes.h"
#include "passes/Lowering/Pitch.h"

#include "llvm/ADT/StringMap.h"

using namespace mlir;

namespace merak {

#define GEN_PASS_DEF_KEEPCOPIES
#include "passes/Lowering/Passes.h.inc"

namespace {

using pipe::ValueKind;

class CopyKeeper {
public:
  CopyKeeper(pipe::StageOp stage, bool isForGpu)
      : stage_(stage), isForGpu_(isForGpu) {
    for (auto value : stage.getOps<pipe::ValueOp>())
      values_[value.getSymName()] = value;
    for (auto action : stage.getOps<pipe::ActionOp>()) {
      for (auto store : action.getOps<pipe::StoreOp>())
        ++stores_[store.getValue()];
      for (auto update : action.getOps<pipe::UpdateOp>())
        updates_[update.getParameter()].push_back(update);
    }
  }

  // How many copies are kept.
  int64_t run() {
    int64_t kept = 0;
    for (auto action :
         llvm::make_early_inc_range(stage_.getOps<pipe::ActionOp>())) {
      if (action.getKind() != pipe::Action::G)
        continue;
      for (auto store :
           llvm::make_early_inc_range(action.getOps<pipe::StoreOp>()))
        kept += keep(store);
      if (action.getBody().front().empty())
        action.erase();
    }
    return kept;
  }

private:
  bool keep(pipe::StoreOp store) {
    auto cast = store.getOperand().getDefiningOp<train::CastOp>();
    auto load = cast ? cast.getX().getDefiningOp<pipe::LoadOp>() : nullptr;
    pipe::ValueOp copy = values_.lookup(store.getValue());
    pipe::ValueOp of = load ? values_.lookup(load.getValue()) : nullptr;
    if (!of || !mayKeep(store, copy, of))
      return false;
    if (of.getKind() == ValueKind::parameter) {
      pipe::UpdateOp update = onlyUpdate(of.getSymName());
      if (!update)
        return false;
      update->setAttr(pipe::kCopyAttr,
                      FlatSymbolRefAttr::get(copy.getSymNameAttr()));
    }
    copy->setAttr(pipe::kCopyOfAttr,
                  FlatSymbolRefAttr::get(of.getSymNameAttr()));
    store.erase();
    if (cast->use_empty())
      cast.erase();
    if (load->use_empty())
      load.erase();
    return true;
  }

  // Rows of a longer pitch, which some products want, no update writes.
  bool mayKeep(pipe::StoreOp store, pipe::ValueOp copy, pipe::ValueOp of) {
    auto from = mlir::cast<RankedTensorType>(of.getType()),
         to = mlir::cast<RankedTensorType>(copy.getType());
    return copy.getKind() == ValueKind::step && !store.getAccumulate() &&
           stores_.lookup(copy.getSymName()) == 1 &&
           (of.getKind() == ValueKind::parameter ||
            of.getKind() == ValueKind::constant) &&
           stores_.lookup(of.getSymName()) == 0 &&
           from.getElementType().isF32() &&
           isa<BFloat16Type, Float16Type>(to.getElementType()) &&
           from.getShape() == to.getShape() &&
           !(isForGpu_ && lowering::wantsPitch(stage_, copy));
  }

  // Of all of the parameter, at the end of the step itself, and with no other
  // copy to write; null: there is none such.
  pipe::UpdateOp onlyUpdate(StringRef parameter) {
    const SmallVector<pipe::UpdateOp> &all = updates_[parameter];
    if (all.size() != 1)
      return nullptr;
    pipe::UpdateOp update = all.front();
    return update.getIds() || update->hasAttr(train::kDelayedAttr) ||
                   update->hasAttr(pipe::kCopyAttr)
               ? nullptr
               : update;
  }

  pipe::StageOp stage_;
  const bool isForGpu_;
  llvm::StringMap<pipe::ValueOp> values_;
  llvm::StringMap<int64_t> stores_;
  llvm::StringMap<SmallVector<pipe::UpdateOp>> updates_;
};

struct KeepCopiesPass : impl::KeepCopiesBase<KeepCopiesPass> {
  void runOnOperation() override {
    const bool isForGpu = dist::ClusterAttr::of(getOperation()).isCuda();
    for (auto stage : getOperation().getOps<pipe::StageOp>())
      copies += CopyKeeper(stage, isForGpu).run();
  }
};

} // namespace
} // namespace merak
