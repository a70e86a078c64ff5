// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-assign-memory --merak-verify-memory | FileCheck %s
// RUN: not merak-opt %s --merak-assign-memory=memory-limit=4096 2>&1 | FileCheck %s --check-prefix=REFUSED

// Three transients of a chain take two places; what a collective on its own
// stream reads stays until the computation has its result.
// CHECK: plan.program @s index 0 {{.*}} arena 4864
// CHECK-SAME: plan.memory = {activations = 768 : i64, communication = 0 : i64, gradients = 1024 : i64, optimizer = 0 : i64, parameters = 1024 : i64, workspace = 2048 : i64}
// CHECK: plan.buffer parameters @w : tensor<16x16xf32> at 0
// CHECK: plan.buffer gradients @g : tensor<16x16xf32> at 1024
// CHECK: plan.buffer activations @a : tensor<4x16xf32> at 2048 slots 3 stride 256 class 0
// CHECK: plan.buffer workspace @t0 : tensor<16x16xf32> in @f at 2816
// CHECK: plan.buffer workspace @t1 : tensor<16x16xf32> in @f at 3840
// CHECK: plan.buffer workspace @t2 : tensor<16x16xf32> in @f at 2816
// CHECK: plan.buffer workspace @t3 : tensor<5xf32> in @u at 2816

// REFUSED: error: program 's' needs 0.0 MiB on each of its devices, which have 0.0 MiB; the largest buffers:
// REFUSED-NEXT: 0.0 MiB {{parameters|gradients|workspace}}
plan.program @s index 0 streams ["compute", "collectives"] groups [["tp"]] schedule <F0, U> {
  plan.buffer parameters @w : tensor<16x16xf32>
  plan.buffer gradients @g : tensor<16x16xf32>
  plan.buffer activations @a : tensor<4x16xf32> slots 3 class 0
  plan.buffer workspace @t0 : tensor<16x16xf32> in @f
  plan.buffer workspace @t1 : tensor<16x16xf32> in @f
  plan.buffer workspace @t2 : tensor<16x16xf32> in @f
  plan.buffer workspace @t3 : tensor<5xf32> in @u
  plan.procedure @f action F {
    plan.library "copy"(@w[16, 16]) -> (@t0[16, 16])
    plan.library "copy"(@t0[16, 16]) -> (@t1[16, 16])
    plan.library "copy"(@t1[16, 16]) -> (@t2[16, 16])
    plan.library "copy"(@t2[16, 16]) -> (@g[16, 16])
  }
  plan.procedure @u action U {
    plan.library "fill"() -> (@t3[5]) scalars [#plan.scalar<0>]
  }
}
