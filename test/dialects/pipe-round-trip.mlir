// Every op and attribute of the pipe dialect is parsed, printed and parsed
// again. Schedules are in pipe/schedule.mlir.
// RUN: merak-opt %s --verify-roundtrip | merak-opt | FileCheck %s

// CHECK: pipe.stage @stage0 index 0 schedule <F0, B0, U> {
pipe.stage @stage0 index 0 schedule <F0, B0, U> {
  // CHECK-NEXT: pipe.value input @x : tensor<4x8xi64> tensor "x" layout <[16 over (mb, dp), 8]>
  pipe.value input @x : tensor<4x8xi64> tensor "x" layout <[16 over (mb, dp), 8]>
  // CHECK-NEXT: pipe.value parameter @w : tensor<8xf32> tensor "w"
  pipe.value parameter @w : tensor<8xf32> tensor "w"
  // CHECK-NEXT: pipe.value constant @table : tensor<3x0xbf16> tensor "table" layout <[3, 0]>
  pipe.value constant @table : tensor<3x0xbf16> tensor "table" layout <[3, 0]>
  // CHECK-NEXT: pipe.value state @w.exp_avg : tensor<8xf32> tensor "w.exp_avg"
  pipe.value state @w.exp_avg : tensor<8xf32> tensor "w.exp_avg"
  // CHECK-NEXT: pipe.value state @w.exp_avg_sq : tensor<8xf32> tensor "w.exp_avg_sq"
  pipe.value state @w.exp_avg_sq : tensor<8xf32> tensor "w.exp_avg_sq"
  // CHECK-NEXT: pipe.value gradient @sum0 : tensor<8xf32> layout <[8] partial(dp)>
  pipe.value gradient @sum0 : tensor<8xf32> layout <[8] partial(dp)>
  // CHECK-NEXT: pipe.value step @loss : tensor<f32> layout <[]>
  pipe.value step @loss : tensor<f32> layout <[]>
  // CHECK-NEXT: pipe.value activation @act0 : tensor<8xf32>
  pipe.value activation @act0 : tensor<8xf32>
  // CHECK-NEXT: pipe.value result @y : tensor<8xf32> tensor "y"
  pipe.value result @y : tensor<8xf32> tensor "y"

  // CHECK: pipe.action F @forward {
  pipe.action F @forward {
    // CHECK-NEXT: %[[W:.*]] = pipe.load @w : tensor<8xf32>
    %0 = pipe.load @w : tensor<8xf32>
    // CHECK-NEXT: pipe.store %[[W]] to @act0 : tensor<8xf32>
    pipe.store %0 to @act0 : tensor<8xf32>
  }
  // CHECK: pipe.action B @backward.1 chunk 1 {
  pipe.action B @backward.1 chunk 1 {
    %0 = pipe.load @act0 : tensor<8xf32>
    // CHECK: pipe.store %{{.*}} to @sum0 accumulate : tensor<8xf32>
    pipe.store %0 to @sum0 accumulate : tensor<8xf32>
    %1 = train.reduce_sum %0 axes [0] keepdims false : tensor<8xf32>
    // CHECK: pipe.store %{{.*}} to @loss accumulate : tensor<f32>
    pipe.store %1 to @loss accumulate : tensor<f32>
  }
  // CHECK: pipe.action U @update {
  pipe.action U @update {
    // CHECK-NEXT: %[[SUM:.*]] = pipe.load @sum0
    %0 = pipe.load @sum0 : tensor<8xf32>
    // CHECK-NEXT: %[[CLIP:.*]] = pipe.load @loss
    %1 = pipe.load @loss : tensor<f32>
    // CHECK-NEXT: pipe.update @w by <adamw, eps = 1.000000e-10> states [@w.exp_avg, @w.exp_avg_sq] gradient %[[SUM]] clip %[[CLIP]] : tensor<8xf32>, tensor<f32>
    pipe.update @w by #train.optimizer<adamw, eps = 1.000000e-10> states [@w.exp_avg, @w.exp_avg_sq] gradient %0 clip %1 : tensor<8xf32>, tensor<f32>
    // CHECK-NEXT: pipe.update @w by <adagrad> states [@w.exp_avg] gradient %[[SUM]] : tensor<8xf32>
    pipe.update @w by #train.optimizer<adagrad> states [@w.exp_avg] gradient %0 : tensor<8xf32>
    // CHECK-NEXT: pipe.update @w by <sgd> states [] gradient %[[SUM]] : tensor<8xf32>
    pipe.update @w by #train.optimizer<sgd> states [] gradient %0 : tensor<8xf32>
    // CHECK-NEXT: pipe.update @w by <sgd, momentum = 5.000000e-01> states [@w.exp_avg] gradient %[[SUM]] : tensor<8xf32>
    pipe.update @w by #train.optimizer<sgd, momentum = 5.000000e-01> states [@w.exp_avg] gradient %0 : tensor<8xf32>
  }
}

// CHECK: pipe.stage @rows index 0 {
pipe.stage @rows index 0 {
  pipe.value parameter @t : tensor<9x4xf32> tensor "t"
  pipe.value step @sum : tensor<3x4xf32>
  pipe.value step @ids : tensor<3xi64>
  pipe.action U @update {
    %0 = pipe.load @sum : tensor<3x4xf32>
    %1 = pipe.load @ids : tensor<3xi64>
    // CHECK: pipe.update @t by <sgd> states [] gradient %{{.*}} at %{{.*}} {split_axis = "tp"} : tensor<3x4xf32>, tensor<3xi64>
    pipe.update @t by #train.optimizer<sgd> states [] gradient %0 at %1 {split_axis = "tp"} : tensor<3x4xf32>, tensor<3xi64>
  }
}

// CHECK: pipe.stage @stage1 index 1 {
pipe.stage @stage1 index 1 {
  pipe.value activation @from0_act0 : tensor<8xf32>
  pipe.value activation @from0_act1 : tensor<8xf32>
}

// CHECK: pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0
pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0
// CHECK: pipe.transfer B @t1 chunk 1 from @stage0::@act0 to @stage1::@from0_act1
pipe.transfer B @t1 chunk 1 from @stage0::@act0 to @stage1::@from0_act1
