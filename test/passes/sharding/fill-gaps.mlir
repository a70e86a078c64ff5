// A backward pass that waits for its all-reduces recomputes under the first one
// what it needs behind it, and does gradients of weights under the last one.
// RUN: merak-opt %s --merak-sub-pipeline | FileCheck %s
// RUN: merak-opt %s --merak-sub-pipeline --merak-verify-shards --merak-verify-stages > /dev/null
// RUN: sed 's/over \["tp"\]/over ["dp"]/' %s | merak-opt --merak-sub-pipeline | FileCheck %s --check-prefix=NONE

// Over one rank nothing takes time.
// NONE: pipe.action R @recompute
// NONE: train.gelu
// NONE: pipe.action B @backward
// NONE-NOT: train.gelu
// NONE: pipe.action W @weight
// NONE: train.einsum

module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 2, mb = 4>, pipe.tp_overlap = 3 : i64} {
  pipe.stage @stage0 index 0 {
    pipe.value input @x : tensor<64x4xf32> tensor "x" layout #dist.layout<[256 over (mb), 4]>
    pipe.value constant @w : tensor<4x256xf32> tensor "w" layout #dist.layout<[4, 256]>
    pipe.value input @z : tensor<64x256xf32> tensor "z" layout #dist.layout<[256 over (mb), 256]>
    pipe.value activation @kept : tensor<64x256xf32> layout #dist.layout<[256 over (mb), 256]>
    // The recomputed value is only needed in B now, and the gradient that W
    // used too.
    // CHECK-NOT: @again
    // CHECK-NOT: @grad
    pipe.value activation @again : tensor<64x256xf32> layout #dist.layout<[256 over (mb), 256]>
    pipe.value activation @grad : tensor<64x256xf32> layout #dist.layout<[256 over (mb), 256]>
    pipe.value gradient @sum : tensor<4x256xf32> layout #dist.layout<[4, 256]>
    pipe.action F @forward {
      %x = pipe.load @z : tensor<64x256xf32>
      pipe.store %x to @kept : tensor<64x256xf32>
    }
    // CHECK: pipe.action R @recompute {
    // CHECK-NEXT: }
    pipe.action R @recompute {
      %k = pipe.load @kept : tensor<64x256xf32>
      %y = train.gelu %k {dist.layouts = [#dist.layout<[256 over (mb), 256]>]} : tensor<64x256xf32>
      pipe.store %y to @again : tensor<64x256xf32>
    }
    // CHECK: pipe.action B @backward
    // CHECK: dist.all_reduce
    // CHECK: %[[Y:.*]] = train.gelu
    // CHECK: dist.all_reduce
    // CHECK: train.gelu
    // CHECK: %[[D:.*]] = train.mul %{{.*}}, %[[Y]]
    // CHECK: dist.all_reduce
    // CHECK: %[[DW:.*]] = train.einsum "bi,bj->ij" %{{.*}}, %[[D]]
    // CHECK: dist.all_reduce
    // CHECK: train.einsum "bi,bj->ij"
    // CHECK-NEXT: pipe.store %[[DW]] to @sum accumulate
    // CHECK-NEXT: train.tanh
    // CHECK-NEXT: pipe.store %{{.*}} to @sum accumulate
    // CHECK-NEXT: train.tanh
    // CHECK: pipe.action W @weight {
    // CHECK-NEXT: }
    pipe.action B @backward {
      %x = pipe.load @x : tensor<64x4xf32>
      %w = pipe.load @w : tensor<4x256xf32>
      %p = train.einsum "bi,ij->bj" %x, %w {dist.layouts = [#dist.layout<[256 over (mb), 256] partial(tp)>]} : tensor<64x4xf32>, tensor<4x256xf32>
      %g = dist.all_reduce %p over ["tp"] sum {dist.layouts = [#dist.layout<[256 over (mb), 256]>]} : tensor<64x256xf32>
      %y = pipe.load @again : tensor<64x256xf32>
      %d = train.mul %g, %y {dist.layouts = [#dist.layout<[256 over (mb), 256]>]} : tensor<64x256xf32>, tensor<64x256xf32>
      pipe.store %d to @grad : tensor<64x256xf32>
      %q = train.einsum "bj,ij->bi" %d, %w {dist.layouts = [#dist.layout<[256 over (mb), 4] partial(tp)>]} : tensor<64x256xf32>, tensor<4x256xf32>
      %h = dist.all_reduce %q over ["tp"] sum {dist.layouts = [#dist.layout<[256 over (mb), 4]>]} : tensor<64x4xf32>
      %o = train.tanh %h {dist.layouts = [#dist.layout<[256 over (mb), 4]>]} : tensor<64x4xf32>
    }
    pipe.action W @weight {
      %x = pipe.load @x : tensor<64x4xf32>
      %d = pipe.load @grad : tensor<64x256xf32>
      %dw = train.einsum "bi,bj->ij" %x, %d {dist.layouts = [#dist.layout<[4, 256] partial(mb)>]} : tensor<64x4xf32>, tensor<64x256xf32>
      pipe.store %dw to @sum accumulate : tensor<4x256xf32>
    }
    pipe.action U @update {
      %g = pipe.load @sum : tensor<4x256xf32>
    }
  }
}
