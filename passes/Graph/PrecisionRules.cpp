#include "passes/Graph/PrecisionRules.h"

#include "dialects/Train/TrainDialect.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace merak;
using namespace merak::train;

PrecisionKind merak::precisionKindOf(Operation *op) {
  return op->hasTrait<LowPrecision>()       ? PrecisionKind::Low
         : op->hasTrait<FollowsPrecision>() ? PrecisionKind::Follow
         : op->hasTrait<AnyPrecision>()     ? PrecisionKind::Any
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
