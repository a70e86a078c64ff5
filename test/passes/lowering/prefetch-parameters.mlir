// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-prefetch-parameters=bytes=64 | FileCheck %s
// RUN: merak-opt %s --merak-prefetch-parameters=bytes=64 --merak-assign-streams --merak-assign-memory --merak-verify-memory --merak-insert-events --merak-verify-plan | FileCheck %s --check-prefix=PLAN
// RUN: merak-opt %s --merak-prefetch-parameters=bytes=0 | FileCheck %s --check-prefix=EACH

// Buckets of at most 64 bytes, in the order of first uses: @a and @b go first,
// @c where @a is used, @big, alone, where that begins that @c is issued behind;
// each with the cast that makes its operand. What is read of no parameter stays.
// CHECK-LABEL: plan.program @uses index 0 streams ["compute", "collectives", "parameters"]
// CHECK: plan.procedure @forward action F
// CHECK-NEXT: plan.library "copy" (@wa[4]) -> (@sa[4])
// CHECK-NEXT: plan.library "copy" (@wb[4]) -> (@sb[4])
// CHECK-NEXT: plan.collective all_gather (@sa[4], @sb[4]) -> (@a[8], @b[8]) group 0 stream 2
// CHECK-NEXT: plan.library "copy" (@wc[4]) -> (@sc[4])
// CHECK-NEXT: plan.collective all_gather (@sc[4]) -> (@c[8]) group 0 stream 2
// CHECK-NEXT: plan.library "copy" (@a[8]) -> (@x[8])
// CHECK-NEXT: plan.library "copy" (@wbig[16]) -> (@sbig[16])
// CHECK-NEXT: plan.collective all_gather (@sbig[16]) -> (@big[32]) group 0 stream 2
// CHECK-NEXT: plan.library "copy" (@b[8]) -> (@x[8])
// CHECK-NEXT: plan.library "copy" (@c[8]) -> (@x[8])
// CHECK-NEXT: plan.collective all_gather (@x[8]) -> (@y[16]) group 0 stream 1
// CHECK-NEXT: plan.library "copy" (@y[16]) -> (@z[16])
// CHECK-NEXT: plan.library "copy" (@big[32]) -> (@x[8])

// The links carry @big while @b and @c are used: the computation waits for each
// bucket where it needs it.
// PLAN-LABEL: plan.program @uses
// PLAN: plan.collective all_gather (@sa[4], @sb[4])
// PLAN: plan.collective all_gather (@sc[4])
// PLAN: plan.wait
// PLAN: plan.library "copy" (@a[8])

// EACH-LABEL: plan.program @uses
// EACH: plan.collective all_gather (@sa[4]) -> (@a[8]) group 0 stream 2
// EACH: plan.collective all_gather (@sb[4]) -> (@b[8]) group 0 stream 2
// EACH: plan.library "copy" (@a[8]) -> (@x[8])
plan.program @uses index 0 streams ["compute", "collectives"] groups [["dp"]] schedule <F0> {
  plan.buffer parameters @wa : tensor<4xf32>
  plan.buffer parameters @wb : tensor<4xf32>
  plan.buffer parameters @wc : tensor<4xf32>
  plan.buffer parameters @wbig : tensor<16xf32>
  plan.buffer workspace @sa : tensor<4xf32> in @forward
  plan.buffer workspace @sb : tensor<4xf32> in @forward
  plan.buffer workspace @sc : tensor<4xf32> in @forward
  plan.buffer workspace @sbig : tensor<16xf32> in @forward
  plan.buffer workspace @a : tensor<8xf32> in @forward
  plan.buffer workspace @b : tensor<8xf32> in @forward
  plan.buffer workspace @c : tensor<8xf32> in @forward
  plan.buffer workspace @big : tensor<32xf32> in @forward
  plan.buffer activations @x : tensor<8xf32>
  plan.buffer activations @y : tensor<16xf32>
  plan.buffer activations @z : tensor<16xf32>
  plan.procedure @forward action F {
    plan.library "copy" (@wa[4]) -> (@sa[4])
    plan.collective all_gather (@sa[4]) -> (@a[8]) group 0 stream 1
    plan.library "copy" (@a[8]) -> (@x[8])
    plan.library "copy" (@wb[4]) -> (@sb[4])
    plan.collective all_gather (@sb[4]) -> (@b[8]) group 0 stream 1
    plan.library "copy" (@b[8]) -> (@x[8])
    plan.library "copy" (@wc[4]) -> (@sc[4])
    plan.collective all_gather (@sc[4]) -> (@c[8]) group 0 stream 1
    plan.library "copy" (@c[8]) -> (@x[8])
    plan.collective all_gather (@x[8]) -> (@y[16]) group 0 stream 1
    plan.library "copy" (@y[16]) -> (@z[16])
    plan.library "copy" (@wbig[16]) -> (@sbig[16])
    plan.collective all_gather (@sbig[16]) -> (@big[32]) group 0 stream 1
    plan.library "copy" (@big[32]) -> (@x[8])
  }
  plan.call @forward microbatch 0 slots [] waits []
}

// Once a step: into the first call that reads some of it, which gets a copy of
// its procedure; a sum that the gather waits for would end the move.
// CHECK-LABEL: plan.program @once
// CHECK-NOT: action G
// CHECK: plan.procedure @forward action F
// CHECK-NEXT: plan.library "copy" (@a[8]) -> (@tmp[8])
// CHECK-NEXT: plan.library "copy" (@tmp[8]) -> (@x[8])
// CHECK-NEXT: }
// CHECK: plan.procedure @forward.first action F
// CHECK-NEXT: plan.library "copy" (@wa[4]) -> (@sa[4])
// CHECK-NEXT: plan.collective all_gather (@sa[4]) -> (@a[8]) group 0 stream 2
// CHECK-NEXT: plan.library "copy" (@a[8]) -> (@tmp.first[8])
// CHECK-NEXT: plan.library "copy" (@tmp.first[8]) -> (@x[8])
// CHECK-NEXT: }
// CHECK: plan.call @clear microbatch -1
// CHECK-NEXT: plan.call @forward.first microbatch 0
// CHECK-NEXT: plan.call @forward microbatch 1
plan.program @once index 0 streams ["compute", "collectives"] groups [["dp"]] schedule <G, F0, F1> {
  plan.buffer parameters @wa : tensor<4xf32>
  plan.buffer workspace @sa : tensor<4xf32> in @gather
  plan.buffer workspace @a : tensor<8xf32>
  plan.buffer workspace @tmp : tensor<8xf32> in @forward
  plan.buffer activations @x : tensor<8xf32>
  plan.procedure @clear action P {
    plan.library "fill" () -> (@x[8])
  }
  plan.procedure @gather action G {
    plan.library "copy" (@wa[4]) -> (@sa[4])
    plan.collective all_gather (@sa[4]) -> (@a[8]) group 0 stream 1
  }
  plan.procedure @forward action F {
    plan.library "copy" (@a[8]) -> (@tmp[8])
    plan.library "copy" (@tmp[8]) -> (@x[8])
  }
  plan.call @gather microbatch -1 slots [] waits []
  plan.call @clear microbatch -1 slots [] waits []
  plan.call @forward microbatch 0 slots [] waits []
  plan.call @forward microbatch 1 slots [] waits []
}
