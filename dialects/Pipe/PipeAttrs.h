// Attributes of the pipe dialect: actions and schedules.
#pragma once

#include "runtime/plan/Actions.h"

#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/Hashing.h"

namespace merak {
// How attributes that hold steps are made unique.
inline llvm::hash_code hash_value(const Step &step) {
  return llvm::hash_combine(step.action, step.microbatch, step.chunk,
                            step.early);
}
} // namespace merak

#define GET_ATTRDEF_CLASSES
#include "dialects/Pipe/PipeAttrs.h.inc"

namespace merak::pipe {
using merak::Action;

// In the text of ops: the letter alone.
mlir::ParseResult parseActionLetter(mlir::OpAsmParser &parser,
                                    ActionAttr &action);
void printActionLetter(mlir::OpAsmPrinter &printer, mlir::Operation *op,
                       ActionAttr action);
} // namespace merak::pipe
