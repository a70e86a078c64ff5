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

def DelayRows : Pass<"merak-delay-rows", "::mlir::ModuleOp"> {
  let summary = "exchange and update rows beside a step that does not look them up";
  let description = [{
    Input: local types. Where a row-sparse gradient with `train.delayed` is of slices
    that go from each replica to all others, by a gather or an all-to-all, each replica
    keeps its slices of a step, and the update begins with the ids of the whole
    next batch (an input with `pipe.ahead`). They split the step's ids in two. Slices of
    rows that some rank looks up next are summed by id, exchanged and updated as before
    (the exchange carries `dist.trim`). The sums of the others, with their ids and
    the factor of this step's gradients, are carried values: the action G of the next step
    exchanges them beside its computation, its update begins with theirs. All ops that do so
    have `train.delayed`. Lowering makes a procedure of them, too, which is run before
    anything else than steps reads a table.

    The squares of the norm count what is delayed replica by replica: one
    that is not finite is found before anything is updated.

    Plans for GPUs, whose transport sends all, and such with halves of microbatches or stages on
    meshes of their own stay as they are.
    ```mlir
    // U
    %g = pipe.load @sum1 : tensor<8x16xf32> // gathered for each microbatch
    %ids = pipe.load @sum2 : tensor<8xi64>
    %rows, %unique = train.coalesce %g at %ids size 96 {train.delayed = {ids = tensor<8xi64>}} : tensor<8x16xf32>, tensor<8xi64> to tensor<8x16xf32>
    ```
    becomes
    ```mlir
    // G
    %d = pipe.load @t.delayed.rows : tensor<4x16xf32>
    %a = dist.all_gather %d over ["dp"] dim 0 major 1 minor 1 {train.delayed, dist.trim = 5.0e-01 : f64} : tensor<4x16xf32> to tensor<8x16xf32>
    pipe.store %a to @t.delayed.arrived : tensor<8x16xf32>
    // U, after the coalesce and the update of what arrived
    %next = pipe.load @ids.next : tensor<8xi64>
    %prior, %delayed = train.split_ids %ids by %next size 96 : tensor<8xi64>, tensor<8xi64>
    %own = pipe.load @t.slices : tensor<4x16xf32>
    %s, %u = train.coalesce %own at %ownprior size 96 {train.compact} : tensor<4x16xf32>, tensor<4xi64> to tensor<4x16xf32>
    %g = dist.all_gather %s over ["dp"] dim 0 major 1 minor 1 {dist.trim = 5.0e-01 : f64} : tensor<4x16xf32> to tensor<8x16xf32>
    %rows, %unique = train.coalesce %g at %prior size 96 {train.block = 4 : i64} : tensor<8x16xf32>, tensor<8xi64> to tensor<8x16xf32>
    ```
  }];
  let statistics = [Statistic<"tables", "tables", "tables of which rows are delayed">];
}

def CoalesceSlices : Pass<"merak-coalesce-slices", "::mlir::ModuleOp"> {
  let summary = "sum slices of one id before they are exchanged";
  let description = [{
    Input: local types. Where the slices of a row-sparse gradient with
    `train.touched` (different rows by ids) go from each replica to all others, by a gather or an
    all-to-all, and ids are expected to repeat, each replica first sums its slices
    of one id: sums lie at the front, zeros behind them. The exchange carries
    `dist.trim`, the part that is expected to be left: transports of hosts do not send
    the zeros. The coalesce of the update learns from what blocks its slices come
    (`train.block`). Plans for GPUs, whose transport sends all, stay as they are.
    ```mlir
    %0 = dist.all_gather %dy over ["dp"] dim 0 major 1 minor 1 : tensor<4x8xf32> to tensor<8x8xf32>
    ```
    becomes
    ```mlir
    %rows, %unique = train.coalesce %dy at %ids size 96 {train.compact} : tensor<4x8xf32>, tensor<4xi64> to tensor<4x8xf32>
    %0 = dist.all_gather %rows over ["dp"] dim 0 major 1 minor 1 {dist.trim = 5.0e-01 : f64} : tensor<4x8xf32> to tensor<8x8xf32>
    ```
  }];
  let statistics = [Statistic<"exchanges", "exchanges", "exchanges of sums instead of slices">];
}

