// A microbatch as two halves: values, transfers and bodies stand twice, the
// halves are interleaved where there are collectives, sums take the first half
// first; without the attribute nothing happens.
// RUN: merak-opt %s --merak-sub-pipeline | FileCheck %s
// RUN: merak-opt %s --merak-sub-pipeline --merak-verify-shards --merak-verify-stages > /dev/null
// RUN: sed 's/, pipe.tp_overlap = 3 : i64//' %s | merak-opt --merak-sub-pipeline | FileCheck %s --check-prefix=OFF

// OFF-NOT: half
// OFF: pipe.transfer F @t0 from
// OFF-NOT: submicrobatch

// CHECK: module attributes {dist.mesh = {{.*}}mb = 4>, pipe.submicrobatches = 2 : i64}
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 2, mb = 4>, pipe.tp_overlap = 3 : i64} {
  // CHECK-LABEL: pipe.stage @stage0
  pipe.stage @stage0 index 0 {
    // CHECK-NEXT: pipe.value input @x : tensor<4x8xf32>
    pipe.value input @x : tensor<4x8xf32> tensor "x" layout #dist.layout<[16 over (mb), 8]>
    pipe.value constant @w1 : tensor<8x8xf32> tensor "w1" layout #dist.layout<[8, 16 over (tp)]>
    pipe.value constant @w2 : tensor<8x8xf32> tensor "w2" layout #dist.layout<[16 over (tp), 8]>
    // CHECK: pipe.value activation @act0.half0
    // CHECK-NEXT: pipe.value activation @act0.half1
    pipe.value activation @act0 : tensor<4x8xf32> layout #dist.layout<[16 over (mb), 8]>
    // CHECK-NEXT: pipe.value gradient @sum
    pipe.value gradient @sum : tensor<8x8xf32> layout #dist.layout<[8, 8]>

    // The all-reduce of the first half runs under the computation of the
    // second; parameters are loaded once, inputs for each half.
    // CHECK: pipe.action F @forward
    // CHECK-NEXT: %[[X0:.*]] = pipe.load @x :
    // CHECK-NEXT: %[[W1:.*]] = pipe.load @w1
    // CHECK-NEXT: train.einsum "bi,ij->bj" %[[X0]], %[[W1]]
    // CHECK: %[[P0:.*]] = train.einsum
    // CHECK-NEXT: %[[Y0:.*]] = dist.all_reduce %[[P0]]
    // CHECK: %[[X1:.*]] = pipe.load @x {pipe.submicrobatch = 1 : i64}
    // CHECK-NEXT: train.einsum "bi,ij->bj" %[[X1]], %[[W1]] {{.*}}pipe.submicrobatch = 1
    // CHECK: %[[P1:.*]] = train.einsum
    // CHECK-NEXT: %[[Y1:.*]] = dist.all_reduce %[[P1]]{{.*}}pipe.submicrobatch = 1
    // CHECK: %[[R0:.*]] = train.add %[[Y0]], %[[X0]]
    // CHECK: %[[R1:.*]] = train.add %[[Y1]], %[[X1]] {{.*}}pipe.submicrobatch = 1 : i64
    // CHECK: pipe.store %[[R0]] to @act0.half0 :
    // CHECK: pipe.store %[[R1]] to @act0.half1 {pipe.submicrobatch = 1 : i64}
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x8xf32>
      %w1 = pipe.load @w1 : tensor<8x8xf32>
      %h = train.einsum "bi,ij->bj" %x, %w1 {dist.layouts = [#dist.layout<[16 over (mb), 16 over (tp)]>]} : tensor<4x8xf32>, tensor<8x8xf32>
      %w2 = pipe.load @w2 : tensor<8x8xf32>
      %p = train.einsum "bi,ij->bj" %h, %w2 {dist.layouts = [#dist.layout<[16 over (mb), 8] partial(tp)>]} : tensor<4x8xf32>, tensor<8x8xf32>
      %y = dist.all_reduce %p over ["tp"] sum {dist.from = #dist.layout<[16 over (mb), 8] partial(tp)>, dist.layouts = [#dist.layout<[16 over (mb), 8]>]} : tensor<4x8xf32>
      %r = train.add %y, %x {dist.layouts = [#dist.layout<[16 over (mb), 8]>]} : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %r to @act0 : tensor<4x8xf32>
    }
    // No collectives: one half after the other.
    // CHECK: pipe.action W @weight
    // CHECK: pipe.load @act0.half0
    // CHECK-NEXT: train.einsum
    // CHECK-NEXT: pipe.store %{{.*}} to @sum accumulate :
    // CHECK-NEXT: pipe.load @x {pipe.submicrobatch = 1 : i64}
    // CHECK-NEXT: pipe.load @act0.half1
    // CHECK-NEXT: train.einsum
    // CHECK-NEXT: pipe.store %{{.*}} to @sum accumulate {pipe.submicrobatch = 1 : i64}
    // CHECK-NEXT: }
    pipe.action W @weight {
      %x = pipe.load @x : tensor<4x8xf32>
      %r = pipe.load @act0 : tensor<4x8xf32>
      %dw = train.einsum "bi,bj->ij" %x, %r {dist.layouts = [#dist.layout<[8, 8] partial(mb)>]} : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %dw to @sum accumulate : tensor<8x8xf32>
    }
    // The update runs once a step.
    // CHECK: pipe.action U @update
    // CHECK-NEXT: pipe.load @sum
    // CHECK-NEXT: }
    pipe.action U @update {
      %g = pipe.load @sum : tensor<8x8xf32>
    }
  }
  // CHECK-LABEL: pipe.stage @stage1
  pipe.stage @stage1 index 1 {
    // CHECK-NEXT: pipe.value activation @from0.half0
    // CHECK-NEXT: pipe.value activation @from0.half1
    pipe.value activation @from0 : tensor<4x8xf32> layout #dist.layout<[16 over (mb), 8]>
    // An output of every microbatch is one of each half, in order.
    // CHECK-NEXT: pipe.value result @y.half0 : tensor<4x8xf32> tensor "y" layout <[16 over (mb), 8]>
    // CHECK-NEXT: pipe.value result @y.half1 : tensor<4x8xf32> tensor "y" layout <[16 over (mb), 8]>
    pipe.value result @y : tensor<4x8xf32> tensor "y" layout #dist.layout<[16 over (mb), 8]>
    // CHECK: pipe.store %{{.*}} to @y.half0 :
    // CHECK: pipe.store %{{.*}} to @y.half1 {pipe.submicrobatch = 1 : i64}
    pipe.action F @forward {
      %x = pipe.load @from0 : tensor<4x8xf32>
      pipe.store %x to @y : tensor<4x8xf32>
    }
  }
  // CHECK: pipe.transfer F @t0.half0 from @stage0::@act0.half0 to @stage1::@from0.half0
  // CHECK-NEXT: pipe.transfer F @t0.half1 from @stage0::@act0.half1 to @stage1::@from0.half1
  pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0
}
