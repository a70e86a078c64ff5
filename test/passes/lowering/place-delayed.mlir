// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-place-delayed | FileCheck %s

// A step by what the step before left goes in front of the first reader of its parameter,
// in the first microbatch alone; the sum to the begin of that call. What clears the sum
// follows the step, and what is made of a parameter once goes in front of its own reader.
// Nothing else of the procedure moves.
// CHECK-LABEL: plan.program @two
// CHECK: plan.buffer workspace @tmp : tensor<4xf32> in @forward.first
// CHECK: plan.procedure @gather action G
// CHECK-NEXT: plan.library "copy" (@x[4]) -> (@y[4])
// CHECK-NEXT: }
// CHECK: plan.procedure @forward action F {
// CHECK-NEXT: plan.library "copy" (@v[4]) -> (@y[4])
// CHECK-NEXT: plan.library "copy" (@x[4]) -> (@y[4])
// CHECK-NEXT: plan.library "copy" (@wcast[4]) -> (@y[4])
// CHECK-NEXT: }
// CHECK: plan.procedure @forward.first action F {
// CHECK-NEXT: plan.collective all_reduce (@vsum[4]) -> (@vsum[4])
// CHECK-NEXT: plan.collective all_reduce (@wsum[4]) -> (@wsum[4])
// CHECK-NEXT: plan.library "sgd_update" (@vsum[4], @factor[]) -> (@v[4])
// CHECK-NEXT: plan.library "copy" (@v[4]) -> (@y[4])
// CHECK-NEXT: plan.library "copy" (@x[4]) -> (@y[4])
// CHECK-NEXT: plan.library "sgd_update" (@wsum[4], @factor[]) -> (@w[4])
// CHECK-NEXT: plan.library "fill" () -> (@wsum[4])
// CHECK-NEXT: plan.library "copy" (@w[4]) -> (@tmp[4])
// CHECK-NEXT: plan.library "copy" (@tmp[4]) -> (@wcast[4])
// CHECK-NEXT: plan.library "copy" (@wcast[4]) -> (@y[4])
// CHECK: plan.call @gather
// CHECK-NEXT: plan.call @forward.first microbatch 0
// CHECK-NEXT: plan.call @forward microbatch 1
plan.program @two index 0 streams ["compute", "collectives"] groups [["dp"]] schedule <G, F0, F1, W0, W1> {
  plan.buffer parameters @v : tensor<4xf32> tensor "v"
  plan.buffer parameters @w : tensor<4xf32> tensor "w"
  plan.buffer optimizer @vsum : tensor<4xf32>
  plan.buffer optimizer @wsum : tensor<4xf32>
  plan.buffer optimizer @factor : tensor<f32>
  plan.buffer workspace @tmp : tensor<4xf32> in @gather
  plan.buffer workspace @wcast : tensor<4xf32>
  plan.buffer activations @x : tensor<4xf32>
  plan.buffer activations @y : tensor<4xf32>
  plan.procedure @gather action G {
    plan.collective all_reduce (@vsum[4]) -> (@vsum[4]) group 0 reduction sum stream 1 {train.delayed}
    plan.library "sgd_update" (@vsum[4], @factor[]) -> (@v[4]) scalars [#plan.scalar<"lr_before">, #plan.scalar<"step_before">] {plan.update, train.delayed}
    plan.collective all_reduce (@wsum[4]) -> (@wsum[4]) group 0 reduction sum stream 1 {train.delayed}
    plan.library "sgd_update" (@wsum[4], @factor[]) -> (@w[4]) scalars [#plan.scalar<"lr_before">, #plan.scalar<"step_before">] {plan.update, train.delayed}
    plan.library "copy" (@w[4]) -> (@tmp[4])
    plan.library "copy" (@tmp[4]) -> (@wcast[4])
    plan.library "copy" (@x[4]) -> (@y[4])
    plan.library "fill" () -> (@wsum[4]) scalars [#plan.scalar<0.0>]
  }
  plan.procedure @forward action F {
    plan.library "copy" (@v[4]) -> (@y[4])
    plan.library "copy" (@x[4]) -> (@y[4])
    plan.library "copy" (@wcast[4]) -> (@y[4])
  }
  plan.procedure @weight action W {
    plan.library "copy" (@x[4]) -> (@wsum[4]) accumulate
    plan.library "copy" (@x[4]) -> (@vsum[4])
  }
  plan.call @gather microbatch -1 slots [] waits []
  plan.call @forward microbatch 0 slots [] waits []
  plan.call @forward microbatch 1 slots [] waits []
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @weight microbatch 1 slots [] waits []
}

// What no call reads stays where it is, and so do rows.
// CHECK-LABEL: plan.program @none
// CHECK: plan.procedure @gather action G
// CHECK-NEXT: plan.collective all_gather
// CHECK: plan.call @gather
plan.program @none index 0 streams ["compute", "collectives"] groups [["dp"]] schedule <G, F0> {
  plan.buffer optimizer @rows : tensor<2xf32>
  plan.buffer workspace @arrived : tensor<4xf32>
  plan.buffer activations @x : tensor<4xf32>
  plan.procedure @gather action G {
    plan.collective all_gather (@rows[2]) -> (@arrived[4]) group 0 stream 1 {train.delayed}
  }
  plan.procedure @forward action F {
    plan.library "copy" (@arrived[4]) -> (@x[4])
  }
  plan.call @gather microbatch -1 slots [] waits []
  plan.call @forward microbatch 0 slots [] waits []
}