def DelayGradients : Pass<"merak-delay-gradients", "::mlir::ModuleOp"> {
  let summary = "sum gradients over replicas beside the next step's forward pass";
  let description = [{
    Input: local types. Of gradients that the update sums over replicas, and only
    the norm and the step on their parameter read, those are chosen whose sums the
    backward pass does not hide and the next forward pass does
    (passes/Planning/DelayedGradients.h). What microbatches add up becomes a
    carried value. The action G of the next step sums it over the replicas and takes
    its step, with the factor of the step that has left it; lowering puts the step in
    front of the first reader of the parameter. All ops that do so have
    `train.delayed`; lowering makes a procedure of them, too, which is run before
    anything else than steps reads parameters. Before the first step the factor
    is not a number: nothing is left.

    The squares of the norm are those of each replica's own sums
    (`dist.own_summand`), added over the replicas: one that is not finite is found in
    its own step.
    ```mlir
    // U
    %g = pipe.load @sum0 : tensor<8x8xf32>
    %s = dist.all_reduce %g over ["dp"] sum : tensor<8x8xf32>
    %q = train.square_sum %s : tensor<8x8xf32> -> tensor<1xf32>
    %norm, %factor = train.clip_factor %q max_norm 1.0e+30 : tensor<1xf32> -> tensor<f32>, tensor<f32>
    pipe.update @w by <sgd> states [] gradient %s clip %factor : tensor<8x8xf32>, tensor<f32>
    ```
    becomes
    ```mlir
    // G
    %g = pipe.load @w.delayed.gradient {train.delayed} : tensor<8x8xf32>
    %f = pipe.load @delayed.factor {train.delayed} : tensor<f32>
    %s = dist.all_reduce %g over ["dp"] sum {train.delayed} : tensor<8x8xf32>
    pipe.update @w by <sgd> states [] gradient %s clip %f {train.delayed} : tensor<8x8xf32>, tensor<f32>
    // U
    %g = pipe.load @w.delayed.gradient : tensor<8x8xf32>
    %o = train.square_sum %g {dist.own_summand} : tensor<8x8xf32> -> tensor<1xf32>
    %q = dist.all_reduce %o over ["dp"] sum : tensor<1xf32>
    %norm, %factor = train.clip_factor %q max_norm 1.0e+30 : tensor<1xf32> -> tensor<f32>, tensor<f32>
    pipe.store %factor to @delayed.factor : tensor<f32>
    ```
  }];
  let options = [
    Option<"overlapped", "overlapped", "bool", "true",
           "whether other gradients are summed beside the backward pass">
  ];
  let statistics = [Statistic<"gradients", "gradients", "gradients that are delayed">];
}

def SubPipeline : Pass<"merak-sub-pipeline", "::mlir::ModuleOp"> {
  let summary = "run every microbatch as two submicrobatches whose communication overlaps";
  let description = [{
    Input: a module with `pipe.tp_overlap`, local types, and a mesh whose axis
    "mb" counts submicrobatches. Without the attribute nothing changes.
    Output: the body of every action but S and U stands twice, once for each
    submicrobatch; activations and transfers are doubled. In bodies with collectives the
    submicrobatches are interleaved (passes/Planning/TwoStream.h), so that one computes
    while the other communicates; in all others the second follows the first.
    Where a B would still wait, ops of R and W run in it (FillGaps.h).
    Sums take the first one first. `pipe.submicrobatches` on the module says that
    an action now is for two positions of "mb".
    ```mlir
    %0 = pipe.load @x : tensor<4x8xf32>
    %1 = train.einsum "bi,ij->bj" %0, %w : tensor<4x8xf32>, tensor<8x8xf32>
    %2 = dist.all_reduce %1 over ["tp"] "sum" : tensor<4x8xf32>
    ```
    becomes
    ```mlir
    %0 = pipe.load @x : tensor<4x8xf32>
    %1 = train.einsum "bi,ij->bj" %0, %w : tensor<4x8xf32>, tensor<8x8xf32>
    %2 = dist.all_reduce %1 over ["tp"] "sum" : tensor<4x8xf32>
    %3 = pipe.load @x {pipe.submicrobatch = 1 : i64} : tensor<4x8xf32>
    %4 = train.einsum "bi,ij->bj" %3, %w {pipe.submicrobatch = 1 : i64} : tensor<4x8xf32>, tensor<8x8xf32>
    %5 = dist.all_reduce %4 over ["tp"] "sum" {pipe.submicrobatch = 1 : i64} : tensor<4x8xf32>
    ```
  }];
  let statistics = [
    Statistic<"filled", "filled", "ops of R and W moved into B, under its collectives">,
    Statistic<"interleaved", "interleaved", "actions whose submicrobatches are interleaved">,
    Statistic<"inOrder", "in-order", "actions whose submicrobatches run one after the other">
  ];
}

#endif
