#include "passes/Graph/PrecisionRules.h"

#include "dialects/Train/TrainDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

PrecisionKind merak::precisionKindOf(Operation *op) {
  if (isa<EinsumOp, ConvOp, AttentionOp, GatherOp>(op))
    return PrecisionKind::Low;
  if (isa<StopGradientOp, NegOp, AbsOp, TanhOp, ErfOp, SigmoidOp, ReluOp,
          GeluOp, AddOp, SubOp, MulOp, DivOp, MaxOp, MinOp, CompareOp, SelectOp,
          DropoutOp, ReshapeOp, TransposeOp, ExpandOp, SliceOp, PadOp, ConcatOp,
          LayerNormOp, RmsNormOp, RotaryOp, MaxPoolOp, AvgPoolOp>(op))
    return PrecisionKind::Follow;
  return isa<SoftmaxCrossEntropyOp>(op) ? PrecisionKind::Any
                                        : PrecisionKind::Full;
}

bool merak::keepsPrecision(OpOperand &operand) {
  unsigned first =
      llvm::TypeSwitch<Operation *, unsigned>(operand.getOwner())
          .Case<LayerNormOp, RmsNormOp, RotaryOp>([](Operation *) { return 1; })
          .Case([](AttentionOp) { return 3; })
          .Case([](GatherOp) { return 0; })
          .Default([](Operation *) { return ~0u; });
  return operand.getOperandNumber() >= first;
}

bool merak::lacksDouble(Operation *op) {
  return isa<ConvOp, ConvGradInputOp, AttentionOp, LayerNormOp, RmsNormOp,
             RotaryOp, SoftmaxOp, SoftmaxCrossEntropyOp, PickOp, DropoutOp,
             MaxPoolOp, MaxPoolGradOp, AvgPoolOp, AvgPoolGradOp>(op);
}
