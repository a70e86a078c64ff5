// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-overlap-gradients | FileCheck %s
// RUN: merak-opt %s --merak-overlap-gradients --merak-verify-plan | FileCheck %s --check-prefix=STREAMS

// STREAMS: plan.program @pipelined index 0 streams ["compute", "collectives", "send", "gradients"]
module {
  // The last microbatch gets a copy of W with transient buffers of its own; each
  // reduction stands behind the last instruction of its gradient. B is sent to
  // another stage and stays.
  // CHECK-LABEL: plan.program @pipelined
  // CHECK: plan.procedure @weight action W
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@tmp[4])
  // CHECK-NEXT: plan.library "copy" (@tmp[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  // CHECK-NEXT: }
  // CHECK: plan.procedure @weight.last action W
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@tmp.last[4])
  // CHECK-NEXT: plan.library "copy" (@tmp.last[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 3
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 3
  // CHECK-NEXT: }
  // The third one is scaled before it is reduced.
  // CHECK: plan.procedure @update action U
  // CHECK-NEXT: plan.library "copy" (@sum0[4]) -> (@w[4])
  // CHECK-NEXT: plan.library "copy" (@sum1[4]) -> (@sum2[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum2[4])
  // CHECK: plan.call @weight microbatch 0
  // CHECK-NEXT: plan.call @backward microbatch 1
  // CHECK-NEXT: plan.call @weight.last microbatch 1
  // CHECK-NEXT: plan.call @update
  plan.program @pipelined index 0 streams ["compute", "collectives", "send"] groups [["dp"]] schedule <B0, W0, B1, W1, U> {
    plan.buffer activations @act : tensor<4xf32>
    plan.buffer workspace @tmp : tensor<4xf32> in @weight
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer gradients @sum2 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @backward action B {
      plan.library "copy" (@w[4]) -> (@act[4])
      plan.send "t" (@act[4]) -> () peer {pp = 0 : i64} stream 2
    }
    plan.procedure @weight action W {
      plan.library "copy" (@act[4]) -> (@tmp[4])
      plan.library "copy" (@tmp[4]) -> (@sum0[4]) accumulate
      plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
    }
    plan.procedure @update action U {
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum0[4]) -> (@w[4])
      plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum1[4]) -> (@sum2[4]) accumulate
      plan.collective all_reduce (@sum2[4]) -> (@sum2[4]) group 0 reduction sum stream 1
    }
    plan.call @backward microbatch 0 slots [] waits []
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @backward microbatch 1 slots [] waits []
    plan.call @weight microbatch 1 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // Nobody waits for B: the gradients of weights follow their layer, where B
  // has got the collective that they need as well.
  // CHECK-LABEL: plan.program @alone
  // CHECK: plan.procedure @backward action B
  // CHECK-NEXT: plan.library "copy" (@w[4]) -> (@d1[4])
  // CHECK-NEXT: plan.collective all_reduce (@d1[4]) -> (@d1[4]) group 1
  // CHECK-NEXT: plan.library "copy" (@d1[4]) -> (@d0[4])
  // CHECK-NEXT: plan.library "copy" (@d1[4]) -> (@sum1[4])
  // CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@d0[4]) -> (@sum0[4])
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@d0[4]) -> (@out[4])
  // CHECK-NOT: @weight
  // CHECK: plan.call @backward microbatch 0
  // CHECK-NEXT: plan.call @update
  plan.program @alone index 0 streams ["compute", "collectives"] groups [["dp"], ["tp"]] schedule <B0, W0, U> {
    plan.buffer activations @d0 : tensor<4xf32>
    plan.buffer activations @d1 : tensor<4xf32>
    plan.buffer activations @out : tensor<4xf32>
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @backward action B {
      plan.library "copy" (@w[4]) -> (@d1[4])
      plan.collective all_reduce (@d1[4]) -> (@d1[4]) group 1 reduction sum stream 1
      plan.library "copy" (@d1[4]) -> (@d0[4])
      plan.library "copy" (@d0[4]) -> (@out[4])
    }
    plan.procedure @weight action W {
      plan.library "copy" (@d1[4]) -> (@sum1[4])
      plan.library "copy" (@d0[4]) -> (@sum0[4])
    }
    plan.procedure @update action U {
      plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum1[4]) -> (@w[4])
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum0[4]) -> (@w[4])
    }
    plan.call @backward microbatch 0 slots [] waits []
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // Two collectives on their way: the gradients of weights run where B waits for
  // one of them, not in front of the next one.
  // CHECK-LABEL: plan.program @waits
  // CHECK: plan.procedure @backward action B
  // CHECK-NEXT: plan.library "copy" (@w[4]) -> (@a0[4])
  // CHECK-NEXT: plan.library "copy" (@a0[4]) -> (@b0[4])
  // CHECK-NEXT: plan.collective all_reduce (@b0[4]) -> (@b0[4]) group 1
  // CHECK-NEXT: plan.library "copy" (@w[4]) -> (@a1[4])
  // CHECK-NEXT: plan.library "copy" (@a1[4]) -> (@b1[4])
  // CHECK-NEXT: plan.collective all_reduce (@b1[4]) -> (@b1[4]) group 1
  // CHECK-NEXT: plan.library "copy" (@a0[4]) -> (@sum1[4])
  // CHECK-NEXT: plan.library "copy" (@a1[4]) -> (@sum1[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@b0[4]) -> (@c0[4])
  // CHECK-NEXT: plan.library "copy" (@b0[4]) -> (@sum0[4])
  // CHECK-NEXT: plan.library "copy" (@b1[4]) -> (@c1[4])
  // CHECK-NEXT: plan.library "copy" (@b1[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
  // CHECK-NOT: @weight
  plan.program @waits index 0 streams ["compute", "collectives"] groups [["dp"], ["tp"]] schedule <B0, W0, U> {
    plan.buffer activations @a0 : tensor<4xf32>
    plan.buffer activations @a1 : tensor<4xf32>
    plan.buffer activations @b0 : tensor<4xf32>
    plan.buffer activations @b1 : tensor<4xf32>
    plan.buffer activations @c0 : tensor<4xf32>
    plan.buffer activations @c1 : tensor<4xf32>
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @backward action B {
      plan.library "copy" (@w[4]) -> (@a0[4])
      plan.library "copy" (@a0[4]) -> (@b0[4])
      plan.collective all_reduce (@b0[4]) -> (@b0[4]) group 1 reduction sum stream 1
      plan.library "copy" (@w[4]) -> (@a1[4])
      plan.library "copy" (@a1[4]) -> (@b1[4])
      plan.collective all_reduce (@b1[4]) -> (@b1[4]) group 1 reduction sum stream 1
      plan.library "copy" (@b0[4]) -> (@c0[4])
      plan.library "copy" (@b1[4]) -> (@c1[4])
    }
    plan.procedure @weight action W {
      plan.library "copy" (@a0[4]) -> (@sum1[4])
      plan.library "copy" (@b0[4]) -> (@sum0[4])
      plan.library "copy" (@a1[4]) -> (@sum1[4]) accumulate
      plan.library "copy" (@b1[4]) -> (@sum0[4]) accumulate
    }
    plan.procedure @update action U {
      plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum1[4]) -> (@w[4])
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum0[4]) -> (@w[4])
    }
    plan.call @backward microbatch 0 slots [] waits []
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // The same as halves of a microbatch, which hide each other's collectives: W
  // stays behind them.
  // CHECK-LABEL: plan.program @halves
  // CHECK: plan.procedure @backward action B
  // CHECK-NOT: @sum
  // CHECK: plan.procedure @weight action W
  // CHECK-NEXT: plan.library "copy" (@a0[4]) -> (@sum1[4])
  // CHECK-NEXT: plan.library "copy" (@b0[4]) -> (@sum0[4])
  // CHECK-NEXT: plan.library "copy" (@a1[4]) -> (@sum1[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@b1[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
  plan.program @halves index 0 streams ["compute", "collectives"] groups [["dp"], ["tp"]] schedule <B0, W0, U> {
    plan.buffer activations @a0 : tensor<4xf32>
    plan.buffer activations @a1 : tensor<4xf32>
    plan.buffer activations @b0 : tensor<4xf32>
    plan.buffer activations @b1 : tensor<4xf32>
    plan.buffer activations @c0 : tensor<4xf32>
    plan.buffer activations @c1 : tensor<4xf32>
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @backward action B {
      plan.library "copy" (@w[4]) -> (@a0[4])
      plan.library "copy" (@a0[4]) -> (@b0[4])
      plan.collective all_reduce (@b0[4]) -> (@b0[4]) group 1 reduction sum stream 1
      plan.library "copy" (@w[4]) -> (@a1[4]) {plan.submicrobatch = 1 : i64}
      plan.library "copy" (@a1[4]) -> (@b1[4]) {plan.submicrobatch = 1 : i64}
      plan.collective all_reduce (@b1[4]) -> (@b1[4]) group 1 reduction sum stream 1
      plan.library "copy" (@b0[4]) -> (@c0[4])
      plan.library "copy" (@b1[4]) -> (@c1[4]) {plan.submicrobatch = 1 : i64}
    }
    plan.procedure @weight action W {
      plan.library "copy" (@a0[4]) -> (@sum1[4])
      plan.library "copy" (@b0[4]) -> (@sum0[4])
      plan.library "copy" (@a1[4]) -> (@sum1[4]) accumulate
      plan.library "copy" (@b1[4]) -> (@sum0[4]) accumulate
    }
    plan.procedure @update action U {
      plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum1[4]) -> (@w[4])
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum0[4]) -> (@w[4])
    }
    plan.call @backward microbatch 0 slots [] waits []
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // Two uses of a weight: what the update adds up moves along, behind the last
  // of them; a sum that something else reads before stays, and so does one with
  // what another stage sent.
  // CHECK-LABEL: plan.program @tied
  // CHECK: plan.procedure @weight action W
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.library "copy" (@sum1[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 3
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum2[4]) accumulate
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum3[4]) accumulate
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum4[4]) accumulate
  // CHECK-NEXT: }
  // CHECK: plan.procedure @update action U
  // CHECK-NEXT: plan.library "copy" (@sum3[4]) -> (@sum2[4]) accumulate
  // CHECK-NEXT: plan.library "copy" (@sum2[4]) -> (@w[4])
  // CHECK-NEXT: plan.collective all_reduce (@sum2[4])
  // CHECK-NEXT: plan.recv "t" () -> (@got[4])
  // CHECK-NEXT: plan.library "copy" (@got[4]) -> (@sum4[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum4[4])
  plan.program @tied index 0 streams ["compute", "collectives", "recv"] groups [["dp"]] schedule <B0, W0, U> {
    plan.buffer activations @act : tensor<4xf32>
    plan.buffer communication @got : tensor<4xf32> in @update
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer gradients @sum2 : tensor<4xf32>
    plan.buffer gradients @sum3 : tensor<4xf32>
    plan.buffer gradients @sum4 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @weight action W {
      plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
      plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
      plan.library "copy" (@act[4]) -> (@sum2[4]) accumulate
      plan.library "copy" (@act[4]) -> (@sum3[4]) accumulate
      plan.library "copy" (@act[4]) -> (@sum4[4]) accumulate
    }
    plan.procedure @update action U {
      plan.library "copy" (@sum1[4]) -> (@sum0[4]) accumulate
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum3[4]) -> (@sum2[4]) accumulate
      plan.library "copy" (@sum2[4]) -> (@w[4])
      plan.collective all_reduce (@sum2[4]) -> (@sum2[4]) group 0 reduction sum stream 1
      plan.recv "t" () -> (@got[4]) peer {pp = 1 : i64} stream 2
      plan.library "copy" (@got[4]) -> (@sum4[4]) accumulate
      plan.collective all_reduce (@sum4[4]) -> (@sum4[4]) group 0 reduction sum stream 1
    }
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // Each rank keeps a part of the sum: the scatter moves like a reduction, and so
  // does what sums the part over other ranks; parts are there until the update.
  // One whose result the update has used for something else stays. What W scatters itself,
  // to be added to an accumulator, gets the stream.
  // CHECK-LABEL: plan.program @parts
  // CHECK: plan.buffer gradients @part0 : tensor<2xf32>
  // CHECK-NOT: in @update
  // CHECK: plan.procedure @weight action W
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4])
  // CHECK-NEXT: plan.collective reduce_scatter (@sum0[4]) -> (@part0[2]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.collective all_reduce (@part0[2]) -> (@part0[2]) group 1 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4])
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@whole[4])
  // CHECK-NEXT: plan.collective reduce_scatter (@whole[4]) -> (@own[2]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@own[2]) -> (@sum2[2]) accumulate
  // CHECK-NEXT: plan.collective reduce_scatter (@act[4]) -> (@other[2]) group 0 reduction sum stream 1
  // CHECK: plan.procedure @update action U
  // CHECK-NEXT: plan.library "copy" (@part0[2]) -> (@w[2])
  // CHECK: plan.collective reduce_scatter (@sum1[4]) -> (@part1[2]) group 0 reduction sum stream 1
  plan.program @parts index 0 streams ["compute", "collectives"] groups [["dp"], ["tp"]] schedule <W0, U> {
    plan.buffer activations @act : tensor<4xf32>
    plan.buffer activations @x : tensor<2xf32>
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer gradients @sum2 : tensor<2xf32>
    plan.buffer workspace @whole : tensor<4xf32> in @weight
    plan.buffer workspace @own : tensor<2xf32> in @weight
    plan.buffer workspace @other : tensor<2xf32> in @weight
    plan.buffer workspace @part0 : tensor<2xf32> in @update
    plan.buffer gradients @part1 : tensor<2xf32>
    plan.buffer parameters @w : tensor<2xf32>
    plan.procedure @weight action W {
      plan.library "copy" (@act[4]) -> (@sum0[4])
      plan.library "copy" (@act[4]) -> (@sum1[4])
      plan.library "copy" (@act[4]) -> (@whole[4])
      plan.collective reduce_scatter (@whole[4]) -> (@own[2]) group 0 reduction sum stream 1
      plan.library "copy" (@own[2]) -> (@sum2[2]) accumulate
      plan.collective reduce_scatter (@act[4]) -> (@other[2]) group 0 reduction sum stream 1
      plan.library "copy" (@other[2]) -> (@x[2])
    }
    plan.procedure @update action U {
      plan.collective reduce_scatter (@sum0[4]) -> (@part0[2]) group 0 reduction sum stream 1
      plan.collective all_reduce (@part0[2]) -> (@part0[2]) group 1 reduction sum stream 1
      plan.library "copy" (@part0[2]) -> (@w[2])
      plan.library "copy" (@w[2]) -> (@part1[2])
      plan.library "copy" (@part1[2]) -> (@w[2])
      plan.collective reduce_scatter (@sum1[4]) -> (@part1[2]) group 0 reduction sum stream 1
    }
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // W gathers parts again that the forward pass left: each at the wait before
  // that of the product which reads it, not at the begin.
  // CHECK-LABEL: plan.program @again
  // CHECK: plan.procedure @backward action B
  // CHECK-NEXT: plan.collective all_gather (@part1[2]) -> (@whole1[4]) group 1
  // CHECK-NEXT: plan.collective all_reduce (@d1[4]) -> (@d1[4]) group 1
  // CHECK-NEXT: plan.library "copy" (@whole1[4]) -> (@sum1[4])
  // CHECK-NEXT: plan.collective all_reduce (@sum1[4])
  // CHECK-NEXT: plan.collective all_gather (@part0[2]) -> (@whole0[4]) group 1
  // CHECK-NEXT: plan.library "copy" (@d1[4]) -> (@d0[4])
  // CHECK-NEXT: plan.collective all_reduce (@d0[4]) -> (@d0[4]) group 1
  // CHECK-NEXT: plan.library "add" (@whole0[4], @d1[4]) -> (@sum0[4])
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4])
  // CHECK-NEXT: plan.library "copy" (@d0[4]) -> (@out[4])
  plan.program @again index 0 streams ["compute", "collectives"] groups [["dp"], ["tp"]] schedule <B0, W0, U> {
    plan.buffer activations @part0 : tensor<2xf32>
    plan.buffer activations @part1 : tensor<2xf32>
    plan.buffer activations @d0 : tensor<4xf32>
    plan.buffer activations @d1 : tensor<4xf32>
    plan.buffer activations @out : tensor<4xf32>
    plan.buffer workspace @whole0 : tensor<4xf32> in @weight
    plan.buffer workspace @whole1 : tensor<4xf32> in @weight
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer gradients @sum1 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @backward action B {
      plan.collective all_reduce (@d1[4]) -> (@d1[4]) group 1 reduction sum stream 1
      plan.library "copy" (@d1[4]) -> (@d0[4])
      plan.collective all_reduce (@d0[4]) -> (@d0[4]) group 1 reduction sum stream 1
      plan.library "copy" (@d0[4]) -> (@out[4])
    }
    plan.procedure @weight action W {
      plan.collective all_gather (@part1[2]) -> (@whole1[4]) group 1 stream 1 {dist.regather}
      plan.library "copy" (@whole1[4]) -> (@sum1[4])
      plan.collective all_gather (@part0[2]) -> (@whole0[4]) group 1 stream 1 {dist.regather}
      plan.library "add" (@whole0[4], @d1[4]) -> (@sum0[4])
    }
    plan.procedure @update action U {
      plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum1[4]) -> (@w[4])
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum0[4]) -> (@w[4])
    }
    plan.call @backward microbatch 0 slots [] waits []
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
  }

  // A sum of the forward pass is final before the last backward pass: it is
  // reduced where it lies, in front of the first reduction of a gradient. One
  // that the update itself reads before stays.
  // CHECK-LABEL: plan.program @outputs
  // CHECK-NOT: @loss :
  // CHECK: plan.buffer gradients @count : tensor<f32>
  // CHECK: plan.procedure @weight action W
  // CHECK-NEXT: plan.collective all_reduce (@count[]) -> (@count[]) group 0 reduction sum stream 2
  // CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
  // CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
  // CHECK-NEXT: }
  // CHECK: plan.procedure @update action U
  // CHECK-NEXT: plan.library "copy" (@kept[]) -> (@own[])
  // CHECK-NEXT: plan.collective all_reduce (@kept[]) -> (@other[]) group 0 reduction sum stream 1
  // CHECK-NEXT: plan.library "copy" (@sum0[4]) -> (@w[4])
  // CHECK: plan.output "loss" of @count
  // CHECK: plan.output "other" of @other
  plan.program @outputs index 2 streams ["compute", "collectives"] groups [["dp"]] schedule <F0, B0, W0, U> {
    plan.buffer activations @act : tensor<4xf32>
    plan.buffer workspace @count : tensor<f32>
    plan.buffer workspace @kept : tensor<f32>
    plan.buffer workspace @own : tensor<f32>
    plan.buffer workspace @loss : tensor<f32>
    plan.buffer workspace @other : tensor<f32>
    plan.buffer gradients @sum0 : tensor<4xf32>
    plan.buffer parameters @w : tensor<4xf32>
    plan.procedure @forward action F {
      plan.library "fill" () -> (@count[])
      plan.library "fill" () -> (@kept[])
    }
    plan.procedure @backward action B {
      plan.library "copy" (@w[4]) -> (@act[4])
      plan.send "t" (@act[4]) -> () peer {pp = 0 : i64} stream 1
    }
    plan.procedure @weight action W {
      plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    }
    plan.procedure @update action U {
      plan.collective all_reduce (@count[]) -> (@loss[]) group 0 reduction sum stream 1
      plan.library "copy" (@kept[]) -> (@own[])
      plan.collective all_reduce (@kept[]) -> (@other[]) group 0 reduction sum stream 1
      plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
      plan.library "copy" (@sum0[4]) -> (@w[4])
    }
    plan.call @forward microbatch 0 slots [] waits []
    plan.call @backward microbatch 0 slots [] waits []
    plan.call @weight microbatch 0 slots [] waits []
    plan.call @update microbatch -1 slots [] waits []
    plan.output "loss" of @loss shape [] layout <[]>
    plan.output "other" of @other shape [] layout <[]>
  }
}
