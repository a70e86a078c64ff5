// REQUIRES: merak-opt
// RUN: merak-opt %s --split-input-file | merak-opt --split-input-file | FileCheck %s --check-prefix=SAME
// RUN: merak-opt %s --legalize-onnx --split-input-file | FileCheck %s
// RUN: merak-opt %s --legalize-onnx --differentiate --split-input-file | FileCheck %s --check-prefix=GRAD

// SAME: train.stop_gradient %{{.*}} : tensor<8x4xf32>

// What was detached trains nothing before it; the op is gone afterwards.
// CHECK-LABEL: func.func @model
// CHECK: %[[Y:.*]] = train.mul
// CHECK: %[[D:.*]] = train.stop_gradient %[[Y]]
// CHECK: %[[E:.*]] = train.stop_gradient %[[D]]
// CHECK: train.mul %[[E]]
// GRAD-LABEL: func.func @step
// GRAD-NOT: train.stop_gradient
// GRAD: train.update @v
// GRAD-NOT: train.update @w
// GRAD: return
module {
  train.parameter @w : tensor<4xf32> trainable = dense<1.0> : tensor<4xf32>
  train.parameter @v : tensor<4xf32> trainable = dense<2.0> : tensor<4xf32>
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4xf32>
    %v = train.read @v : tensor<4xf32>
    %y = train.onnx_node "Mul" opset 17(%x, %w) {} : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
    %d = train.onnx_node "Identity" opset 17(%y) {org.merak.stop_gradient = 1 : si64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %e = train.stop_gradient %d : tensor<8x4xf32>
    %z = train.onnx_node "Mul" opset 17(%e, %v) {} : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%z) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}

// -----

// The padding row of a table: looked up, but not trained.
// CHECK-LABEL: func.func @model
// CHECK: %[[ROWS:.*]] = train.gather
// CHECK: %[[PAD:.*]] = train.compare eq
// CHECK: %[[STOP:.*]] = train.stop_gradient %[[ROWS]]
// CHECK: train.select %{{.*}}, %[[STOP]], %[[ROWS]]
// GRAD-LABEL: func.func @step
// GRAD: train.update @table
module {
  train.parameter @table : tensor<5x4xf32> trainable = dense<1.0> : tensor<5x4xf32>
  func.func @model(%ids: tensor<8xi64>) -> tensor<f32> {
    %t = train.read @table : tensor<5x4xf32>
    %y = train.onnx_node "Gather" opset 17(%t, %ids) {org.merak.padding_idx = 0 : si64} : (tensor<5x4xf32>, tensor<8xi64>) -> tensor<8x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%y) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}

// -----

// 0.9 of the loss, 0.1 of that against equal chances of the 4 classes.
// CHECK-LABEL: func.func @model
// CHECK-DAG: train.constant dense<0.899999976>
// CHECK-DAG: train.constant dense<2.500000e-02>
// CHECK-DAG: train.softmax_cross_entropy
// CHECK-DAG: train.reduce_max
// CHECK: return
module {
  train.parameter @w : tensor<4xf32> trainable = dense<1.0> : tensor<4xf32>
  func.func @model(%x: tensor<8x4xf32>, %labels: tensor<8xi64>) -> tensor<f32> {
    %w = train.read @w : tensor<4xf32>
    %y = train.onnx_node "Mul" opset 17(%x, %w) {} : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
    %l = train.onnx_node "SoftmaxCrossEntropyLoss" opset 17(%y, %labels) {org.merak.label_smoothing = 1.000000e-01 : f32} : (tensor<8x4xf32>, tensor<8xi64>) -> tensor<f32>
    return %l : tensor<f32>
  }
}

// -----

// No dropout in a node that the exporter's note says is off, whatever its input.
// CHECK-LABEL: func.func @model
// CHECK-NOT: train.dropout
// CHECK: return
module {
  train.parameter @w : tensor<4xf32> trainable = dense<1.0> : tensor<4xf32>
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4xf32>
    %true = train.constant dense<true> : tensor<i1>
    %half = train.constant dense<0.5> : tensor<f32>
    %y = train.onnx_node "Mul" opset 17(%x, %w) {} : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
    %z = train.onnx_node "Dropout" opset 17(%y, %half, %true) {org.merak.training_mode = 0 : si64} : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%z) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}
