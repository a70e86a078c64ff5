// What parameters are in the type of their uses no microbatch changes: one G
// makes it, and all actions of the stage read it.
// RUN: merak-opt %s --differentiate --merak-cut-stages="global-batch=4 microbatch=2" --merak-verify-stages | FileCheck %s
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4 microbatch=2" --merak-verify-stages | FileCheck %s --check-prefix=PP
// Without gradients a step has one use of each.
// RUN: merak-opt %s --differentiate=train=false --merak-cut-stages="train=false global-batch=4 microbatch=2" | FileCheck %s --check-prefix=INFER

// Two uses of one parameter share one; the scale is read in f32.
// CHECK: pipe.value step @w1.as_used : tensor<1024x1024xbf16>
// CHECK-NOT: pipe.value step @w1
// CHECK: pipe.value step @w2.as_used : tensor<1024x1024xbf16>
// CHECK-NOT: @scale.as_used
// CHECK: pipe.action G @gather
// CHECK: %[[W1:.*]] = pipe.load @w1 : tensor<1024x1024xf32>
// CHECK: %[[B1:.*]] = train.cast %[[W1]]
// CHECK: pipe.store %[[B1]] to @w1.as_used
// CHECK: pipe.action F @forward
// CHECK-NOT: train.cast %{{.*}} : tensor<1024x1024xf32>
// CHECK: pipe.load @w1.as_used : tensor<1024x1024xbf16>
// CHECK-NOT: pipe.load @w1 :
// CHECK: pipe.action B @backward
// CHECK-NOT: pipe.load @w{{[12]}} :
// CHECK: pipe.load @w2.as_used
// The optimizer has the parameter itself.
// CHECK: pipe.update @w1 {{.*}} : tensor<1024x1024xf32>

// Each stage has its own.
// PP-LABEL: pipe.stage @stage0
// PP: pipe.value step @w1.as_used
// PP-NOT: pipe.value step @w2
// PP-LABEL: pipe.stage @stage1
// PP-NOT: pipe.value step @w1
// PP: pipe.value step @w2.as_used

// INFER-NOT: as_used

module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w1 : tensor<1024x1024xf32> trainable
  train.parameter @w2 : tensor<1024x1024xf32> trainable
  train.parameter @scale : tensor<1024xf32> trainable
  func.func @model(%x: tensor<4x1024xbf16> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w1 = train.read @w1 : tensor<1024x1024xf32>
    %b1 = train.cast %w1 : tensor<1024x1024xf32> to tensor<1024x1024xbf16>
    %w1.again = train.read @w1 : tensor<1024x1024xf32>
    %b1.again = train.cast %w1.again : tensor<1024x1024xf32> to tensor<1024x1024xbf16>
    %w2 = train.read @w2 : tensor<1024x1024xf32>
    %b2 = train.cast %w2 : tensor<1024x1024xf32> to tensor<1024x1024xbf16>
    %scale = train.read @scale : tensor<1024xf32>
    %h = train.einsum "bi,ij->bj" %x, %b1 : tensor<4x1024xbf16>, tensor<1024x1024xbf16>
    %i = train.einsum "bi,ij->bj" %h, %b1.again : tensor<4x1024xbf16>, tensor<1024x1024xbf16>
    %y = train.einsum "bi,ij->bj" %i, %b2 : tensor<4x1024xbf16>, tensor<1024x1024xbf16>
    %f = train.cast %y : tensor<4x1024xbf16> to tensor<4x1024xf32>
    %s = train.mul %f, %scale : tensor<4x1024xf32>, tensor<1024xf32>
    %q = train.mul %s, %s : tensor<4x1024xf32>, tensor<4x1024xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4x1024xf32>
    return %loss : tensor<f32>
  }
}
