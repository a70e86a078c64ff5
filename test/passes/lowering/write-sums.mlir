// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-write-sums | FileCheck %s

// The first of two microbatches writes what it would add to zeros, once: a
// second part is added. What an instruction reads before, or writes a part of,
// is cleared, and so is what starts from another number.
// CHECK-LABEL: plan.program @both
// CHECK: plan.procedure @clear action P
// CHECK-NEXT: plan.library "fill" () -> (@part[4])
// CHECK-NEXT: plan.library "fill" () -> (@seen[4])
// CHECK-NEXT: plan.library "fill" () -> (@one[4])
// CHECK-NEXT: }
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@tmp[4])
// CHECK-NEXT: plan.library "copy" (@tmp[4]) -> (@sum[4]) accumulate
// CHECK: plan.procedure @weight.first action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@tmp.first[4])
// CHECK-NEXT: plan.library "copy" (@tmp.first[4]) -> (@sum[4]){{$}}
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum[4]) accumulate
// CHECK-NEXT: plan.library "copy" (@act[2]) -> (@part[2]) accumulate
// CHECK-NEXT: plan.library "copy" (@seen[4]) -> (@tmp.first[4])
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@seen[4]) accumulate
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@one[4]) accumulate
// CHECK-NEXT: }
// CHECK: plan.call @clear microbatch -1
// CHECK-NEXT: plan.call @weight.first microbatch 0
// CHECK-NEXT: plan.call @weight microbatch 1
plan.program @both index 0 streams ["compute"] groups [] schedule <W0, W1> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer workspace @tmp : tensor<4xf32> in @weight
  plan.buffer gradients @sum : tensor<4xf32>
  plan.buffer gradients @part : tensor<4xf32>
  plan.buffer gradients @seen : tensor<4xf32>
  plan.buffer gradients @one : tensor<4xf32>
  plan.procedure @clear action P {
    plan.library "fill" () -> (@sum[4]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@part[4]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@seen[4]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@one[4]) scalars [#plan.scalar<1.0>]
  }
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@tmp[4])
    plan.library "copy" (@tmp[4]) -> (@sum[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum[4]) accumulate
    plan.library "copy" (@act[2]) -> (@part[2]) accumulate
    plan.library "copy" (@seen[4]) -> (@tmp[4])
    plan.library "copy" (@act[4]) -> (@seen[4]) accumulate
    plan.library "copy" (@act[4]) -> (@one[4]) accumulate
  }
  plan.call @clear microbatch -1 slots [] waits []
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @weight microbatch 1 slots [] waits []
}

// Nothing is left to be cleared. One kernel adds to both sums, and both are
// written; where one of two is not clear any more, both are added to.
// CHECK-LABEL: plan.program @all
// CHECK-NOT: fill
// CHECK-NOT: @clear
// CHECK: plan.procedure @weight.first action W
// CHECK-NEXT: plan.library "einsum" (@act[4], @act[4]) -> (@a[4, 4], @b[1, 4]) with {{.*}}sum = "1"}{{$}}
// CHECK: plan.call @weight.first microbatch 0
plan.program @all index 0 streams ["compute"] groups [] schedule <W0, W1> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @a : tensor<4x4xf32>
  plan.buffer gradients @b : tensor<4xf32>
  plan.procedure @clear action P {
    plan.library "fill" () -> (@a[4, 4]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@b[4]) scalars [#plan.scalar<0.0>]
  }
  plan.procedure @weight action W {
    plan.library "einsum" (@act[4], @act[4]) -> (@a[4, 4], @b[1, 4]) with {equation = "a,b->ab", sum = "1"} accumulate
  }
  plan.call @clear microbatch -1 slots [] waits []
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @weight microbatch 1 slots [] waits []
}
// CHECK-LABEL: plan.program @mixed
// CHECK: "fill" () -> (@a[4, 4])
// CHECK: "fill" () -> (@b[4])
// CHECK-NOT: @weight.first
plan.program @mixed index 0 streams ["compute"] groups [] schedule <W0, W1> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @a : tensor<4x4xf32>
  plan.buffer gradients @b : tensor<4xf32>
  plan.procedure @clear action P {
    plan.library "fill" () -> (@a[4, 4]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@b[4]) scalars [#plan.scalar<0.0>]
  }
  plan.procedure @weight action W {
    plan.library "copy" (@b[4]) -> (@act[4])
    plan.library "einsum" (@act[4], @act[4]) -> (@a[4, 4], @b[1, 4]) with {equation = "a,b->ab", sum = "1"} accumulate
  }
  plan.call @clear microbatch -1 slots [] waits []
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @weight microbatch 1 slots [] waits []
}

// A loss is no reason for another forward pass, but for a procedure of one call.
// CHECK-LABEL: plan.program @loss
// CHECK: plan.procedure @clear action P
// CHECK-NEXT: "fill" () -> (@loss[1])
// CHECK-NEXT: }
// CHECK-NOT: @forward.first
// CHECK: plan.procedure @weight.first action W
// CHECK-NEXT: plan.library "copy" (@act[400]) -> (@a[400]){{$}}
// CHECK: plan.call @forward microbatch 0
// CHECK-NEXT: plan.call @weight.first microbatch 0
plan.program @loss index 0 streams ["compute"] groups [] schedule <F0, W0, F1, W1> {
  plan.buffer activations @act : tensor<400xf32>
  plan.buffer gradients @a : tensor<400xf32>
  plan.buffer activations @loss : tensor<1xf32>
  plan.procedure @clear action P {
    plan.library "fill" () -> (@a[400]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@loss[1]) scalars [#plan.scalar<0.0>]
  }
  plan.procedure @forward action F {
    plan.library "copy" (@act[1]) -> (@loss[1]) accumulate
  }
  plan.procedure @weight action W {
    plan.library "copy" (@act[400]) -> (@a[400]) accumulate
  }
  plan.call @clear microbatch -1 slots [] waits []
  plan.call @forward microbatch 0 slots [] waits []
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @forward microbatch 1 slots [] waits []
  plan.call @weight microbatch 1 slots [] waits []
}
// CHECK-LABEL: plan.program @single
// CHECK-NOT: fill
// CHECK: plan.procedure @forward action F
// CHECK-NEXT: plan.library "copy" (@act[1]) -> (@loss[1]){{$}}
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[400]) -> (@a[400]){{$}}
// CHECK-NOT: .first
plan.program @single index 0 streams ["compute"] groups [] schedule <F0, W0> {
  plan.buffer activations @act : tensor<400xf32>
  plan.buffer gradients @a : tensor<400xf32>
  plan.buffer activations @loss : tensor<1xf32>
  plan.procedure @clear action P {
    plan.library "fill" () -> (@a[400]) scalars [#plan.scalar<0.0>]
    plan.library "fill" () -> (@loss[1]) scalars [#plan.scalar<0.0>]
  }
  plan.procedure @forward action F {
    plan.library "copy" (@act[1]) -> (@loss[1]) accumulate
  }
  plan.procedure @weight action W {
    plan.library "copy" (@act[400]) -> (@a[400]) accumulate
  }
  plan.call @clear microbatch -1 slots [] waits []
  plan.call @forward microbatch 0 slots [] waits []
  plan.call @weight microbatch 0 slots [] waits []
}
