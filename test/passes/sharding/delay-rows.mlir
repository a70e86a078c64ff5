// Rows that no lookup of the next step needs are exchanged and updated beside it.
// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-delay-rows --split-input-file | FileCheck %s

// CHECK-DAG: pipe.value input @ids.next : tensor<8xi64> tensor "ids" layout <[8]> {pipe.ahead = 1 : i64}
// CHECK-DAG: pipe.value carried @t.delayed.rows : tensor<4x8xf32> {pipe.initial = 0 : i64}
// CHECK-DAG: pipe.value carried @t.delayed.ids : tensor<8xi64> {pipe.initial = 96 : i64}
// CHECK-DAG: pipe.value carried @t.delayed.factor : tensor<f32>
// CHECK-LABEL: pipe.action W
// CHECK: %[[DY:.*]] = pipe.load @dy
// CHECK: %[[PLACED:.*]] = dist.place %[[DY]] over ["mb"] dim 0
// CHECK: pipe.store %[[PLACED]] to @t.slices accumulate
// CHECK-LABEL: pipe.action G
// CHECK: %[[LEFT:.*]] = pipe.load @t.delayed.rows
// CHECK: %[[ALL:.*]] = dist.all_gather %[[LEFT]] {{.*}}dist.trim = {{.*}}train.delayed
// CHECK: pipe.store %[[ALL]] to @t.delayed.arrived
// CHECK-LABEL: pipe.action U
// CHECK: %[[IDS:.*]] = pipe.load @sum1
// The ids of one replica, one behind the other.
// CHECK: train.transpose {{.*}} perm [1, 0, 2]
// CHECK: %[[NEXT:.*]] = pipe.load @ids.next
// CHECK: %[[PRIOR:.*]], %[[DELAYED:.*]] = train.split_ids %{{.*}} by %[[NEXT]] size 96
// CHECK: %[[OWN:.*]] = pipe.load @t.slices
// CHECK: %[[SUMS:.*]], %{{.*}} = train.coalesce %[[OWN]] at %{{.*}} size 96 {train.compact}
// CHECK: %[[GATHERED:.*]] = dist.all_gather %[[SUMS]] {{.*}}dist.trim
// Beside that, what the step before left.
// CHECK: %[[CAME:.*]] = pipe.load @t.delayed.arrived
// CHECK: %[[OF:.*]] = pipe.load @t.delayed.ids
// CHECK: %[[BEFORE:.*]] = pipe.load @t.delayed.factor
// CHECK: %[[LATE:.*]], %[[LATEIDS:.*]] = train.coalesce %[[CAME]] at %[[OF]] size 96 {train.block = 4 : i64, train.delayed}
// CHECK: pipe.update @t by <sgd> states [] gradient %[[LATE]] clip %[[BEFORE]] at %[[LATEIDS]] {train.delayed}
// CHECK: %[[LATER:.*]], %{{.*}} = train.coalesce %[[OWN]] at %{{.*}} size 96 {train.compact}
// What is delayed counts in the norm.
// CHECK: %[[MORE:.*]] = train.square_sum %[[LATER]]
// CHECK: %[[MOREALL:.*]] = dist.all_reduce %[[MORE]] over ["dp"] sum
// CHECK: pipe.store %[[LATER]] to @t.delayed.rows
// CHECK: pipe.store %[[DELAYED]] to @t.delayed.ids
// CHECK: %[[ROWS:.*]], %{{.*}} = train.coalesce %[[GATHERED]] at %[[PRIOR]] size 96 {train.block = 4 : i64}
// CHECK: %[[NORM:.*]] = train.square_sum %[[ROWS]]
// CHECK: train.add %[[NORM]], %[[MOREALL]]
// CHECK: pipe.store %{{.*}} to @t.delayed.factor
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 1, mb = 2>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @ids : tensor<2xi64> tensor "ids"
    pipe.value input @dy : tensor<2x8xf32> tensor "dy"
    pipe.value parameter @t : tensor<96x8xf32> tensor "t"
    pipe.value gradient @sum0 : tensor<8x8xf32>
    pipe.value gradient @sum1 : tensor<8xi64>
    pipe.action W @weight {
      %0 = pipe.load @ids : tensor<2xi64>
      %1 = dist.all_gather %0 over ["dp"] dim 0 major 1 minor 1 : tensor<2xi64> to tensor<4xi64>
      %2 = dist.place %1 over ["mb"] dim 0 major 1 minor 1 : tensor<4xi64> to tensor<8xi64>
      pipe.store %2 to @sum1 accumulate : tensor<8xi64>
      %3 = pipe.load @dy : tensor<2x8xf32>
      %4 = dist.all_gather %3 over ["dp"] dim 0 major 1 minor 1 : tensor<2x8xf32> to tensor<4x8xf32>
      %5 = dist.place %4 over ["mb"] dim 0 major 1 minor 1 : tensor<4x8xf32> to tensor<8x8xf32>
      pipe.store %5 to @sum0 accumulate : tensor<8x8xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @sum0 : tensor<8x8xf32>
      %1 = pipe.load @sum1 : tensor<8xi64>
      %rows, %unique = train.coalesce %0 at %1 size 96 {train.delayed = {ids = tensor<8xi64>}} : tensor<8x8xf32>, tensor<8xi64> to tensor<8x8xf32>
      %2 = train.square_sum %rows : tensor<8x8xf32> -> tensor<1xf32>
      %norm, %factor = train.clip_factor %2 max_norm 1.0e+30 : tensor<1xf32> -> tensor<f32>, tensor<f32>
      pipe.update @t by #train.optimizer<sgd> states [] gradient %rows clip %factor at %unique : tensor<8x8xf32>, tensor<f32>, tensor<8xi64>
    }
  }
}

// -----

// Slices of one replica go nowhere.
// CHECK-LABEL: pipe.action U
// CHECK: train.coalesce
// CHECK-NOT: train.split_ids
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @ids : tensor<8xi64> tensor "ids"
    pipe.value input @dy : tensor<8x8xf32> tensor "dy"
    pipe.value parameter @t : tensor<96x8xf32> tensor "t"
    pipe.value gradient @sum0 : tensor<8x8xf32>
    pipe.action W @weight {
      %0 = pipe.load @dy : tensor<8x8xf32>
      pipe.store %0 to @sum0 accumulate : tensor<8x8xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @sum0 : tensor<8x8xf32>
      %1 = pipe.load @ids : tensor<8xi64>
      %rows, %unique = train.coalesce %0 at %1 size 96 {train.delayed = {ids = tensor<8xi64>}} : tensor<8x8xf32>, tensor<8xi64> to tensor<8x8xf32>
      %2 = train.square_sum %rows : tensor<8x8xf32> -> tensor<1xf32>
      %norm, %factor = train.clip_factor %2 max_norm 1.0e+30 : tensor<1xf32> -> tensor<f32>, tensor<f32>
      pipe.update @t by #train.optimizer<sgd> states [] gradient %rows clip %factor at %unique : tensor<8x8xf32>, tensor<f32>, tensor<8xi64>
    }
  }
}
