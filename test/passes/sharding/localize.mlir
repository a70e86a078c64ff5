// From the global view to one rank: shapes, positions, split tables, frozen
// tables that are split.
// RUN: merak-opt %s --merak-localize | FileCheck %s

// CHECK: train.parameter @constant0 : tensor<4xf32> = dense<[1.0
// CHECK-LABEL: pipe.stage @stage0
// CHECK: pipe.value constant @constant0 : tensor<2xf32> tensor "constant0" layout <[4 over (tp)]>
// CHECK: pipe.value input @qkv : tensor<2x96xf32>
// CHECK: train.slice %{{.*}} starts [0, 32] sizes [2, 32] steps [1, 1]
// CHECK: train.gather {{.*}}rows = 10 : i64, split_axis = "tp"
// CHECK-SAME: tensor<5x4xf32>, tensor<2xi64>
// CHECK: train.constant dense<2.000000e+00> : tensor<2x32xf32>
// CHECK: pipe.load @constant0 : tensor<2xf32>
// Rows of 32 among 64; the partial sums of both ranks have the same mask.
// CHECK: train.dropout %{{.*}} ratio 5.000000e-01 id 3 {axes = ["tp", "dp", "mb"], {{.*}}extents = array<i64: 2, 32>, scales = array<i64: 32, 128, 256>, strides = array<i64: 64, 1>} : tensor<2x32xf32>
// CHECK: train.dropout %{{.*}} ratio 5.000000e-01 id 4 {axes = ["dp", "mb"], {{.*}}extents = array<i64: 8>, scales = array<i64: 8, 16>, strides = array<i64: 1>} : tensor<2x4xf32>
// CHECK: dist.all_gather %{{.*}} over ["tp"] dim 1 major 1 minor 16{{.*}}tensor<2x32xf32> to tensor<2x64xf32>
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 2, mb = 2>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @qkv : tensor<8x192xf32> tensor "qkv" layout #dist.layout<[8 over (mb, dp), 3 * 4 over (tp) * 16]>
    pipe.value input @ids : tensor<8xi64> tensor "ids" layout #dist.layout<[8 over (mb, dp)]>
    pipe.value parameter @table : tensor<10x4xf32> tensor "table" layout #dist.layout<[10 over (tp), 4]>
    pipe.action F @forward {
      %0 = pipe.load @qkv : tensor<8x192xf32>
      %1 = train.slice %0 starts [0, 64] sizes [8, 64] steps [1, 1] {dist.layouts = [#dist.layout<[8 over (mb, dp), 4 over (tp) * 16]>]} : tensor<8x192xf32>
      %2 = pipe.load @table : tensor<10x4xf32>
      %3 = pipe.load @ids : tensor<8xi64>
      %4 = train.gather %2[%3] axis 0 {dist.layouts = [#dist.layout<[8 over (mb, dp), 4] partial(tp)>]} : tensor<10x4xf32>, tensor<8xi64>
      %5 = train.constant dense<2.0> : tensor<8x64xf32> {dist.layouts = [#dist.layout<[8 over (mb, dp), 4 over (tp) * 16]>]}
      %6 = train.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32> {dist.layouts = [#dist.layout<[4 over (tp)]>]}
      %8 = train.dropout %1 ratio 5.0e-01 id 3 {dist.layouts = [#dist.layout<[8 over (mb, dp), 4 over (tp) * 16]>]} : tensor<8x64xf32>
      %9 = train.dropout %4 ratio 5.0e-01 id 4 {dist.layouts = [#dist.layout<[8 over (mb, dp), 4] partial(tp)>]} : tensor<8x4xf32>
      %7 = dist.all_gather %1 over ["tp"] dim 1 major 1 minor 16 {dist.from = #dist.layout<[8 over (mb, dp), 4 over (tp) * 16]>, dist.factor = 0 : i64, dist.layouts = [#dist.layout<[8 over (mb, dp), 64]>]} : tensor<8x64xf32> to tensor<8x64xf32>
    }
  }
}
