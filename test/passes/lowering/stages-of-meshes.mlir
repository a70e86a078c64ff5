// REQUIRES: merak-opt
// A value between stages on meshes of their own: local types differ, and sends and
// receives keep both layouts, by which the plan's writer finds the boxes that two
// ranks share. The program has the mesh and the ranks of its stage, and collectives
// over "ranks" are of all of them.
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s

module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 1, mb = 1>} {

pipe.stage @stage0 index 0 schedule <F0, U> attributes {dist.devices = array<i64: 2, 0>, dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 1, ranks = 3, mb = 1>} {
  pipe.value input @x : tensor<2x4xf32> tensor "x" layout <[4 over (dp), 4]>
  pipe.value activation @act0 : tensor<2x4xf32> layout <[4 over (dp), 4]>
  pipe.value result @loss : tensor<4xf32> tensor "loss" layout <[4]>
  pipe.action F @forward {
    %0 = pipe.load @x : tensor<2x4xf32>
    %1 = train.relu %0 : tensor<2x4xf32>
    pipe.store %1 to @act0 : tensor<2x4xf32>
  }
  pipe.action U @update {
    %0 = train.constant dense<1.0> : tensor<4xf32>
    %1 = dist.all_reduce %0 over ["ranks"] sum : tensor<4xf32>
    pipe.store %1 to @loss : tensor<4xf32>
  }
}
pipe.stage @stage1 index 1 schedule <F0> attributes {dist.devices = array<i64: 1>, dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, ranks = 3, mb = 1>} {
  pipe.value activation @from0_act0 : tensor<4x4xf32> layout <[4 over (dp), 4]>
  pipe.value result @y : tensor<4x4xf32> tensor "y" layout <[4, 4]>
  pipe.action F @forward {
    %0 = pipe.load @from0_act0 : tensor<4x4xf32>
    %1 = train.relu %0 : tensor<4x4xf32>
    pipe.store %1 to @y : tensor<4x4xf32>
  }
}
pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0

}

// CHECK: plan.program @stage0 index 0 streams ["compute", "collectives", "send to pp=1 F-F"] groups [
// CHECK-SAME: ["ranks"]
// CHECK-SAME: dist.devices = array<i64: 2, 0>
// CHECK-SAME: dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 1, ranks = 3, mb = 1>
// CHECK: plan.send "t0" (@act0[2, 4]) -> () peer {pp = 1 : i64} stream 2 {plan.layouts = [#dist.layout<[4 over (dp), 4]>, #dist.layout<[4 over (dp), 4]>]}
// CHECK: plan.collective all_reduce
// CHECK: plan.program @stage1 index 1
// CHECK-SAME: dist.devices = array<i64: 1>
// CHECK: plan.recv "t0" () -> (@from0_act0[4, 4]) peer {pp = 0 : i64} stream 2 {plan.layouts = [#dist.layout<[4 over (dp), 4]>, #dist.layout<[4 over (dp), 4]>]}
