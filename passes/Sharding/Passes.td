// Passes of the shard phase.
#ifndef MERAK_SHARDING_PASSES
#define MERAK_SHARDING_PASSES

include "mlir/Pass/PassBase.td"

def Localize : Pass<"merak-localize", "::mlir::ModuleOp"> {
  let summary = "turn stage programs from the global view into what one rank computes";
  let description = [{
    Input: global types with layouts. Output: local types. Positions in
    attributes (starts of slices, paddings, groups of a convolution) become
    local, ops that look into a split table learn the axis.
    ```mlir
    %1 = train.slice %0 starts [0, 64] sizes [8, 64] steps [1, 1] : tensor<8x192xf32>
    ```
    becomes, with the dimension 192 = 3 * 4 over (tp) * 16 and tp = 2,
    ```mlir
    %1 = train.slice %0 starts [0, 32] sizes [8, 32] steps [1, 1] : tensor<8x96xf32>
    ```
  }];
}

def VerifyShards : Pass<"merak-verify-shards", "::mlir::ModuleOp"> {
  let summary = "check that partial sums are reduced exactly once";
  let description = [{
    A partial operand is only used by ops that are linear in it, whose results
    are then partial; an all_reduce gets a value that is partial over its axes;
    an update gets a complete gradient. All problems are reported.
  }];
}

#endif
