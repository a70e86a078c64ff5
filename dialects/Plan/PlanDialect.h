// The plan dialect: programs of rank classes, mirroring plan.proto.
#pragma once

#include "dialects/Dist/DistDialect.h"
#include "dialects/Pipe/PipeAttrs.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/SymbolTable.h"

#include "dialects/Plan/PlanDialect.h.inc"
#include "dialects/Plan/PlanEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Plan/PlanAttrs.h.inc"
#include "dialects/Plan/PlanInterfaces.h.inc"
#define GET_OP_CLASSES
#include "dialects/Plan/PlanOps.h.inc"

namespace merak::plan {

// Unit attribute of library calls that update a parameter and its states.
inline constexpr llvm::StringLiteral kUpdateAttr = "plan.update";

// Functions with this unit attribute are generated kernels.
inline constexpr llvm::StringLiteral kKernelAttr = "merak.kernel";

// On buffers of model inputs that are used as positions: they lie in [0, limit)
// or are the one other value that is allowed.
inline constexpr llvm::StringLiteral kLimitAttr = "plan.limit";
inline constexpr llvm::StringLiteral kAllowedAttr = "plan.allowed";

// I64 attribute of a `plan.load_input`: of how many steps later its batch is.
inline constexpr llvm::StringLiteral kAheadAttr = "plan.ahead";

// On instructions: the part of the microbatch they are for; absent: part 0.
inline constexpr llvm::StringLiteral kSubmicrobatchAttr = "plan.submicrobatch";

// On collectives: their operands lie one behind the other in the arena and are
// exchanged as one array; memory planning sees to it.
inline constexpr llvm::StringLiteral kJoinedAttr = "plan.joined";

// On calls: nothing of it starts before the call in front of it is finished. On
// collectives: nor before the instruction in front of it is, on its stream.
inline constexpr llvm::StringLiteral kAfterPreviousAttr = "plan.after_previous";

// On sends: not before all that stands in front of it in the procedure is
// finished, on every stream.
inline constexpr llvm::StringLiteral kAfterAllAttr = "plan.after_all";

// Stream numbers every program has; channels get the following ones.
inline constexpr uint64_t kComputeStream = 0;
inline constexpr uint64_t kCollectiveStream = 1;

// Bytes of an element as buffers hold it: i1 takes a byte.
int64_t elementBytes(mlir::Type type);
// Bytes of a tensor, without padding.
int64_t tensorBytes(mlir::RankedTensorType type);

} // namespace merak::plan
