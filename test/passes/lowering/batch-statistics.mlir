// RUN: merak-opt %s --split-input-file --verify-diagnostics --merak-localize --merak-lower-batch-statistics | FileCheck %s

// Sums over the samples that are here: 16 over two replicas and two
// microbatches. The variance of 4 * 9 numbers is unbiased: 0.1 * 36 / 35.
// CHECK: pipe.action F @forward
// CHECK: %[[X:.*]] = pipe.load @x : tensor<4x3xf32>
// CHECK: %[[S:.*]] = train.reduce_sum %[[X]]
// CHECK: %[[Q:.*]] = train.constant dense<2.500000e-01>
// CHECK: %[[A:.*]] = train.mul %[[S]], %[[Q]]
// CHECK: %[[M:.*]] = train.expand %[[A]] : tensor<1x3xf32> to tensor<4x3xf32>
// CHECK: %[[R:.*]] = pipe.load @running
// CHECK: %[[F:.*]] = train.slice %[[M]] starts [0, 0] sizes [1, 3]
// CHECK: %[[V:.*]] = train.reshape %[[F]]
// CHECK: %[[K:.*]] = train.constant dense<0.899999976>
// CHECK: %[[OLD:.*]] = train.mul %[[R]], %[[K]]
// CHECK: %[[P:.*]] = train.constant dense<0.102857143>
// CHECK: %[[NEW:.*]] = train.mul %[[V]], %[[P]]
// CHECK: %[[U:.*]] = train.add
// CHECK: pipe.store %[[U]] to @running
// CHECK-NOT: batch_mean
// CHECK-NOT: train.track
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 1, mb = 2>} {
  pipe.stage @stage0 index 0 schedule <F0, F1> {
    pipe.value input @x : tensor<16x3xf32> tensor "x" layout #dist.layout<[16 over (mb, dp), 3]>
    pipe.value constant @running : tensor<3xf32> tensor "running" layout #dist.layout<[3]>
    pipe.value result @y : tensor<16x3xf32> tensor "y" layout #dist.layout<[16 over (mb, dp), 3]>
    pipe.action F @forward {
      %x = pipe.load @x : tensor<16x3xf32>
      %m = train.batch_mean %x {dist.layouts = [#dist.layout<[16 over (mb, dp), 3]>]} : tensor<16x3xf32>
      %r = pipe.load @running : tensor<3xf32>
      %u = train.track %m, %r keep 9.0e-01 each 9 variance {dist.layouts = [#dist.layout<[3]>]} : tensor<16x3xf32>, tensor<3xf32>
      pipe.store %u to @running : tensor<3xf32>
      pipe.store %m to @y : tensor<16x3xf32>
    }
  }
}

// -----

module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 4>} {
  pipe.stage @stage0 index 0 schedule <F0, F1, F2, F3> {
    pipe.value input @x : tensor<4x3xf32> tensor "x" layout #dist.layout<[4 over (mb), 3]>
    pipe.value constant @running : tensor<3xf32> tensor "running" layout #dist.layout<[3]>
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x3xf32>
      %r = pipe.load @running : tensor<3xf32>
      // expected-error @+1 {{batch norm of one number a channel has no variance; expected larger microbatches (--microbatch)}}
      %u = train.track %x, %r keep 9.0e-01 each 1 variance {dist.layouts = [#dist.layout<[3]>]} : tensor<4x3xf32>, tensor<3xf32>
      pipe.store %u to @running : tensor<3xf32>
    }
  }
}
