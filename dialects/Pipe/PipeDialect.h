// The pipe dialect: stages, actions, named values, transfers.
#pragma once

#include "dialects/Dist/DistDialect.h"

#include "dialects/Pipe/PipeDialect.h.inc"
#include "dialects/Pipe/PipeEnums.h.inc"
#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.h.inc"

namespace merak::pipe {

// The action of a stage that loads a value first for each microbatch: kinds in
// the order P F R B W S U, chunks upwards in F and downwards behind it. Null:
// none loads it.
ActionOp firstReader(StageOp stage, llvm::StringRef value);

} // namespace merak::pipe
