// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-bucket-gradients=bytes=40 | FileCheck %s
// RUN: merak-opt %s --merak-bucket-gradients=bytes=40 --merak-assign-memory --merak-verify-memory | FileCheck %s --check-prefix=ARENA
// RUN: merak-opt %s --merak-bucket-gradients=bytes=0 | FileCheck %s --check-prefix=EACH
// RUN: merak-opt %s --merak-bucket-gradients=bytes=1000000 | FileCheck %s --check-prefix=ALL

// A bucket of at most 40 bytes: @a and @b stand where @b did; @big is alone;
// @c, which they have no room for, and @d, which the other group does not separate.
// CHECK-LABEL: plan.program @backward
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@a[4])
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@b[4])
// CHECK-NEXT: plan.collective all_reduce (@a[4], @b[4]) -> (@a[4], @b[4]) group 0 reduction sum stream 2 {plan.joined}
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@big[4])
// CHECK-NEXT: plan.collective all_reduce (@big[4, 4]) -> (@big[4, 4]) group 0
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@c[4])
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@other[4])
// CHECK-NEXT: plan.collective all_reduce (@other[4]) -> (@other[4]) group 1
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@half[4])
// CHECK-NEXT: plan.collective all_reduce (@half[4]) -> (@half[4]) group 0
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@d[4])
// CHECK-NEXT: plan.collective all_reduce (@c[4], @d[4]) -> (@c[4], @d[4]) group 0 reduction sum stream 2 {plan.joined}
// CHECK-NEXT: }

// Neighbours in the order of the bucket, each at the alignment of 64; the first
// that is met brings the others along.
// ARENA-LABEL: plan.program @backward
// ARENA: plan.buffer gradients @d : tensor<4xf32> at 64
// ARENA-NEXT: plan.buffer gradients @a : tensor<4xf32> at 128
// ARENA-NEXT: plan.buffer gradients @big : tensor<4x4xf32> at 256
// ARENA-NEXT: plan.buffer gradients @c : tensor<4xf32> at 0
// ARENA-NEXT: plan.buffer gradients @b : tensor<4xf32> at 192

// EACH-NOT: plan.joined

// Types, groups and parts of buffers are not mixed even if there is room.
// ALL-LABEL: plan.program @backward
// ALL: plan.collective all_reduce (@other[4])
// ALL: plan.collective all_reduce (@half[4])
// ALL: plan.collective all_reduce (@a[4], @b[4], @big[4, 4], @c[4], @d[4])
plan.program @backward index 0 streams ["compute", "collectives", "gradients"] groups [["dp"], ["dp", "tp"]] schedule <W0, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @d : tensor<4xf32>
  plan.buffer gradients @a : tensor<4xf32>
  plan.buffer gradients @big : tensor<4x4xf32>
  plan.buffer gradients @c : tensor<4xf32>
  plan.buffer gradients @b : tensor<4xf32>
  plan.buffer gradients @other : tensor<4xf32>
  plan.buffer gradients @half : tensor<4xbf16>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@a[4])
    plan.collective all_reduce (@a[4]) -> (@a[4]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@b[4])
    plan.collective all_reduce (@b[4]) -> (@b[4]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@big[4])
    plan.collective all_reduce (@big[4, 4]) -> (@big[4, 4]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@c[4])
    plan.collective all_reduce (@c[4]) -> (@c[4]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@other[4])
    plan.collective all_reduce (@other[4]) -> (@other[4]) group 1 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@half[4])
    plan.collective all_reduce (@half[4]) -> (@half[4]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@d[4])
    plan.collective all_reduce (@d[4]) -> (@d[4]) group 0 reduction sum stream 2
  }
  plan.call @weight microbatch 0 slots [] waits []
}

