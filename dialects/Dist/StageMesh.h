// Stages on meshes of their own, and the programs made of them.
#pragma once

#include "dialects/Dist/DistDialect.h"
#include "dialects/Support/RanksAxis.h"

#include "mlir/IR/BuiltinOps.h"

namespace merak::dist {

// Discardable attribute of such a stage or program, beside its own "dist.mesh"
// (with the axis "ranks"): an array of its ranks, row major over dp and tp.
inline constexpr llvm::StringLiteral kDevicesAttr = "dist.devices";

// Discardable attribute of a stage of one of several pipelines: the number of
// the pipeline, its first microbatch of a step, and how many it has.
inline constexpr llvm::StringLiteral kPipelineAttr = "dist.pipeline";

// Discardable attribute of a module: of each axis "holders.N" the lists of
// ranks, a dictionary of arrays of arrays. A rank is in one list at most.
inline constexpr llvm::StringLiteral kHoldersAttr = "dist.holders";

// Discardable attribute of a module: how every value between such stages goes
// (the name of a strategy of passes/Resharding); without it the way that is
// predicted to be fastest.
inline constexpr llvm::StringLiteral kReshardAttr = "dist.reshard";

// Of a stage or a program: its own mesh, else the module's; null if there is
// none.
inline MeshAttr meshOf(mlir::Operation *stage) {
  if (auto own = stage->getAttrOfType<MeshAttr>(kMeshAttr))
    return own;
  auto module = stage->getParentOfType<mlir::ModuleOp>();
  return module ? module->getAttrOfType<MeshAttr>(kMeshAttr) : MeshAttr();
}

} // namespace merak::dist
