// The dist dialect: layouts over named mesh axes, and collectives.
#pragma once

#include "dialects/Dist/Traits.h"
#include "dialects/Support/MeshAxes.h"
#include "dialects/Train/TrainDialect.h"
#include "runtime/layout/Layout.h"

#include "dialects/Dist/DistDialect.h.inc"
#include "dialects/Dist/DistEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Dist/DistAttrs.h.inc"
#define GET_OP_CLASSES
#include "dialects/Dist/DistOps.h.inc"

namespace merak::dist {
// Discardable attribute on ops: an array with the layout of each result.
inline constexpr llvm::StringLiteral kLayoutsAttr = "dist.layouts";
// Discardable attribute on the module: the #dist.mesh.
inline constexpr llvm::StringLiteral kMeshAttr = "dist.mesh";
// Discardable attribute on the module: the #dist.cluster.
inline constexpr llvm::StringLiteral kClusterAttr = "dist.cluster";

// Whether a conversion is between submicrobatches: on one device.
bool isOverSubmicrobatches(mlir::Operation *conversion);

// Whether `type`, which may be global or local, can lie as `layout` says; null
// says nothing. Emits errors at `op`.
mlir::LogicalResult verifyLayout(mlir::Operation *op, mlir::ShapedType type,
                                 LayoutAttr layout);
} // namespace merak::dist