// In the update a bucket stands where its members are final, in front of the
// first use of one; @d is made of @c and cannot go with it. Other reductions,
// parts of a buffer and what is summed over stages are left alone.
// CHECK-LABEL: plan.program @update
// CHECK: plan.procedure @update action U
// CHECK-NEXT: plan.collective all_reduce (@b[4], @a[4]) -> (@b[4], @a[4]) group 0 reduction sum stream 1 {plan.joined}
// CHECK-NEXT: plan.library "copy" (@e[4]) -> (@c[4]) accumulate
// CHECK-NEXT: plan.library "copy" (@b[4]) -> (@w[4])
// CHECK-NEXT: plan.library "copy" (@a[4]) -> (@w[4])
// CHECK-NEXT: plan.collective all_reduce (@c[4]) -> (@c[4]) group 0 reduction sum
// CHECK-NEXT: plan.library "copy" (@c[4]) -> (@w[4])
// CHECK-NEXT: plan.library "copy" (@w[4]) -> (@d[4])
// CHECK-NEXT: plan.collective all_reduce (@d[4]) -> (@d[4]) group 0 reduction sum
// CHECK-NEXT: plan.collective all_reduce (@e[4]) -> (@e[4]) group 0 reduction max
// CHECK-NEXT: plan.collective all_reduce (@f[4]) -> (@f[4]) group 1
// CHECK-NEXT: plan.collective all_reduce (@g[4]) -> (@g[4]) group 1
// CHECK-NEXT: plan.collective all_reduce (@h[2]) -> (@h[2]) group 0
// CHECK-NEXT: }
plan.program @update index 0 streams ["compute", "collectives"] groups [["dp"], ["pp"]] schedule <U> {
  plan.buffer gradients @a : tensor<4xf32>
  plan.buffer gradients @b : tensor<4xf32>
  plan.buffer gradients @c : tensor<4xf32>
  plan.buffer gradients @d : tensor<4xf32>
  plan.buffer gradients @e : tensor<4xf32>
  plan.buffer gradients @f : tensor<4xf32>
  plan.buffer gradients @g : tensor<4xf32>
  plan.buffer gradients @h : tensor<4xf32>
  plan.buffer parameters @w : tensor<4xf32>
  plan.procedure @update action U {
    plan.library "copy" (@e[4]) -> (@c[4]) accumulate
    plan.collective all_reduce (@b[4]) -> (@b[4]) group 0 reduction sum stream 1
    plan.library "copy" (@b[4]) -> (@w[4])
    plan.collective all_reduce (@a[4]) -> (@a[4]) group 0 reduction sum stream 1
    plan.library "copy" (@a[4]) -> (@w[4])
    plan.collective all_reduce (@c[4]) -> (@c[4]) group 0 reduction sum stream 1
    plan.library "copy" (@c[4]) -> (@w[4])
    plan.library "copy" (@w[4]) -> (@d[4])
    plan.collective all_reduce (@d[4]) -> (@d[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@e[4]) -> (@e[4]) group 0 reduction max stream 1
    plan.collective all_reduce (@f[4]) -> (@f[4]) group 1 reduction sum stream 1
    plan.collective all_reduce (@g[4]) -> (@g[4]) group 1 reduction sum stream 1
    plan.collective all_reduce (@h[2]) -> (@h[2]) group 0 reduction sum stream 1
  }
  plan.call @update microbatch -1 slots [] waits []
}

// What is scattered shares a collective without being neighbours in the arena;
// another dimension is another one, and values that are no gradients are left
// alone. What is scattered in every microbatch is added up in front of the next
// bucket, the last one at the end, behind its collective where something else
// needs the sum.
// CHECK-LABEL: plan.program @scattered
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@a[4])
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@b[4])
// CHECK-NEXT: plan.collective reduce_scatter (@a[4], @b[4]) -> (@pa[2], @pb[2]) group 0 reduction sum stream 2
// CHECK-NOT: plan.joined
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@square[2, 2])
// CHECK-NEXT: plan.collective reduce_scatter (@square[2, 2]) -> (@ps[2, 1]) group 0 reduction sum dim 1 stream 2
// CHECK-NEXT: plan.collective reduce_scatter (@act[4]) -> (@x[2]) group 0 reduction sum stream 1
// CHECK-NEXT: }
// CHECK: plan.procedure @each action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@g0[4])
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@g1[4])
// CHECK-NEXT: plan.collective reduce_scatter (@g0[4], @g1[4]) -> (@p0[2], @p1[2]) group 0 reduction sum stream 2
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@g2[4, 4])
// CHECK-NEXT: plan.library "copy" (@p0[2]) -> (@s0[2]) accumulate
// CHECK-NEXT: plan.library "copy" (@p1[2]) -> (@s1[2]) accumulate
// CHECK-NEXT: plan.collective reduce_scatter (@g2[4, 4]) -> (@p2[2, 4]) group 0 reduction sum stream 2
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@g3[4, 4])
// CHECK-NEXT: plan.library "copy" (@p2[2, 4]) -> (@s2[2, 4])
// CHECK-NEXT: plan.collective reduce_scatter (@g3[4, 4]) -> (@p3[2, 4]) group 0 reduction sum stream 2
// CHECK-NEXT: plan.library "copy" (@p3[2, 4]) -> (@s3[2, 4])
// CHECK-NEXT: plan.library "copy" (@s3[2, 4]) -> (@s2[2, 4]) accumulate
// CHECK-NEXT: }
plan.program @scattered index 0 streams ["compute", "collectives", "gradients"] groups [["dp"]] schedule <W0, W1, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer activations @x : tensor<2xf32>
  plan.buffer gradients @a : tensor<4xf32>
  plan.buffer gradients @b : tensor<4xf32>
  plan.buffer gradients @square : tensor<2x2xf32>
  plan.buffer gradients @pa : tensor<2xf32>
  plan.buffer gradients @pb : tensor<2xf32>
  plan.buffer gradients @ps : tensor<2x1xf32>
  plan.buffer gradients @s0 : tensor<2xf32>
  plan.buffer gradients @s1 : tensor<2xf32>
  plan.buffer gradients @s2 : tensor<2x4xf32>
  plan.buffer gradients @s3 : tensor<2x4xf32>
  plan.buffer workspace @g0 : tensor<4xf32> in @each
  plan.buffer workspace @g1 : tensor<4xf32> in @each
  plan.buffer workspace @g2 : tensor<4x4xf32> in @each
  plan.buffer workspace @g3 : tensor<4x4xf32> in @each
  plan.buffer workspace @p0 : tensor<2xf32> in @each
  plan.buffer workspace @p1 : tensor<2xf32> in @each
  plan.buffer workspace @p2 : tensor<2x4xf32> in @each
  plan.buffer workspace @p3 : tensor<2x4xf32> in @each
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@a[4])
    plan.collective reduce_scatter (@a[4]) -> (@pa[2]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@b[4])
    plan.collective reduce_scatter (@b[4]) -> (@pb[2]) group 0 reduction sum stream 2
    plan.library "copy" (@act[4]) -> (@square[2, 2])
    plan.collective reduce_scatter (@square[2, 2]) -> (@ps[2, 1]) group 0 reduction sum dim 1 stream 2
    plan.collective reduce_scatter (@act[4]) -> (@x[2]) group 0 reduction sum stream 1
  }
  plan.procedure @each action W {
    plan.library "copy" (@act[4]) -> (@g0[4])
    plan.collective reduce_scatter (@g0[4]) -> (@p0[2]) group 0 reduction sum stream 2
    plan.library "copy" (@p0[2]) -> (@s0[2]) accumulate
    plan.library "copy" (@act[4]) -> (@g1[4])
    plan.collective reduce_scatter (@g1[4]) -> (@p1[2]) group 0 reduction sum stream 2
    plan.library "copy" (@p1[2]) -> (@s1[2]) accumulate
    plan.library "copy" (@act[4]) -> (@g2[4, 4])
    plan.collective reduce_scatter (@g2[4, 4]) -> (@p2[2, 4]) group 0 reduction sum stream 2
    plan.library "copy" (@p2[2, 4]) -> (@s2[2, 4])
    plan.library "copy" (@act[4]) -> (@g3[4, 4])
    plan.collective reduce_scatter (@g3[4, 4]) -> (@p3[2, 4]) group 0 reduction sum stream 2
    plan.library "copy" (@p3[2, 4]) -> (@s3[2, 4])
    plan.library "copy" (@s3[2, 4]) -> (@s2[2, 4]) accumulate
  }
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @each microbatch 0 slots [] waits []
}

