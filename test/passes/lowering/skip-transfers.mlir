// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s

// A value that stage 1 reads in B only, while all of its F come first: stage 0 has
// two buffers for it, so that three of five microbatches must find room on stage 1
// before any B has run. With two slots F4 of stage 0 would wait for F2's send, that
// one for B0 of stage 1, and B0 for F4.
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, mb = 5>} {
  // CHECK-LABEL: plan.program @stage0
  // CHECK: plan.buffer communication @skip : tensor<4x8xf32> slots 2
  // CHECK-LABEL: plan.program @stage1
  // CHECK: plan.buffer communication @from0_out : tensor<4x8xf32> slots 2
  // CHECK: plan.buffer communication @from0_skip : tensor<4x8xf32> slots 3
  pipe.stage @stage0 index 0 schedule <F0, F1, F2, F3, F4> {
    pipe.value input @x : tensor<4x8xf32> tensor "x" layout #dist.layout<[20 over (mb), 8]>
    pipe.value activation @out : tensor<4x8xf32> layout #dist.layout<[20 over (mb), 8]>
    pipe.value activation @skip : tensor<4x8xf32> layout #dist.layout<[20 over (mb), 8]>
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x8xf32>
      %y = train.relu %x : tensor<4x8xf32>
      pipe.store %y to @out : tensor<4x8xf32>
      %z = train.mul %y, %y : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %z to @skip : tensor<4x8xf32>
    }
  }
  pipe.stage @stage1 index 1 schedule <F0, F1, F2, F3, F4, B0, B1, B2, B3, B4> {
    pipe.value activation @from0_out : tensor<4x8xf32> layout #dist.layout<[20 over (mb), 8]>
    pipe.value activation @from0_skip : tensor<4x8xf32> layout #dist.layout<[20 over (mb), 8]>
    pipe.value activation @kept : tensor<4x8xf32> layout #dist.layout<[20 over (mb), 8]>
    pipe.value step @sum : tensor<4x8xf32> layout #dist.layout<[4, 8]>
    pipe.action F @forward {
      %x = pipe.load @from0_out : tensor<4x8xf32>
      %y = train.relu %x : tensor<4x8xf32>
      pipe.store %y to @kept : tensor<4x8xf32>
    }
    pipe.action B @backward {
      %y = pipe.load @kept : tensor<4x8xf32>
      %s = pipe.load @from0_skip : tensor<4x8xf32>
      %p = train.mul %y, %s : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %p to @sum accumulate : tensor<4x8xf32>
    }
  }
  pipe.transfer F @t0 from @stage0::@out to @stage1::@from0_out
  pipe.transfer F @t1 from @stage0::@skip to @stage1::@from0_skip
}
