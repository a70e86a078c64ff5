// Slices of one id are summed before replicas gather them, where ids are expected to
// repeat.
// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-coalesce-slices --split-input-file | FileCheck %s

// CHECK-LABEL: pipe.action W
// CHECK: %[[IDS:.*]] = pipe.load @ids
// CHECK: dist.all_gather %[[IDS]]
// CHECK: %[[DY:.*]] = pipe.load @dy
// CHECK: %[[ROWS:.*]], %{{.*}} = train.coalesce %[[DY]] at %[[IDS]] size 96 {train.compact
// CHECK: dist.all_gather %[[ROWS]] {{.*}}dist.trim = 0.51
// CHECK-LABEL: pipe.action U
// CHECK: train.coalesce {{.*}}train.block = 4
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 1, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @ids : tensor<4xi64> tensor "ids"
    pipe.value input @dy : tensor<4x8xf32> tensor "dy"
    pipe.value parameter @t : tensor<96x8xf32> tensor "t"
    pipe.value gradient @sum0 : tensor<8x8xf32>
    pipe.value gradient @sum1 : tensor<8xi64>
    pipe.action W @weight {
      %0 = pipe.load @ids : tensor<4xi64>
      %1 = dist.all_gather %0 over ["dp"] dim 0 major 1 minor 1 : tensor<4xi64> to tensor<8xi64>
      pipe.store %1 to @sum1 accumulate : tensor<8xi64>
      %2 = pipe.load @dy : tensor<4x8xf32>
      %3 = dist.all_gather %2 over ["dp"] dim 0 major 1 minor 1 : tensor<4x8xf32> to tensor<8x8xf32>
      pipe.store %3 to @sum0 accumulate : tensor<8x8xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @sum0 : tensor<8x8xf32>
      %1 = pipe.load @sum1 : tensor<8xi64>
      %rows, %unique = train.coalesce %0 at %1 size 96 {train.touched = array<f64: 8.0, 2.88>} : tensor<8x8xf32>, tensor<8xi64> to tensor<8x8xf32>
      pipe.update @t by #train.optimizer<sgd> states [] gradient %rows at %unique : tensor<8x8xf32>, tensor<8xi64>
    }
  }
}

// -----

// The ids of an all-to-all were gathered by the lookup: this rank's are loaded again.
// Rows of as many ids were counted.
// CHECK-LABEL: pipe.action W
// CHECK: pipe.load @dy
// CHECK: %[[IDS:.*]] = pipe.load @ids
// CHECK: %[[ROWS:.*]], %{{.*}} = train.coalesce %{{.*}} at %[[IDS]] size 96 {train.compact
// CHECK: dist.all_to_all %[[ROWS]] {{.*}}dist.trim = 7.500000e-01
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 1, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @ids : tensor<4xi64> tensor "ids"
    pipe.value input @dy : tensor<4x8xf32> tensor "dy"
    pipe.value activation @all : tensor<8xi64>
    pipe.value parameter @t : tensor<96x4xf32> tensor "t"
    pipe.value gradient @sum0 : tensor<8x4xf32>
    pipe.value gradient @sum1 : tensor<8xi64>
    pipe.action F @forward {
      %0 = pipe.load @ids : tensor<4xi64>
      %1 = dist.all_gather %0 over ["dp"] dim 0 major 1 minor 1 : tensor<4xi64> to tensor<8xi64>
      pipe.store %1 to @all : tensor<8xi64>
    }
    pipe.action W @weight {
      %0 = pipe.load @dy : tensor<4x8xf32>
      %1 = dist.all_to_all %0 over ["dp"] dim 0 major 1 minor 1 to 1 major 1 minor 1 : tensor<4x8xf32> to tensor<8x4xf32>
      pipe.store %1 to @sum0 accumulate : tensor<8x4xf32>
      %2 = pipe.load @all : tensor<8xi64>
      pipe.store %2 to @sum1 accumulate : tensor<8xi64>
    }
    pipe.action U @update {
      %0 = pipe.load @sum0 : tensor<8x4xf32>
      %1 = pipe.load @sum1 : tensor<8xi64>
      %rows, %unique = train.coalesce %0 at %1 size 96 {train.touched = array<f64: 4.0, 3.0, 8.0, 5.0>} : tensor<8x4xf32>, tensor<8xi64> to tensor<8x4xf32>
      pipe.update @t by #train.optimizer<sgd> states [] gradient %rows at %unique : tensor<8x4xf32>, tensor<8xi64>
    }
  }
}

// -----

// Nearly all ids are expected to be different: slices are sent as they are.
// CHECK-LABEL: pipe.action W
// CHECK-NOT: train.compact
// CHECK-NOT: dist.trim
// CHECK-LABEL: pipe.action U
// CHECK-NOT: train.block
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 1, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @ids : tensor<4xi64> tensor "ids"
    pipe.value input @dy : tensor<4x8xf32> tensor "dy"
    pipe.value parameter @t : tensor<96x8xf32> tensor "t"
    pipe.value gradient @sum0 : tensor<8x8xf32>
    pipe.value gradient @sum1 : tensor<8xi64>
    pipe.action W @weight {
      %0 = pipe.load @ids : tensor<4xi64>
      %1 = dist.all_gather %0 over ["dp"] dim 0 major 1 minor 1 : tensor<4xi64> to tensor<8xi64>
      pipe.store %1 to @sum1 accumulate : tensor<8xi64>
      %2 = pipe.load @dy : tensor<4x8xf32>
      %3 = dist.all_gather %2 over ["dp"] dim 0 major 1 minor 1 : tensor<4x8xf32> to tensor<8x8xf32>
      pipe.store %3 to @sum0 accumulate : tensor<8x8xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @sum0 : tensor<8x8xf32>
      %1 = pipe.load @sum1 : tensor<8xi64>
      %rows, %unique = train.coalesce %0 at %1 size 96 {train.touched = array<f64: 8.0, 7.9>} : tensor<8x8xf32>, tensor<8xi64> to tensor<8x8xf32>
      pipe.update @t by #train.optimizer<sgd> states [] gradient %rows at %unique : tensor<8x8xf32>, tensor<8xi64>
    }
  }
}