// What fills a bucket by itself does not close one of small ones, @a and @c; what
// no longer fits, @half1, does.
// CHECK-LABEL: plan.program @between
// CHECK: plan.library "copy" (@act[4]) -> (@big1[4])
// CHECK-NEXT: plan.collective all_reduce (@big1[4, 4]) -> (@big1[4, 4]) group 0 reduction sum stream 1
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@c[4])
// CHECK-NEXT: plan.collective all_reduce (@a[4], @c[4]) -> (@a[4], @c[4]) group 0 reduction sum stream 1 {plan.joined}
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@half1[8])
// CHECK-NEXT: plan.collective all_reduce (@half1[8]) -> (@half1[8]) group 0 reduction sum stream 1
// CHECK-NEXT: }
plan.program @between index 0 streams ["compute", "gradients"] groups [["dp"]] schedule <W0, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @a : tensor<4xf32>
  plan.buffer gradients @big1 : tensor<4x4xf32>
  plan.buffer gradients @c : tensor<4xf32>
  plan.buffer gradients @half1 : tensor<8xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@a[4])
    plan.collective all_reduce (@a[4]) -> (@a[4]) group 0 reduction sum stream 1
    plan.library "copy" (@act[4]) -> (@big1[4])
    plan.collective all_reduce (@big1[4, 4]) -> (@big1[4, 4]) group 0 reduction sum stream 1
    plan.library "copy" (@act[4]) -> (@c[4])
    plan.collective all_reduce (@c[4]) -> (@c[4]) group 0 reduction sum stream 1
    plan.library "copy" (@act[4]) -> (@half1[8])
    plan.collective all_reduce (@half1[8]) -> (@half1[8]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 0 slots [] waits []
}
