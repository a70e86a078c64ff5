// RUN: merak-opt %s --lower-precision=low=model --split-input-file | FileCheck %s
// RUN: merak-opt %s --lower-precision="low=model train=false" --split-input-file | FileCheck %s --check-prefix=INFER
// RUN: merak-opt %s --lower-precision=low=model --split-input-file 2>&1 >/dev/null | FileCheck %s --check-prefix=WARN

// A model in bf16: parameters become f32 and remember what the file holds;
// products that import widened are in bf16 again; sums and the loss are f32.
// CHECK: module attributes {train.config = #train.config<mode = train, model = "", low_precision = bf16>}
// CHECK: train.parameter @w : tensor<4x4xf32> trainable from <"" at 64 length 32> {train.source_type = bf16}
// CHECK: train.parameter @b : tensor<4xf32> trainable = dense<1.500000e+00> : tensor<4xf32>{{$}}
// CHECK-LABEL: func.func @model(%arg0: tensor<8x4xbf16>) -> tensor<f32>
// INFER: func.func @model(%arg0: tensor<8x4xbf16>) -> tensor<bf16>
module {
  train.parameter @w : tensor<4x4xbf16> trainable from <"" at 64 length 32>
  train.parameter @b : tensor<4xbf16> trainable = dense<1.5> : tensor<4xbf16>
  func.func @model(%x: tensor<8x4xbf16>) -> tensor<bf16> {
    // CHECK: %[[W:.*]] = train.read @w : tensor<4x4xf32>
    // CHECK: %[[WL:.*]] = train.cast %[[W]] : tensor<4x4xf32> to tensor<4x4xbf16>
    // CHECK: %[[Y:.*]] = train.einsum "ab,bc->ac" %arg0, %[[WL]] : tensor<8x4xbf16>, tensor<4x4xbf16>
    %w = train.read @w : tensor<4x4xbf16>
    %wide = train.cast %x : tensor<8x4xbf16> to tensor<8x4xf32>
    %ww = train.cast %w : tensor<4x4xbf16> to tensor<4x4xf32>
    %p = train.einsum "ab,bc->ac" %wide, %ww : tensor<8x4xf32>, tensor<4x4xf32>
    %y = train.cast %p : tensor<8x4xf32> to tensor<8x4xbf16>
    // CHECK: train.add %[[Y]], %{{.*}} : tensor<8x4xbf16>, tensor<4xbf16>
    %b = train.read @b : tensor<4xbf16>
    %z = train.add %y, %b : tensor<8x4xbf16>, tensor<4xbf16>
    // CHECK: %[[Z:.*]] = train.cast %{{.*}} : tensor<8x4xbf16> to tensor<8x4xf32>
    // CHECK: %[[L:.*]] = train.reduce_sum %[[Z]] axes [0, 1] keepdims false : tensor<8x4xf32>
    // CHECK: return %[[L]] : tensor<f32>
    // INFER: %[[L:.*]] = train.cast %{{.*}} : tensor<f32> to tensor<bf16>
    // INFER: return %[[L]] : tensor<bf16>
    %l = train.reduce_sum %z axes [0, 1] keepdims false : tensor<8x4xbf16>
    return %l : tensor<bf16>
  }
}

// -----

