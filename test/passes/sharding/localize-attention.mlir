// A rank has the second half of 8 queries: which keys each of them sees follows
// from its coordinate. Without causal masks nothing has to be known.
// RUN: merak-opt %s --merak-localize | FileCheck %s

// CHECK-LABEL: pipe.stage @stage0
// CHECK: train.attention %{{.*}}, %{{.*}}, %{{.*}} scale 1.000000e+00 causal {{{.*}}queries = 8 : i64, split_axis = "tp"} : tensor<2x4x1x4xf32>, tensor<2x8x1x4xf32>, tensor<2x8x1x4xf32>
// CHECK: train.attention %{{.*}}, %{{.*}}, %{{.*}} scale 1.000000e+00 {
// CHECK-NOT: queries
// CHECK-SAME: tensor<2x4x1x4xf32>
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 2, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @q : tensor<2x8x1x4xf32> tensor "q" layout #dist.layout<[2, 8 over (tp), 1, 4]>
    pipe.value input @k : tensor<2x8x1x4xf32> tensor "k" layout #dist.layout<[2, 8, 1, 4]>
    pipe.action F @forward {
      %0 = pipe.load @q : tensor<2x8x1x4xf32>
      %1 = pipe.load @k : tensor<2x8x1x4xf32>
      %2:2 = train.attention %0, %1, %1 scale 1.0 causal {dist.layouts = [#dist.layout<[2, 8 over (tp), 1, 4]>, #dist.layout<[2, 1, 8 over (tp)]>]} : tensor<2x8x1x4xf32>, tensor<2x8x1x4xf32>, tensor<2x8x1x4xf32> -> tensor<2x8x1x4xf32>, tensor<2x1x8xf32>
      %3:2 = train.attention %0, %1, %1 scale 1.0 {dist.layouts = [#dist.layout<[2, 8 over (tp), 1, 4]>, #dist.layout<[2, 1, 8 over (tp)]>]} : tensor<2x8x1x4xf32>, tensor<2x8x1x4xf32>, tensor<2x8x1x4xf32> -> tensor<2x8x1x4xf32>, tensor<2x1x8xf32>
    }
  }
}
