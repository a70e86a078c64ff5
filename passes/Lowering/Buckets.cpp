#include "passes/Lowering/Buckets.h"

#include "dialects/Support/RanksAxis.h"

using namespace mlir;

namespace merak::lowering {

int64_t messageBytes(plan::CollectiveOp op, const Buffers &buffers) {
  auto bytes = [&](ArrayAttr views) {
    int64_t sum = 0;
    for (Attribute view : views)
      sum += cast<plan::ViewAttr>(view).getNumElements() *
             plan::elementBytes(typeOf(view, buffers).getElementType());
    return sum;
  };
  return std::max(bytes(op.getInputs()), bytes(op.getOutputs()));
}

bool isOverStages(plan::ProgramOp program, plan::CollectiveOp op) {
  return llvm::any_of(
      cast<ArrayAttr>(program.getGroups()[op.getGroup()]), [](Attribute axis) {
        return isAcrossStages(cast<StringAttr>(axis).getValue());
      });
}

StringRef holdersOf(plan::ProgramOp program, plan::CollectiveOp op) {
  for (StringRef axis : cast<ArrayAttr>(program.getGroups()[op.getGroup()])
                            .getAsValueRange<StringAttr>())
    if (isOfHolders(axis))
      return axis;
  return {};
}

bool isAccumulator(plan::BufferOp buffer) {
  return !buffer.isTransient() && buffer.getSlots() == 1 &&
         buffer.getCategory() == plan::Category::gradients;
}

SmallVector<size_t> additionsOf(ArrayRef<plan::InstructionOpInterface> ops,
                                size_t at, const Buffers &buffers) {
  SmallVector<size_t> additions;
  plan::InstructionOpInterface of = ops[at];
  const Touched made(of);
  for (size_t i = at + 1; i < ops.size(); ++i) {
    plan::InstructionOpInterface op = ops[i];
    const Touched own(op);
    if (llvm::none_of(made.writes, [&](StringAttr n) { return own.has(n); }))
      continue;
    auto copy = dyn_cast<plan::LibraryOp>(*op);
    if (!copy || copy.getOp() != "copy" || own.writes.size() != 1 ||
        !isAccumulator(buffers.lookup(*own.writes.begin())))
      return {};
    additions.push_back(i);
  }
  return additions;
}

int64_t notedBucket(ModuleOp module) {
  auto decision =
      module->getAttrOfType<pipe::DecisionAttr>(pipe::kDecisionAttr);
  return decision ? decision.getGradientBucket() : 0;
}

} // namespace merak::lowering
