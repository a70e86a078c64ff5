// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan --merak-assign-memory --merak-insert-events | FileCheck %s

// "r" starts when the gradient is there: B's receive is a call of its own in
// front of it. "R" only follows its F; the receive then stands before B.
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, mb = 2>} {
  // CHECK-LABEL: plan.program @stage0
  // CHECK: plan.procedure @stage0.recompute action R
  // CHECK-NOT: plan.recv
  // CHECK: plan.procedure @stage0.backward action B
  // CHECK-NOT: plan.recv
  // CHECK: plan.procedure @stage0.backward.receive action B
  // CHECK-NEXT: plan.recv "t1" () -> (@from1[4, 8]) peer {pp = 1 : i64} stream 3

  // CHECK: plan.call @stage0.forward microbatch 0
  // CHECK-NEXT: plan.call @stage0.forward microbatch 1
  // CHECK-NEXT: plan.call @stage0.backward.receive microbatch 0
  // CHECK-NEXT: plan.call @stage0.recompute microbatch 0 slots [{{.*}}] waits [0, 3, 3]
  // CHECK-NEXT: plan.call @stage0.backward microbatch 0
  // CHECK-NEXT: plan.call @stage0.recompute microbatch 1 slots [{{.*}}] waits []
  // CHECK-NEXT: plan.call @stage0.backward.receive microbatch 1
  // CHECK-NEXT: plan.call @stage0.backward microbatch 1 slots [{{.*}}] waits [0, 3, 7]
  pipe.stage @stage0 index 0 schedule <F0, f1, r0, B0, R1, B1> {
    pipe.value input @x : tensor<4x8xf32> tensor "x" layout #dist.layout<[8 over (mb), 8]>
    pipe.value activation @out : tensor<4x8xf32> layout #dist.layout<[8 over (mb), 8]>
    pipe.value activation @again : tensor<4x8xf32> layout #dist.layout<[8 over (mb), 8]>
    pipe.value activation @from1 : tensor<4x8xf32> layout #dist.layout<[8 over (mb), 8]>
    pipe.value step @sum : tensor<4x8xf32> layout #dist.layout<[4, 8]>
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x8xf32>
      %y = train.relu %x : tensor<4x8xf32>
      pipe.store %y to @out : tensor<4x8xf32>
    }
    pipe.action R @recompute {
      %x = pipe.load @x : tensor<4x8xf32>
      %y = train.relu %x : tensor<4x8xf32>
      pipe.store %y to @again : tensor<4x8xf32>
    }
    pipe.action B @backward {
      %y = pipe.load @again : tensor<4x8xf32>
      %dy = pipe.load @from1 : tensor<4x8xf32>
      %p = train.mul %y, %dy : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %p to @sum accumulate : tensor<4x8xf32>
    }
  }
  pipe.stage @stage1 index 1 schedule <F0, B0, F1, B1> {
    pipe.value activation @from0 : tensor<4x8xf32> layout #dist.layout<[8 over (mb), 8]>
    pipe.value activation @kept : tensor<4x8xf32> layout #dist.layout<[8 over (mb), 8]>
    pipe.value activation @back : tensor<4x8xf32> layout #dist.layout<[8 over (mb), 8]>
    pipe.action F @forward {
      %x = pipe.load @from0 : tensor<4x8xf32>
      %y = train.relu %x : tensor<4x8xf32>
      pipe.store %y to @kept : tensor<4x8xf32>
    }
    pipe.action B @backward {
      %y = pipe.load @kept : tensor<4x8xf32>
      %p = train.mul %y, %y : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %p to @back : tensor<4x8xf32>
    }
  }
  pipe.transfer F @t0 from @stage0::@out to @stage1::@from0
  pipe.transfer B @t1 from @stage1::@back to @stage0::@from1
}
