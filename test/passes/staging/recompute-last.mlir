// What the last stage need not recompute, and what Merak's rule spares it.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4096 microbatch=2048 recompute=full schedule=last" --merak-verify-stages | FileCheck %s
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4096 microbatch=2048 recompute=1" --merak-verify-stages | FileCheck %s

// CHECK-LABEL: pipe.stage @stage0
// CHECK: pipe.action R
// CHECK-LABEL: pipe.stage @stage1
// CHECK-NOT: pipe.action R

module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4096>} {
  train.parameter @w0 : tensor<64x64xf32> trainable
  train.parameter @w1 : tensor<64x64xf32> trainable
  train.parameter @w2 : tensor<64x64xf32> trainable
  train.parameter @w3 : tensor<64x64xf32> trainable
  func.func @model(%x: tensor<4096x64xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w0 = train.read @w0 : tensor<64x64xf32>
    %h0 = train.einsum "bi,ij->bj" %x, %w0 : tensor<4096x64xf32>, tensor<64x64xf32>
    %r0 = train.relu %h0 : tensor<4096x64xf32>
    %w1 = train.read @w1 : tensor<64x64xf32>
    %h1 = train.einsum "bi,ij->bj" %r0, %w1 : tensor<4096x64xf32>, tensor<64x64xf32>
    %r1 = train.relu %h1 : tensor<4096x64xf32>
    %w2 = train.read @w2 : tensor<64x64xf32>
    %h2 = train.einsum "bi,ij->bj" %r1, %w2 : tensor<4096x64xf32>, tensor<64x64xf32>
    %r2 = train.relu %h2 : tensor<4096x64xf32>
    %w3 = train.read @w3 : tensor<64x64xf32>
    %h3 = train.einsum "bi,ij->bj" %r2, %w3 : tensor<4096x64xf32>, tensor<64x64xf32>
    %r3 = train.relu %h3 : tensor<4096x64xf32>
    %q = train.mul %r3, %r3 : tensor<4096x64xf32>, tensor<4096x64xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4096x64xf32>
    return %loss : tensor<f32>
  }
}