// A model in f32 with a product in bf16: only that is. The other product reads
// bf16, too, but its result is f32: it stays in f32.
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4x4xf32>
    // CHECK-DAG: %[[X:.*]] = train.cast %arg0 : tensor<8x4xf32> to tensor<8x4xbf16>
    // CHECK-DAG: %[[W:.*]] = train.cast %{{.*}} : tensor<4x4xf32> to tensor<4x4xbf16>
    %xl = train.cast %x : tensor<8x4xf32> to tensor<8x4xbf16>
    %wl = train.cast %w : tensor<4x4xf32> to tensor<4x4xbf16>
    %xw = train.cast %xl : tensor<8x4xbf16> to tensor<8x4xf32>
    %ww = train.cast %wl : tensor<4x4xbf16> to tensor<4x4xf32>
    // CHECK: %[[Y:.*]] = train.einsum "ab,bc->ac" %[[X]], %[[W]] : tensor<8x4xbf16>, tensor<4x4xbf16>
    %p = train.einsum "ab,bc->ac" %xw, %ww : tensor<8x4xf32>, tensor<4x4xf32>
    %y = train.cast %p : tensor<8x4xf32> to tensor<8x4xbf16>
    // CHECK: %[[YF:.*]] = train.cast %[[Y]] : tensor<8x4xbf16> to tensor<8x4xf32>
    %yf = train.cast %y : tensor<8x4xbf16> to tensor<8x4xf32>
    // CHECK: train.einsum "ab,cb->ac" %[[YF]], %{{.*}} : tensor<8x4xf32>, tensor<8x4xf32>
    %q = train.einsum "ab,cb->ac" %yf, %xw : tensor<8x4xf32>, tensor<8x4xf32>
    %l = train.reduce_sum %q axes [0, 1] keepdims false : tensor<8x8xf32>
    return %l : tensor<f32>
  }
}

// -----

// f16 is computed in f32 and said so; finite numbers stay finite.
// WARN: warning: the model is in f16 ('w') and is computed in f32
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4xf16> trainable
  func.func @model(%x: tensor<8x4xf16>) -> tensor<f16> {
    %w = train.read @w : tensor<4xf16>
    // CHECK: %[[X:.*]] = train.cast %arg0 : tensor<8x4xf16> to tensor<8x4xf32>
    // CHECK: train.mul %[[X]], %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
    %y = train.mul %x, %w : tensor<8x4xf16>, tensor<4xf16>
    %l = train.reduce_sum %y axes [0, 1] keepdims false : tensor<8x4xf16>
    // CHECK: return %{{.*}} : tensor<f32>
    return %l : tensor<f16>
  }
}

// -----

// Where a parameter in f64 reaches, f32; positions stay f64.
// WARN: warning: the model is in f64 ('w') and is computed in f32, about 7 digits
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4xf64> trainable
  func.func @model(%x: tensor<8x4xf64>) -> tensor<f64> {
    %w = train.read @w : tensor<4xf64>
    %low = train.constant dense<-1.7e+308> : tensor<f64>
    // CHECK: %[[E:.*]] = train.exp %arg0 : tensor<8x4xf64>
    %e = train.exp %x : tensor<8x4xf64>
    // CHECK: %[[F:.*]] = train.cast %[[E]] : tensor<8x4xf64> to tensor<8x4xf32>
    // CHECK: train.mul %[[F]], %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
    %y = train.mul %e, %w : tensor<8x4xf64>, tensor<4xf64>
    // CHECK: train.constant dense<-3.40282347E+38> : tensor<f32>
    // CHECK: train.max %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<f32>
    %m = train.max %y, %low : tensor<8x4xf64>, tensor<f64>
    %l = train.reduce_sum %m axes [0, 1] keepdims false : tensor<8x4xf64>
    return %l : tensor<f64>
  }
}

// -----

// No kernel has a softmax of f64.
// WARN: warning: f64 is computed in f32 where no kernel has f64: 'train.softmax'
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4xf32> trainable
  func.func @model(%x: tensor<8x4xf64>) -> tensor<f32> {
    // CHECK: train.softmax %{{.*}} axis 1 : tensor<8x4xf32>
    %s = train.softmax %x axis 1 : tensor<8x4xf64>
    %f = train.cast %s : tensor<8x4xf64> to tensor<8x4xf32>
    %w = train.read @w : tensor<4xf32>
    %y = train.mul %f, %w : tensor<8x4xf32>, tensor<4xf32>
    %l = train.reduce_sum %y axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}

// -----

// A model in f32 stays as it is.
// CHECK-LABEL: func.func @model
module {
  train.parameter @w : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4x4xf32>
    // CHECK-NOT: train.cast
    // CHECK: return
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf32>, tensor<4x4xf32>
    %l = train.reduce_sum %y axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}
