// A parameter with a row for each sample: replicas hold different rows, so that
// its part of the norm is summed over them; that of other parameters is not.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=dp=2 global-batch=4 microbatch=2" --merak-verify-stages | FileCheck %s

// CHECK: pipe.value parameter @rows : tensor<4x8xf32> tensor "rows" layout <[4 over (dp), 8]>
// CHECK: pipe.action U @update
// CHECK-DAG: %[[ROWS:.*]] = train.square_sum %{{.*}} : tensor<4x8xf32>
// CHECK-DAG: %[[W:.*]] = train.square_sum %{{.*}} : tensor<8x8xf32>
// CHECK: %[[WHOLE:.*]] = train.concat {{.*}}%[[W]]
// CHECK: %[[PARTS:.*]] = train.concat {{.*}}%[[ROWS]]
// CHECK: %[[SUM:.*]] = dist.all_reduce %[[PARTS]] over ["dp"] "sum"
// CHECK: %[[ALL:.*]] = train.add %[[WHOLE]], %[[SUM]]
// CHECK: train.clip_factor %[[ALL]]

module attributes {train.global_batch = 4 : i64} {
  train.parameter @rows : tensor<4x8xf32> trainable
  train.parameter @w : tensor<8x8xf32> trainable
  func.func @model(%x: tensor<4x8xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %rows = train.read @rows : tensor<4x8xf32>
    %h = train.add %x, %rows : tensor<4x8xf32>, tensor<4x8xf32>
    %w = train.read @w : tensor<8x8xf32>
    %y = train.einsum "bi,ij->bj" %h, %w : tensor<4x8xf32>, tensor<8x8xf32>
    %q = train.mul %y, %y : tensor<4x8xf32>, tensor<4x8xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4x8xf32>
    return %loss : tensor<f32>
  }
}
