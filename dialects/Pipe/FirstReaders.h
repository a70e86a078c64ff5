// Who reads the values of a stage.
#pragma once

#include "dialects/Pipe/PipeDialect.h"

#include "llvm/ADT/StringMap.h"

namespace merak::pipe {

// By value, the action of the stage that loads it first for each microbatch:
// kinds in the order P F R B W S U, chunks upwards in F and downwards behind
// it. Values that no action loads are left out.
llvm::StringMap<ActionOp> firstReaders(StageOp stage);

} // namespace merak::pipe
