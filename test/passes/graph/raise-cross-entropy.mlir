// RUN: merak-opt %s --legalize-onnx --canonicalize-graph --cse --raise-cross-entropy | FileCheck %s

// LogSoftmax and NegativeLogLikelihoodLoss are one cross entropy.
// CHECK-LABEL: @nll
// CHECK: %[[LOSS:.*]], %{{.*}} = train.softmax_cross_entropy %arg0, %arg1 ignore -100
// CHECK-NEXT: train.reduce_sum %[[LOSS]]
// CHECK-NOT: train.neg
func.func @nll(%x: tensor<8x5xf32>, %l: tensor<8xi64>) -> tensor<f32> {
  %0 = train.onnx_node "LogSoftmax" opset 13(%x) {axis = 1 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
  %1 = train.onnx_node "NegativeLogLikelihoodLoss" opset 13(%0, %l) {ignore_index = -100 : i64} : (tensor<8x5xf32>, tensor<8xi64>) -> tensor<f32>
  return %1 : tensor<f32>
}

// Over another axis it is not one.
// CHECK-LABEL: @other_axis
// CHECK-NOT: train.softmax_cross_entropy
// CHECK: train.pick
func.func @other_axis(%x: tensor<8x5xf32>, %l: tensor<8xi64>) -> tensor<f32> {
  %0 = train.onnx_node "LogSoftmax" opset 13(%x) {axis = 0 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
  %1 = train.onnx_node "NegativeLogLikelihoodLoss" opset 13(%0, %l) {} : (tensor<8x5xf32>, tensor<8xi64>) -> tensor<f32>
  return %1 : tensor<f32>
}
