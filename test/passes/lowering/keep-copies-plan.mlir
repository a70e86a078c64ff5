// A kept copy is an output of the update in memory that outlives the step; it is made when
// the parameter was loaded, as is that of a constant that nothing else reads.
// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-keep-copies --merak-attach-schedule --merak-convert-to-plan | FileCheck %s

// No action G is left.
// CHECK: plan.program @stage0 {{.*}} schedule <F0, U>
// CHECK: plan.buffer parameters @frozen : tensor<8x8xf32>
// CHECK: plan.buffer parameters @w.as_used : tensor<8x8xbf16>
// CHECK-NEXT: plan.buffer parameters @frozen.as_used : tensor<8x8xbf16>
// CHECK: plan.procedure @stage0.forward
// CHECK: plan.library "einsum" (@w.as_used[8, 8], @frozen.as_used[8, 8])
// CHECK: plan.procedure @stage0.update
// CHECK-NEXT: plan.library "sgd_update" (@sum[8, 8]) -> (@w[8, 8], @w.as_used[8, 8])
// CHECK: plan.procedure @"entry:begin"
// CHECK-NEXT: plan.library "copy" (@w[8, 8]) -> (@w.as_used[8, 8])
// CHECK-NEXT: plan.library "copy" (@frozen[8, 8]) -> (@frozen.as_used[8, 8])
// CHECK-NEXT: }
// CHECK-NOT: entry:flush
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>, train.config = #train.config<mode = train, model = "", global_batch = 8>} {
  train.parameter @w : tensor<8x8xf32> trainable
  train.parameter @frozen : tensor<8x8xf32>
  pipe.stage @stage0 index 0 {
    pipe.value input @x : tensor<8x8xbf16> tensor "x"
    pipe.value parameter @w : tensor<8x8xf32> tensor "w" layout <[8, 8]>
    pipe.value constant @frozen : tensor<8x8xf32> tensor "frozen" layout <[8, 8]>
    pipe.value step @w.as_used : tensor<8x8xbf16>
    pipe.value step @frozen.as_used : tensor<8x8xbf16>
    pipe.value gradient @sum : tensor<8x8xf32>
    pipe.action G @gather {
      %0 = pipe.load @w : tensor<8x8xf32>
      %1 = train.cast %0 : tensor<8x8xf32> to tensor<8x8xbf16>
      pipe.store %1 to @w.as_used : tensor<8x8xbf16>
      %2 = pipe.load @frozen : tensor<8x8xf32>
      %3 = train.cast %2 : tensor<8x8xf32> to tensor<8x8xbf16>
      pipe.store %3 to @frozen.as_used : tensor<8x8xbf16>
    }
    pipe.action F @forward {
      %0 = pipe.load @x : tensor<8x8xbf16>
      %1 = pipe.load @w.as_used : tensor<8x8xbf16>
      %2 = pipe.load @frozen.as_used : tensor<8x8xbf16>
      %3 = train.einsum "ab,bc->ac" %1, %2 : tensor<8x8xbf16>, tensor<8x8xbf16>
      %4 = train.einsum "ab,ac->bc" %0, %3 : tensor<8x8xbf16>, tensor<8x8xbf16>
      %5 = train.cast %4 : tensor<8x8xbf16> to tensor<8x8xf32>
      pipe.store %5 to @sum accumulate : tensor<8x8xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @sum : tensor<8x8xf32>
      pipe.update @w by #train.optimizer<sgd> states [] gradient %0 : tensor<8x8xf32>
    }
  }
}
