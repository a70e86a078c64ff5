// One value, made of a parameter, in both stages. Its gradient is a sum over the
// stages: W sends a part of it for each microbatch, while the update gets what
// was accumulated.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4 microbatch=1" --merak-verify-stages --merak-attach-schedule="schedule=1f1b" | FileCheck %s
// Nothing of a backward pass goes to a later stage, even if layouts are converted
// for it: B would wait in a circle.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2,tp=2 global-batch=4 microbatch=1" --merak-verify-stages --merak-attach-schedule="schedule=1f1b" | FileCheck %s --check-prefix=TP

// CHECK-LABEL: pipe.stage @stage0
// CHECK: pipe.action W @weight
// CHECK: %[[PART:.*]] = pipe.load @from1_{{.*}} : tensor<16x16xf32>
// CHECK: train.add %[[PART]]
// CHECK: pipe.action U @update
// CHECK-NOT: pipe.load @from1_act
// CHECK-LABEL: pipe.stage @stage1
// CHECK: pipe.transfer F @{{.*}} from @stage0
// CHECK-NOT: pipe.transfer {{[BW]}} @{{.*}} from @stage0
// CHECK: pipe.transfer W @{{.*}} from @stage1

// TP: pipe.transfer F @{{.*}} from @stage0
// TP-NOT: pipe.transfer {{[BW]}} @{{.*}} from @stage0
// TP: pipe.transfer W @{{.*}} from @stage1

module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w : tensor<16x16xf32> trainable
  func.func @model(%x: tensor<4x16xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w = train.read @w : tensor<16x16xf32>
    %t = train.transpose %w perm [1, 0] : tensor<16x16xf32>
    %cell = train.add %w, %t : tensor<16x16xf32>, tensor<16x16xf32>
    %a = train.einsum "bi,ij->bj" %x, %cell : tensor<4x16xf32>, tensor<16x16xf32>
    %b = train.relu %a : tensor<4x16xf32>
    %c = train.einsum "bi,ij->bj" %b, %cell : tensor<4x16xf32>, tensor<16x16xf32>
    %d = train.relu %c : tensor<4x16xf32>
    %e = train.einsum "bi,ij->bj" %d, %cell : tensor<4x16xf32>, tensor<16x16xf32>
    %f = train.relu %e : tensor<4x16xf32>
    %q = train.mul %f, %f : tensor<4x16xf32>, tensor<4x16xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4x16xf32>
    return %loss : tensor<f32>
  }
}
