// RUN: merak-opt %s --lower-precision --split-input-file | FileCheck %s
// With another type of 16 bits all is the same.
// RUN: merak-opt %s --lower-precision=low=f16 --split-input-file | sed -e 's/xf16/xbf16/g' | FileCheck %s

// Products in bf16, a bias follows them, the statistics and scales of a norm
// and the loss stay f32. The target is data in f32: the difference is too.
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4x4xf32> trainable
  train.parameter @b : tensor<4xf32> trainable
  train.parameter @s : tensor<4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>, %t: tensor<8x4xf32>) -> tensor<f32> {
    // CHECK: %[[W:.*]] = train.read @w
    %w = train.read @w : tensor<4x4xf32>
    // CHECK-DAG: %[[XL:.*]] = train.cast %arg0 : tensor<8x4xf32> to tensor<8x4xbf16>
    // CHECK-DAG: %[[WL:.*]] = train.cast %[[W]] : tensor<4x4xf32> to tensor<4x4xbf16>
    // CHECK: %[[Y:.*]] = train.einsum "ab,bc->ac" %[[XL]], %[[WL]] : tensor<8x4xbf16>, tensor<4x4xbf16>
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf32>, tensor<4x4xf32>
    %b = train.read @b : tensor<4xf32>
    // CHECK: %[[BL:.*]] = train.cast %{{.*}} : tensor<4xf32> to tensor<4xbf16>
    // CHECK: %[[Z:.*]] = train.add %[[Y]], %[[BL]] : tensor<8x4xbf16>, tensor<4xbf16>
    %z = train.add %y, %b : tensor<8x4xf32>, tensor<4xf32>
    // CHECK: train.gelu %[[Z]] : tensor<8x4xbf16>
    %g = train.gelu %z : tensor<8x4xf32>
    %s = train.read @s : tensor<4xf32>
    // CHECK: train.layer_norm {{.*}} : tensor<8x4xbf16>, tensor<4xf32> -> tensor<8x4xbf16>, tensor<8xf32>, tensor<8xf32>
    %n, %mean, %rstd = train.layer_norm %g scale %s axis 1 epsilon 1.0e-05 : tensor<8x4xf32>, tensor<4xf32> -> tensor<8x4xf32>, tensor<8xf32>, tensor<8xf32>
    // CHECK: %[[N:.*]] = train.cast %{{.*}} : tensor<8x4xbf16> to tensor<8x4xf32>
    // CHECK: %[[D:.*]] = train.sub %[[N]], %arg1 : tensor<8x4xf32>, tensor<8x4xf32>
    %d = train.sub %n, %t : tensor<8x4xf32>, tensor<8x4xf32>
    // CHECK: %[[Q:.*]] = train.mul %[[D]], %[[D]] : tensor<8x4xf32>, tensor<8x4xf32>
    %q = train.mul %d, %d : tensor<8x4xf32>, tensor<8x4xf32>
    // CHECK: train.reduce_sum %[[Q]] axes [0, 1] keepdims false : tensor<8x4xf32>
    %l = train.reduce_sum %q axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}

// -----

// Rows of a table are read in f32 and converted; attention takes bf16 and keeps
// its lse in f32; cross entropy reads bf16 logits; a sum forces f32.
// CHECK-LABEL: func.func @model
module {
  train.parameter @e : tensor<16x8xf32> trainable
  func.func @model(%ids: tensor<2x4xi64>, %labels: tensor<2x4xi64>) -> (tensor<f32>, tensor<2x4x8xf32>) {
    %e = train.read @e : tensor<16x8xf32>
    // CHECK: %[[G:.*]] = train.gather %{{.*}} : tensor<16x8xf32>
    // CHECK: %[[X:.*]] = train.cast %[[G]] : tensor<2x4x8xf32> to tensor<2x4x8xbf16>
    %x = train.gather %e[%ids] axis 0 : tensor<16x8xf32>, tensor<2x4xi64>
    // CHECK: train.reshape %[[X]] : tensor<2x4x8xbf16> to tensor<2x4x2x4xbf16>
    %q = train.reshape %x : tensor<2x4x8xf32> to tensor<2x4x2x4xf32>
    // CHECK: train.attention {{.*}} -> tensor<2x4x2x4xbf16>, tensor<2x2x4xf32>
    %o, %lse = train.attention %q, %q, %q scale 5.0e-01 causal : tensor<2x4x2x4xf32>, tensor<2x4x2x4xf32>, tensor<2x4x2x4xf32> -> tensor<2x4x2x4xf32>, tensor<2x2x4xf32>
    %y = train.reshape %o : tensor<2x4x2x4xf32> to tensor<2x4x8xf32>
    // CHECK: %[[LOSS:.*]], %{{.*}} = train.softmax_cross_entropy %{{.*}}, %arg1 : tensor<2x4x8xbf16>, tensor<2x4xi64> -> tensor<2x4xf32>, tensor<2x4xf32>
    %loss, %s = train.softmax_cross_entropy %y, %labels : tensor<2x4x8xf32>, tensor<2x4xi64> -> tensor<2x4xf32>, tensor<2x4xf32>
    // CHECK: train.reduce_sum %[[LOSS]]
    %l = train.reduce_sum %loss axes [0, 1] keepdims false : tensor<2x4xf32>
    // Outputs are as the model says.
    // CHECK: %[[OUT:.*]] = train.cast %{{.*}} : tensor<2x4x8xbf16> to tensor<2x4x8xf32>
    // CHECK: return %{{.*}}, %[[OUT]] : tensor<f32>, tensor<2x4x8xf32>
    return %l, %y : tensor<f32>, tensor<2x4x8xf32>
  }
}

// -----

// Rows gathered from an activation have its type, whichever it is.
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4x8xf32> trainable
  func.func @model(%x: tensor<8x4xf32>, %ids: tensor<3xi64>) -> (tensor<3x8xf32>, tensor<3x4xf32>) {
    %w = train.read @w : tensor<4x8xf32>
    // CHECK: %[[Y:.*]] = train.einsum {{.*}} : tensor<8x4xbf16>, tensor<4x8xbf16>
    %y = train.einsum "mk,kn->mn" %x, %w : tensor<8x4xf32>, tensor<4x8xf32>
    // CHECK: %[[G:.*]] = train.gather %[[Y]][%arg1] axis 0 : tensor<8x8xbf16>, tensor<3xi64>
    %g = train.gather %y[%ids] axis 0 : tensor<8x8xf32>, tensor<3xi64>
    // CHECK: train.tanh %[[G]] : tensor<3x8xbf16>
    %t = train.tanh %g : tensor<3x8xf32>
    // CHECK: %[[H:.*]] = train.gather %arg0[%arg1] axis 0 : tensor<8x4xf32>, tensor<3xi64>
    %h = train.gather %x[%ids] axis 0 : tensor<8x4xf32>, tensor<3xi64>
    // CHECK: return %{{.*}}, %[[H]] : tensor<3x8xf32>, tensor<3x4xf32>
    return %t, %h : tensor<3x8xf32>, tensor<3x4xf32>
  }
}

// -----

// Without products nothing changes.
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4xf32>
    // CHECK-NOT: train.cast
    // CHECK: train.mul {{.*}} : tensor<8x4xf32>, tensor<4xf32>
    %y = train.mul %x, %w : tensor<8x4xf32>, tensor<4xf32>
    %l = train.reduce_sum %y axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}
