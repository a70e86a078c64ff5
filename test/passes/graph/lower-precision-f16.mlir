// RUN: merak-opt %s --lower-precision=low=f16 --split-input-file | FileCheck %s
// RUN: merak-opt %s --lower-precision=low=f16 --split-input-file 2>&1 >/dev/null | FileCheck %s --check-prefix=WARN
// RUN: not merak-opt %s --lower-precision=low=f8 --split-input-file 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: merak-opt %s --lower-precision=low=f16 --differentiate --split-input-file | FileCheck %s --check-prefix=GRAD
// RUN: merak-opt %s --lower-precision=low=bf16 --differentiate --split-input-file | FileCheck %s --check-prefix=NOSCALE

// NONE: error: expected low=bf16, f16 or model, found 'f8'
// NOSCALE-NOT: train.loss_scale

// Gradients begin with the scale of the loss; those of parameters are f32, and
// carry it until updates.
// CHECK: module attributes {train.config = #train.config<mode = train, model = "", low_precision = f16>}
// CHECK-LABEL: func.func @model
// GRAD-LABEL: func.func @step
// GRAD: %[[ONE:.*]] = train.constant dense<1.000000e+00> : tensor<f32>
// GRAD: train.loss_scale %[[ONE]] {{.*}}: tensor<f32>
// GRAD-NOT: train.loss_scale
// GRAD: %[[DW:.*]] = train.einsum {{.*}} : tensor<8x4xf16>, tensor<8x4xf16>
// GRAD: %[[WIDE:.*]] = train.cast %[[DW]] {{.*}}: tensor<4x4xf16> to tensor<4x4xf32>
// GRAD: train.update @w : {{.*}} by %[[WIDE]]
module {
  train.parameter @w : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4x4xf32>
    // CHECK: train.einsum "ab,bc->ac" %{{.*}}, %{{.*}} : tensor<8x4xf16>, tensor<4x4xf16>
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf32>, tensor<4x4xf32>
    %l = train.reduce_sum %y axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}

// -----

// A model in f16 is trained in it: nothing to warn of, and its own conversions are
// roundings to f16. Those to bf16 are none.
// WARN-NOT: the model is in f16
// WARN: warning: conversions to bf16 ('train.cast') round nothing: what follows is computed in f16 and f32, as --precision says
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4x4xf16> trainable from <"" at 64 length 32>
  func.func @model(%x: tensor<8x4xf16>) -> tensor<f32> {
    // CHECK: %[[W:.*]] = train.read @w : tensor<4x4xf32>
    // CHECK: %[[WL:.*]] = train.cast %[[W]] : tensor<4x4xf32> to tensor<4x4xf16>
    %w = train.read @w : tensor<4x4xf16>
    // CHECK: %[[Y:.*]] = train.einsum "ab,bc->ac" %arg0, %[[WL]] : tensor<8x4xf16>, tensor<4x4xf16>
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf16>, tensor<4x4xf16>
    // CHECK-NOT: bf16
    %z = train.cast %y : tensor<8x4xf16> to tensor<8x4xbf16>
    // CHECK: train.gelu %[[Y]] : tensor<8x4xf16>
    %g = train.gelu %z : tensor<8x4xbf16>
    %f = train.cast %g : tensor<8x4xbf16> to tensor<8x4xf32>
    %l = train.reduce_sum %f axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}

// -----

// f16 cannot hold a mask's -1e9: what it is added to is computed in f32. It can
// hold -1e4.
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4x4xf32>
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf32>, tensor<4x4xf32>
    %small = train.constant dense<-1.0e4> : tensor<4xf32>
    // CHECK: train.add {{.*}} : tensor<8x4xf16>, tensor<4xf16>
    %p = train.add %y, %small : tensor<8x4xf32>, tensor<4xf32>
    %large = train.constant dense<[0.0, -1.0e9, 0.0, 0.0]> : tensor<4xf32>
    // CHECK: train.add {{.*}} : tensor<8x4xf32>, tensor<4xf32>
    %q = train.add %p, %large : tensor<8x4xf32>, tensor<4xf32>
    %l = train.reduce_sum %q axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}
