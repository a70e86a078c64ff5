#include "passes/Lowering/ReplayedTables.h"

#include "dialects/Train/TrainDialect.h"
#include "passes/Lowering/LibraryCalls.h"
#include "passes/Planning/ReplayedTables.h"

using namespace mlir;

namespace merak::lowering {

RankedTensorType reachedType(RankedTensorType table) {
  return RankedTensorType::get({table.getDimSize(0)},
                               IntegerType::get(table.getContext(), 32));
}

RankedTensorType historyType(MLIRContext *context) {
  return RankedTensorType::get({planning::kReplaySteps, kReplayNumbers},
                               Float32Type::get(context));
}

bool isOnlyLookedUp(pipe::StageOp stage, StringRef parameter) {
  for (auto action : stage.getOps<pipe::ActionOp>())
    for (auto load : action.getOps<pipe::LoadOp>()) {
      if (load.getValue() != parameter)
        continue;
      for (OpOperand &use : load.getResult().getUses()) {
        auto lookup = dyn_cast<train::GatherOp>(use.getOwner());
        if (!lookup || lookup.getTable() != load.getResult() ||
            lookup.getIds() == load.getResult() || lookup.getAxis() != 0 ||
            lookup.getBatch() != 0)
          return false;
      }
    }
  return true;
}

View wholeOf(plan::BufferOp buffer) {
  return View::dense(buffer.getSymNameAttr(),
                     cast<RankedTensorType>(buffer.getType()).getShape());
}

static NamedAttribute text(OpBuilder &builder, StringRef name,
                           const Twine &value) {
  return builder.getNamedAttr(name, builder.getStringAttr(value));
}

plan::LibraryOp createReplay(OpBuilder &builder, Location location,
                             const ReplayedTable &table, ArrayRef<View> tensors,
                             const ReplayedRows &rows) {
  pipe::UpdateOp update = table.update;
  const Optimizer &optimizer = update.getOptimizer().getValue();
  SmallVector<NamedAttribute> attrs;
  for (const auto &[name, value] : optimizer.constants())
    attrs.push_back(text(builder, name, value));
  SmallVector<Attribute> scalars{namedScalar(builder.getContext(), "step")};
  auto attrOf = [](const View &view) -> Attribute { return view.toAttr(); };
  SmallVector<Attribute> inputs{attrOf(wholeOf(table.history))};
  if (rows.ids) {
    inputs.push_back(attrOf(*rows.ids));
    scalars.push_back(rows.firstRow);
    if (rows.globalRows)
      attrs.push_back(text(builder, "rows_global", Twine(*rows.globalRows)));
  } else {
    attrs.push_back(text(builder, "stripes", Twine(rows.stripes)));
  }
  SmallVector<Attribute> outputs = llvm::map_to_vector(tensors, attrOf);
  outputs.push_back(attrOf(wholeOf(table.reached)));
  return plan::LibraryOp::create(
      builder, location, builder.getStringAttr(optimizer.replayKernel()),
      builder.getDictionaryAttr(attrs), builder.getArrayAttr(scalars),
      UnitAttr(), builder.getArrayAttr(inputs), builder.getArrayAttr(outputs),
      builder.getI64IntegerAttr(0), builder.getF64FloatAttr(0),
      builder.getF64FloatAttr(0));
}

void addReached(OpBuilder &builder, const ReplayedTable &table,
                SmallVectorImpl<View> &outputs,
                SmallVectorImpl<NamedAttribute> &attrs) {
  outputs.push_back(wholeOf(table.reached));
  outputs.push_back(wholeOf(table.history));
  attrs.push_back(text(builder, "reaches", "1"));
}

} // namespace merak::lowering
