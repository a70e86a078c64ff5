// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-localize --merak-convert-to-plan | FileCheck %s

// Each rank and microbatch says where its part of the global batch begins.
// CHECK: plan.library "dropout" ({{.*}}) -> {{.*}} with {extents = "12,8", id = "2", ratio = "0.5", strides = "16,1"} scalars [#plan.scalar<"seed">, #plan.scalar<"step">, #plan.scalar<"tp" * 8>, #plan.scalar<"dp" * 192>, #plan.scalar<"mb" * 384>]
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 2, mb = 2>,
    train.config = #train.config<mode = infer, model = "m.onnx", global_batch = 16>,
    pipe.decision = #pipe.decision<schedule = "gpipe">} {
  pipe.stage @stage0 index 0 schedule <F0, F1> {
    pipe.value input @x : tensor<16x3x16xf32> tensor "x" layout #dist.layout<[16 over (mb, dp), 3, 16 over (tp)]>
    pipe.value result @y : tensor<16x3x16xf32> tensor "y" layout #dist.layout<[16 over (mb, dp), 3, 16 over (tp)]>
    pipe.action F @forward {
      %x = pipe.load @x : tensor<16x3x16xf32>
      %y = train.dropout %x ratio 5.0e-01 id 2 {dist.layouts = [#dist.layout<[16 over (mb, dp), 3, 16 over (tp)]>]} : tensor<16x3x16xf32>
      pipe.store %y to @y : tensor<16x3x16xf32>
    }
  }
}
