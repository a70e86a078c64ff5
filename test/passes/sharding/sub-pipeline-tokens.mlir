// One sample, halved along its tokens: values of a layout over "sub" stand
// twice, what needs all tokens runs once between a join and slices, sums over
// the halves are formed in accumulators.
// RUN: merak-opt %s --merak-sub-pipeline | FileCheck %s
// RUN: merak-opt %s --merak-sub-pipeline --merak-verify-shards --merak-verify-stages > /dev/null

// CHECK: module attributes {dist.mesh = {{.*}}sub = 2>}
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 2, mb = 4, sub = 2>, pipe.tp_overlap = 3 : i64} {
  pipe.stage @stage0 index 0 {
    // CHECK: pipe.value input @x : tensor<1x4x8xf32>
    pipe.value input @x : tensor<1x4x8xf32> tensor "x" layout #dist.layout<[4 over (mb), 4, 8]>
    pipe.value constant @w1 : tensor<8x8xf32> tensor "w1" layout #dist.layout<[8, 16 over (tp)]>
    pipe.value constant @w2 : tensor<8x8xf32> tensor "w2" layout #dist.layout<[16 over (tp), 8]>
    // CHECK: pipe.value activation @act0.half0 : tensor<1x2x8xf32>
    // CHECK-NEXT: pipe.value activation @act0.half1 : tensor<1x2x8xf32>
    pipe.value activation @act0 : tensor<1x2x8xf32> layout #dist.layout<[4 over (mb), 4 over (sub), 8]>
    // CHECK-NEXT: pipe.value gradient @sum
    pipe.value gradient @sum : tensor<8x8xf32> layout #dist.layout<[8, 8]>

    // CHECK: pipe.action F @forward
    // CHECK-NEXT: %[[X:.*]] = pipe.load @x :
    // CHECK-NEXT: %[[X0:.*]] = train.slice %[[X]] starts [0, 0, 0] sizes [1, 2, 8]
    // CHECK-NEXT: %[[X1:.*]] = train.slice %[[X]] starts [0, 2, 0] sizes [1, 2, 8]
    // CHECK-NEXT: %[[W1:.*]] = pipe.load @w1
    // CHECK-NEXT: %[[H0:.*]] = train.einsum "bti,ij->btj" %[[X0]], %[[W1]]
    // CHECK-NEXT: %[[H1:.*]] = train.einsum "bti,ij->btj" %[[X1]], %[[W1]]
    // CHECK-NEXT: %[[H:.*]] = train.concat %[[H0]], %[[H1]] axis 1
    // CHECK-NEXT: %[[S:.*]] = train.softmax %[[H]] axis 1
    // CHECK-NOT: train.softmax
    // CHECK: %[[S0:.*]] = train.slice %[[S]] starts [0, 0, 0] sizes [1, 2, 8]
    // CHECK-NEXT: %[[S1:.*]] = train.slice %[[S]] starts [0, 2, 0] sizes [1, 2, 8]
    // CHECK: %[[P0:.*]] = train.einsum "bti,ij->btj" %[[S0]]
    // CHECK-NEXT: dist.all_reduce %[[P0]] over ["tp"]
    // CHECK-NEXT: %[[P1:.*]] = train.einsum "bti,ij->btj" %[[S1]]
    // CHECK-NEXT: dist.all_reduce %[[P1]] over ["tp"]
    // CHECK: pipe.store %{{.*}} to @act0.half0
    // CHECK: pipe.store %{{.*}} to @act0.half1
    pipe.action F @forward {
      %all = pipe.load @x : tensor<1x4x8xf32>
      %x = dist.shard_slice %all over ["sub"] dim 1 major 1 minor 1 {dist.layouts = [#dist.layout<[4 over (mb), 4 over (sub), 8]>]} : tensor<1x4x8xf32> to tensor<1x2x8xf32>
      %w1 = pipe.load @w1 : tensor<8x8xf32>
      %h = train.einsum "bti,ij->btj" %x, %w1 {dist.layouts = [#dist.layout<[4 over (mb), 4 over (sub), 16 over (tp)]>]} : tensor<1x2x8xf32>, tensor<8x8xf32>
      %whole = dist.all_gather %h over ["sub"] dim 1 major 1 minor 1 {dist.layouts = [#dist.layout<[4 over (mb), 4, 16 over (tp)]>]} : tensor<1x2x8xf32> to tensor<1x4x8xf32>
      %s = train.softmax %whole axis 1 {dist.layouts = [#dist.layout<[4 over (mb), 4, 16 over (tp)]>]} : tensor<1x4x8xf32>
      %part = dist.shard_slice %s over ["sub"] dim 1 major 1 minor 1 {dist.layouts = [#dist.layout<[4 over (mb), 4 over (sub), 16 over (tp)]>]} : tensor<1x4x8xf32> to tensor<1x2x8xf32>
      %w2 = pipe.load @w2 : tensor<8x8xf32>
      %p = train.einsum "bti,ij->btj" %part, %w2 {dist.layouts = [#dist.layout<[4 over (mb), 4 over (sub), 8] partial(tp)>]} : tensor<1x2x8xf32>, tensor<8x8xf32>
      %y = dist.all_reduce %p over ["tp"] sum {dist.from = #dist.layout<[4 over (mb), 4 over (sub), 8] partial(tp)>, dist.layouts = [#dist.layout<[4 over (mb), 4 over (sub), 8]>]} : tensor<1x2x8xf32>
      pipe.store %y to @act0 : tensor<1x2x8xf32>
    }
    // Both halves are added to one gradient, the first one first.
    // CHECK: pipe.action W @weight
    // CHECK: %[[D0:.*]] = train.einsum
    // CHECK: %[[D1:.*]] = train.einsum
    // CHECK: pipe.store %[[D0]] to @sum accumulate
    // CHECK-NEXT: pipe.store %[[D1]] to @sum accumulate {pipe.submicrobatch = 1 : i64} : tensor<8x8xf32>
    // CHECK-NEXT: }
    pipe.action W @weight {
      %r = pipe.load @act0 : tensor<1x2x8xf32>
      %dw = train.einsum "bti,btj->ij" %r, %r {dist.layouts = [#dist.layout<[8, 8] partial(mb, sub)>]} : tensor<1x2x8xf32>, tensor<1x2x8xf32>
      pipe.store %dw to @sum accumulate : tensor<8x8xf32>
    }
    // CHECK: pipe.action U @update
    // CHECK-NEXT: pipe.load @sum
    // CHECK-NEXT: }
    pipe.action U @update {
      %g = pipe.load @sum : tensor<8x8xf32>
    }
  }
}
