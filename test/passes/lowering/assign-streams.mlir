// A collective whose result the next instruction needs runs on the computation's
// stream; so does one whose operand the next changes. Others stay beside it, and
// those over stages always do; and what gathers again what was there before runs
// ahead of what stands in front of it, if anything does. What the prologue left
// is reduced at the begin of a procedure, not in front of its use.
// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-assign-streams | FileCheck %s

// CHECK: plan.collective all_reduce (@a[4]) -> (@a[4]) group 0 reduction sum{{ *$}}
// CHECK-NEXT: plan.library "copy" (@a[4]) -> (@b[4])
// CHECK-NEXT: plan.collective all_reduce (@b[4]) -> (@b[4]) group 0 reduction sum stream 1
// CHECK-NEXT: plan.library "copy" (@a[4]) -> (@c[4])
// CHECK-NEXT: plan.collective all_reduce (@a[4]) -> (@d[4]) group 0 reduction sum{{ *$}}
// CHECK-NEXT: plan.library "copy" (@c[4]) -> (@a[4])
// CHECK-NEXT: plan.collective all_reduce (@c[4]) -> (@c[4]) group 1 reduction sum stream 1
// CHECK-NEXT: plan.library "copy" (@c[4]) -> (@b[4])
// CHECK: plan.procedure @weight
// CHECK-NEXT: plan.collective all_gather (@a[4]) -> (@whole[8]) group 0 {dist.regather}
// CHECK-NEXT: plan.library "copy" (@whole[8]) -> (@sum[8])
// CHECK-NEXT: plan.collective all_gather (@b[4]) -> (@whole[8]) group 0 stream 1 {dist.regather}
// CHECK-NEXT: plan.library "copy" (@whole[8]) -> (@sum[8])
// CHECK: plan.procedure @recompute
// CHECK-NEXT: plan.collective all_reduce (@count[4]) -> (@total[4]) group 0 reduction sum stream 1
// CHECK-NEXT: plan.library "copy" (@a[4]) -> (@b[4])
// CHECK-NEXT: plan.library "copy" (@total[4]) -> (@c[4])
// CHECK-NEXT: plan.library "copy" (@a[4]) -> (@own[4])
// CHECK-NEXT: plan.collective all_reduce (@own[4]) -> (@own[4]) group 0 reduction sum{{ *$}}
// CHECK-NEXT: plan.library "copy" (@own[4]) -> (@b[4])
plan.program @stage0 index 0 streams ["compute", "collectives"] groups [["tp"], ["pp"]] schedule <F0, W0> {
  plan.buffer workspace @count : tensor<4xf32>
  plan.buffer workspace @total : tensor<4xf32>
  plan.buffer workspace @own : tensor<4xf32>
  plan.buffer activations @whole : tensor<8xf32>
  plan.buffer gradients @sum : tensor<8xf32>
  plan.buffer activations @a : tensor<4xf32>
  plan.buffer activations @b : tensor<4xf32>
  plan.buffer activations @c : tensor<4xf32>
  plan.buffer activations @d : tensor<4xf32>
  plan.procedure @forward action F {
    plan.collective all_reduce (@a[4]) -> (@a[4]) group 0 reduction sum stream 1
    plan.library "copy" (@a[4]) -> (@b[4])
    plan.collective all_reduce (@b[4]) -> (@b[4]) group 0 reduction sum stream 1
    plan.library "copy" (@a[4]) -> (@c[4])
    plan.collective all_reduce (@a[4]) -> (@d[4]) group 0 reduction sum stream 1
    plan.library "copy" (@c[4]) -> (@a[4])
    plan.collective all_reduce (@c[4]) -> (@c[4]) group 1 reduction sum stream 1
    plan.library "copy" (@c[4]) -> (@b[4])
  }
  plan.procedure @weight action W {
    plan.collective all_gather (@a[4]) -> (@whole[8]) group 0 stream 1 {dist.regather}
    plan.library "copy" (@whole[8]) -> (@sum[8])
    plan.collective all_gather (@b[4]) -> (@whole[8]) group 0 stream 1 {dist.regather}
    plan.library "copy" (@whole[8]) -> (@sum[8])
  }
  plan.procedure @recompute action R {
    plan.library "copy" (@a[4]) -> (@b[4])
    plan.collective all_reduce (@count[4]) -> (@total[4]) group 0 reduction sum stream 1
    plan.library "copy" (@total[4]) -> (@c[4])
    plan.library "copy" (@a[4]) -> (@own[4])
    plan.collective all_reduce (@own[4]) -> (@own[4]) group 0 reduction sum stream 1
    plan.library "copy" (@own[4]) -> (@b[4])
  }
  plan.call @forward microbatch 0 slots [] waits []
}
