// A gradient whose sum the backward pass does not hide is summed, and applied, by the next
// step. That of the first layer would be waited for there, too.
// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-delay-gradients=overlapped=false | FileCheck %s
// RUN: merak-opt %s --merak-delay-gradients | FileCheck %s --check-prefix=HIDDEN

// Before the first step nothing is left.
// CHECK: pipe.value carried @delayed.factor : tensor<f32> {pipe.initial = 0x7FF8000000000000 : f64}
// CHECK: pipe.value gradient @sum0
// No memory besides: microbatches add up in what is left.
// CHECK: pipe.value carried @w.delayed.gradient : tensor<256x256xf32> layout <[256, 256] partial(dp)> {pipe.initial = 0 : i64}
// CHECK-NOT: @sum1
// It is no norm that a log should have.
// CHECK: pipe.value result @grad_norm : tensor<f32> tensor "replica_norm"
// CHECK-LABEL: pipe.action W
// CHECK: pipe.store %{{.*}} to @w.delayed.gradient accumulate
// CHECK-LABEL: pipe.action G
// CHECK: %[[LEFT:.*]] = pipe.load @w.delayed.gradient {train.delayed}
// CHECK: %[[BEFORE:.*]] = pipe.load @delayed.factor {train.delayed}
// CHECK: %[[SUM:.*]] = dist.all_reduce %[[LEFT]] over ["dp"] sum {train.delayed}
// CHECK: pipe.update @w by <sgd> states [] gradient %[[SUM]] clip %[[BEFORE]] {train.delayed}
// CHECK-LABEL: pipe.action U
// CHECK: %[[V:.*]] = dist.all_reduce {{.*}}train.gradient_of = "v"
// CHECK-NOT: train.gradient_of
// Squares are those of this replica, then of all.
// CHECK: %[[OWN:.*]] = pipe.load @w.delayed.gradient :
// CHECK: %[[SQUARES:.*]] = train.square_sum %[[OWN]] {dist.own_summand}
// CHECK: %[[ALL:.*]] = dist.all_reduce %[[SQUARES]] over ["dp"] sum
// CHECK: train.concat %{{.*}}, %[[ALL]]
// CHECK: %{{.*}}, %[[FACTOR:.*]] = train.clip_factor
// CHECK: pipe.update @v
// CHECK-NOT: pipe.update @w
// CHECK: pipe.store %[[FACTOR]] to @delayed.factor

// HIDDEN-NOT: train.delayed
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 1, mb = 2>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @x : tensor<256x256xf32> tensor "x"
    pipe.value parameter @v : tensor<256x256xf32> tensor "v"
    pipe.value parameter @w : tensor<256x256xf32> tensor "w"
    pipe.value activation @h : tensor<256x256xf32>
    pipe.value activation @g : tensor<256x256xf32>
    pipe.value gradient @sum0 : tensor<256x256xf32> layout <[256, 256] partial(dp)>
    pipe.value gradient @sum1 : tensor<256x256xf32> layout <[256, 256] partial(dp)>
    pipe.value result @grad_norm : tensor<f32> tensor "grad_norm"
    pipe.action F @forward {
      %0 = pipe.load @x : tensor<256x256xf32>
      %1 = pipe.load @v : tensor<256x256xf32>
      %2 = train.einsum "ab,bc->ac" %0, %1 : tensor<256x256xf32>, tensor<256x256xf32>
      pipe.store %2 to @h : tensor<256x256xf32>
      %3 = pipe.load @w : tensor<256x256xf32>
      %4 = train.einsum "ab,bc->ac" %2, %3 : tensor<256x256xf32>, tensor<256x256xf32>
      pipe.store %4 to @g : tensor<256x256xf32>
    }
    pipe.action W @weight {
      %0 = pipe.load @h : tensor<256x256xf32>
      %1 = pipe.load @g : tensor<256x256xf32>
      %2 = train.einsum "ab,ac->bc" %0, %1 {dist.layouts = [#dist.layout<[256, 256] partial(mb, dp)>]} : tensor<256x256xf32>, tensor<256x256xf32>
      pipe.store %2 to @sum1 accumulate : tensor<256x256xf32>
      %3 = pipe.load @x : tensor<256x256xf32>
      %4 = train.einsum "ab,ac->bc" %3, %1 {dist.layouts = [#dist.layout<[256, 256] partial(mb, dp)>]} : tensor<256x256xf32>, tensor<256x256xf32>
      pipe.store %4 to @sum0 accumulate : tensor<256x256xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @sum0 : tensor<256x256xf32>
      %1 = dist.all_reduce %0 over ["dp"] sum {train.gradient_of = "v"} : tensor<256x256xf32>
      %2 = pipe.load @sum1 : tensor<256x256xf32>
      %3 = dist.all_reduce %2 over ["dp"] sum {train.gradient_of = "w"} : tensor<256x256xf32>
      %4 = train.square_sum %1 : tensor<256x256xf32> -> tensor<1xf32>
      %5 = train.square_sum %3 : tensor<256x256xf32> -> tensor<1xf32>
      %6 = train.concat %4, %5 axis 0 : tensor<1xf32>, tensor<1xf32>
      %norm, %factor = train.clip_factor %6 max_norm 1.0e+30 : tensor<2xf32> -> tensor<f32>, tensor<f32>
      pipe.store %norm to @grad_norm : tensor<f32>
      pipe.update @v by #train.optimizer<sgd> states [] gradient %1 clip %factor : tensor<256x256xf32>, tensor<f32>
      pipe.update @w by #train.optimizer<sgd> states [] gradient %3 clip %factor : tensor<256x256xf32>, tensor<f32>
    }
  }
}
