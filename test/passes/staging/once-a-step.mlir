// A sum over the batch and a penalty on weights, multiplied by a learned number:
// all behind the sum, and the penalty, run once, in U; no microbatch adds them.
// RUN: merak-opt %s --differentiate --merak-cut-stages="global-batch=8 microbatch=2" --merak-verify-stages | FileCheck %s
// The penalty on the weight of the first stage is made there and sent.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=8 microbatch=2" --merak-verify-stages | FileCheck %s --check-prefix=PP

// CHECK: pipe.action F @forward
// CHECK-NOT: train.mul %{{.*}}, %{{.*}} : tensor<4x4xf32>, tensor<4x4xf32>
// CHECK: pipe.store %{{.*}} to @sum{{.*}} accumulate
// CHECK: pipe.action U @update
// CHECK: train.reduce_sum {{.*}} : tensor<4x4xf32>
// CHECK: train.add {{.*}}train.late
// CHECK: pipe.update

// PP: pipe.stage @stage0
// PP: pipe.action S @exchange
// PP: train.reduce_sum {{.*}} : tensor<4x4xf32>
// PP: pipe.store %{{.*}} to @send_once
// PP: pipe.stage @stage1
// PP-NOT: pipe.value parameter @w1
// PP: pipe.transfer S @{{.*}} from @stage0::@send_once
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 8>} {
  train.parameter @w1 : tensor<4x4xf32> trainable
  train.parameter @w2 : tensor<4x4xf32> trainable
  train.parameter @s : tensor<f32> trainable
  func.func @model(%x: tensor<8x4xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w1 = train.read @w1 : tensor<4x4xf32>
    %h = train.einsum "bi,ij->bj" %x, %w1 : tensor<8x4xf32>, tensor<4x4xf32>
    %r = train.relu %h : tensor<8x4xf32>
    %w2 = train.read @w2 : tensor<4x4xf32>
    %y = train.einsum "bi,ij->bj" %r, %w2 : tensor<8x4xf32>, tensor<4x4xf32>
    %q = train.mul %y, %y : tensor<8x4xf32>, tensor<8x4xf32>
    %sum = train.reduce_sum %q axes [0, 1] keepdims false : tensor<8x4xf32>
    %w = train.read @w1 : tensor<4x4xf32>
    %p = train.mul %w, %w : tensor<4x4xf32>, tensor<4x4xf32>
    %penalty = train.reduce_sum %p axes [0, 1] keepdims false : tensor<4x4xf32>
    %both = train.add %sum, %penalty : tensor<f32>, tensor<f32>
    %s = train.read @s : tensor<f32>
    %loss = train.mul %both, %s : tensor<f32>, tensor<f32>
    return %loss : tensor<f32>
  }
}
