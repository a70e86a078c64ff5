// Running statistics: stored by F, not by R, and averaged over replicas in U.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=dp=2 global-batch=8 microbatch=2 recompute=full" --merak-verify-stages | FileCheck %s

// CHECK: train.parameter @running : tensor<4xf32> {{.*}}train.statistic
// CHECK: pipe.value constant @running
// CHECK: pipe.action F @forward
// CHECK: train.batch_mean
// CHECK: %[[U:.*]] = train.track
// CHECK: pipe.store %[[U]] to @running
// CHECK: pipe.action R @recompute
// CHECK: train.batch_mean
// CHECK-NOT: train.track
// CHECK: pipe.action B @backward
// CHECK: train.batch_mean
// CHECK: pipe.action U @update
// CHECK: %[[OWN:.*]] = pipe.load @running
// CHECK: %[[SUM:.*]] = dist.all_reduce %[[OWN]]
// CHECK: %[[HALF:.*]] = train.constant dense<5.000000e-01>
// CHECK: %[[MEAN:.*]] = train.mul %[[SUM]], %[[HALF]]
// CHECK: pipe.store %[[MEAN]] to @running
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 8>} {
  train.parameter @w : tensor<4x4xf32> trainable
  train.parameter @running : tensor<4xf32>
  func.func @model(%x: tensor<8x4xf32> {train.name = "x"}) -> tensor<f32> {
    %w = train.read @w : tensor<4x4xf32>
    %h = train.einsum "bi,ij->bj" %x, %w : tensor<8x4xf32>, tensor<4x4xf32>
    %m = train.batch_mean %h : tensor<8x4xf32>
    %r = train.read @running : tensor<4xf32>
    %u = train.track %m, %r keep 9.0e-01 each 1 : tensor<8x4xf32>, tensor<4xf32>
    %c = train.sub %h, %m : tensor<8x4xf32>, tensor<8x4xf32>
    %s = train.mul %c, %c : tensor<8x4xf32>, tensor<8x4xf32>
    %l = train.reduce_sum %s axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}
