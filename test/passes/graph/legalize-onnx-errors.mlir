// RUN: not merak-opt %s --legalize-onnx 2>&1 | FileCheck %s

// All that cannot be legalized is listed, not the first one only.
// CHECK: Multinomial (opset 17): unsupported op
// CHECK: Acme (com.acme opset 1): unsupported op, expected one of the standard domain
// CHECK: Gelu (opset 17): unsupported version of the op, expected opset 20 to 28
// CHECK: SoftmaxCrossEntropyLoss (opset 13): expected a weight for each class of f32[8,5], found f32[4]
// CHECK: BatchNormalization (opset 9): unsupported use of saved statistics
// CHECK: Reshape (opset 17): expected constant shape, found data computed
// CHECK: NonZero (opset 17): expected a shape that follows from the model and its options, found one that depends on data
// CHECK: Conv (opset 11): expected a weight for 3 input channels in 1 groups, found f32[2,3,8,8] and f32[6,4,3,3]
// CHECK: Dropout (opset 17): expected a constant training_mode
// CHECK: Dropout (opset 17): expected a constant ratio
// CHECK: Dropout (opset 17): expected a ratio in [0, 1), found 1
// CHECK: Add (opset 17): expected shapes that broadcast, found f32[3,3] and f32[6]
func.func @unsupported(%x: tensor<3x3xf32>, %s: tensor<8x5xf32>, %l: tensor<8xi64>, %v: tensor<6xf32>,
                       %i: tensor<2x3x8x8xf32>, %k: tensor<6x4x3x3xf32>, %n: tensor<2xi64>, %c: tensor<3xf32>,
                       %t: tensor<i1>, %r: tensor<f32>) -> tensor<f32> {
  %0 = train.onnx_node "Multinomial" opset 17(%x) {} : (tensor<3x3xf32>) -> tensor<f32>
  %1 = train.onnx_node "Acme" in "com.acme" opset 1(%x) {} : (tensor<3x3xf32>) -> tensor<f32>
  %2 = train.onnx_node "Gelu" opset 17(%x) {} : (tensor<3x3xf32>) -> tensor<3x3xf32>
  %w = train.constant dense<1.0> : tensor<4xf32>
  %3 = train.onnx_node "SoftmaxCrossEntropyLoss" opset 13(%s, %l, %w) {} : (tensor<8x5xf32>, tensor<8xi64>, tensor<4xf32>) -> tensor<f32>
  %4:2 = train.onnx_node "BatchNormalization" opset 9(%i, %c, %c, %c, %c) {} : (tensor<2x3x8x8xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3x8x8xf32>, tensor<3xf32>)
  %used = train.onnx_node "Identity" opset 9(%4#1) {} : (tensor<3xf32>) -> tensor<3xf32>
  %5 = train.onnx_node "Reshape" opset 17(%x, %n) {} : (tensor<3x3xf32>, tensor<2xi64>) -> tensor<3x3xf32>
  %6 = train.onnx_node "NonZero" opset 17(%x) {} : (tensor<3x3xf32>) -> tensor<2x9xi64>
  %7 = train.onnx_node "Conv" opset 11(%i, %k) {} : (tensor<2x3x8x8xf32>, tensor<6x4x3x3xf32>) -> tensor<2x6x6x6xf32>
  %one = train.constant dense<1.0> : tensor<f32>
  %true = train.constant dense<true> : tensor<i1>
  %d0 = train.onnx_node "Dropout" opset 17(%x, %one, %t) {} : (tensor<3x3xf32>, tensor<f32>, tensor<i1>) -> tensor<3x3xf32>
  %d1 = train.onnx_node "Dropout" opset 17(%x, %r, %true) {} : (tensor<3x3xf32>, tensor<f32>, tensor<i1>) -> tensor<3x3xf32>
  %d2 = train.onnx_node "Dropout" opset 17(%x, %one, %true) {} : (tensor<3x3xf32>, tensor<f32>, tensor<i1>) -> tensor<3x3xf32>
  %8 = train.onnx_node "Add" opset 17(%x, %v) {} : (tensor<3x3xf32>, tensor<6xf32>) -> tensor<3x3xf32>
  return %0 : tensor<f32>
}
