// RUN: merak-opt %s --legalize-onnx | FileCheck %s

// A Gemm is a contraction; the flags choose letters.
// CHECK-LABEL: @gemm
// CHECK: %[[Y:.*]] = train.einsum "yx,zx->yz" %arg0, %arg1
// CHECK: train.add %[[Y]], %arg2
func.func @gemm(%x: tensor<8x4xf32>, %w: tensor<3x4xf32>, %b: tensor<3xf32>) -> tensor<8x3xf32> {
  %0 = train.onnx_node "Gemm" opset 13(%x, %w, %b) {transB = 1 : i64} : (tensor<8x4xf32>, tensor<3x4xf32>, tensor<3xf32>) -> tensor<8x3xf32>
  return %0 : tensor<8x3xf32>
}

// A batch dimension of size 1 beside a larger one has no letter.
// CHECK-LABEL: @matmul
// CHECK: train.reshape %arg1 : tensor<1x4x3xf32> to tensor<4x3xf32>
// CHECK: train.einsum "ayx,xz->ayz"
func.func @matmul(%x: tensor<2x8x4xf32>, %w: tensor<1x4x3xf32>) -> tensor<2x8x3xf32> {
  %0 = train.onnx_node "MatMul" opset 17(%x, %w) {} : (tensor<2x8x4xf32>, tensor<1x4x3xf32>) -> tensor<2x8x3xf32>
  return %0 : tensor<2x8x3xf32>
}

// Axes are an attribute in opset 11 and an input in opset 13.
// CHECK-LABEL: @reduce_sum
// CHECK: train.reduce_sum %arg0 axes [1] keepdims false
// CHECK: train.reduce_sum %arg0 axes [1] keepdims false
func.func @reduce_sum(%x: tensor<8x4xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = train.onnx_node "ReduceSum" opset 11(%x) {axes = array<i64: -1>, keepdims = 0 : i64} : (tensor<8x4xf32>) -> tensor<8xf32>
  %axes = train.constant dense<-1> : tensor<1xi64>
  %1 = train.onnx_node "ReduceSum" opset 13(%x, %axes) {keepdims = 0 : i64} : (tensor<8x4xf32>, tensor<1xi64>) -> tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// Before opset 13 softmax joins the dimensions from its axis on.
// CHECK-LABEL: @softmax
// CHECK: train.reshape %arg0 : tensor<2x3x4xf32> to tensor<2x12xf32>
// CHECK: train.softmax {{.*}} axis 1 : tensor<2x12xf32>
// CHECK: train.softmax %arg0 axis 2 : tensor<2x3x4xf32>
func.func @softmax(%x: tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>, tensor<2x3x4xf32>) {
  %0 = train.onnx_node "Softmax" opset 11(%x) {} : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %1 = train.onnx_node "Softmax" opset 13(%x) {} : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  return %0, %1 : tensor<2x3x4xf32>, tensor<2x3x4xf32>
}

// The mean of a loss is a sum over a count of the labels that are kept.
// CHECK-LABEL: @loss
// CHECK: %[[T:.*]] = train.transpose %arg0 perm [0, 2, 1]
// CHECK: %[[LOSS:.*]], %{{.*}} = train.softmax_cross_entropy %[[T]], %arg1 ignore -100
// CHECK: %[[SUM:.*]] = train.reduce_sum %[[LOSS]] axes [0, 1] keepdims false
// CHECK: %[[KEPT:.*]] = train.compare ne %arg1
// CHECK: %[[ONES:.*]] = train.cast %[[KEPT]]
// CHECK: %[[COUNT:.*]] = train.reduce_sum %[[ONES]] axes [0, 1] keepdims false
// CHECK: train.div %[[SUM]], %[[COUNT]]
func.func @loss(%x: tensor<2x5x3xf32>, %l: tensor<2x3xi64>) -> tensor<f32> {
  %0 = train.onnx_node "SoftmaxCrossEntropyLoss" opset 13(%x, %l) {ignore_index = -100 : i64, reduction = "mean"} : (tensor<2x5x3xf32>, tensor<2x3xi64>) -> tensor<f32>
  return %0 : tensor<f32>
}

// CHECK-LABEL: @loss_without_ignore
// CHECK: %[[SUM:.*]] = train.reduce_sum
// CHECK: %[[C:.*]] = train.constant dense<1.250000e-01>
// CHECK: train.mul %[[SUM]], %[[C]]
func.func @loss_without_ignore(%x: tensor<8x5xf32>, %l: tensor<8xi64>) -> tensor<f32> {
  %0 = train.onnx_node "SoftmaxCrossEntropyLoss" opset 13(%x, %l) {} : (tensor<8x5xf32>, tensor<8xi64>) -> tensor<f32>
  return %0 : tensor<f32>
}

// Chances instead of labels, as PyTorch's exporters write them: the mean is over
// samples.
// CHECK-LABEL: @loss_of_chances
// CHECK: %[[LOG:.*]] = train.sub
// CHECK: %[[ROWS:.*]] = train.mul %{{.*}}, %arg1
// CHECK: train.reduce_sum %[[ROWS]] axes [1] keepdims false
// CHECK: train.reduce_sum %{{.*}} axes [0] keepdims false
// CHECK: train.constant dense<1.250000e-01>
func.func @loss_of_chances(%x: tensor<8x5xf32>, %l: tensor<8x5xf32>) -> tensor<f32> {
  %0 = train.onnx_node "SoftmaxCrossEntropyLoss" opset 13(%x, %l) {reduction = "mean"} : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// Dropout without an active training mode is the identity.
// CHECK-LABEL: @dropout
// CHECK: return %arg0
func.func @dropout(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = train.onnx_node "Dropout" opset 13(%x) {} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// CHECK-LABEL: @conv
// CHECK: train.conv %arg0, %arg1 {{.*}}pads = array<i64: 1, 1, 1, 1>{{.*}}strides = array<i64: 2, 2>
// CHECK: train.reshape %arg2 : tensor<6xf32> to tensor<6x1x1xf32>
func.func @conv(%x: tensor<2x3x8x8xf32>, %w: tensor<6x3x3x3xf32>, %b: tensor<6xf32>) -> tensor<2x6x4x4xf32> {
  %0 = train.onnx_node "Conv" opset 11(%x, %w, %b) {pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 2, 2>} : (tensor<2x3x8x8xf32>, tensor<6x3x3x3xf32>, tensor<6xf32>) -> tensor<2x6x4x4xf32>
  return %0 : tensor<2x6x4x4xf32>
}

// CHECK-LABEL: @split
// CHECK: train.slice %arg0 starts [0, 0] sizes [8, 2] steps [1, 1]
// CHECK: train.slice %arg0 starts [0, 2] sizes [8, 4] steps [1, 1]
func.func @split(%x: tensor<8x6xf32>) -> (tensor<8x2xf32>, tensor<8x4xf32>) {
  %0:2 = train.onnx_node "Split" opset 11(%x) {axis = 1 : i64, split = array<i64: 2, 4>} : (tensor<8x6xf32>) -> (tensor<8x2xf32>, tensor<8x4xf32>)
  return %0#0, %0#1 : tensor<8x2xf32>, tensor<8x4xf32>
}

// In training mode the statistics are those of a microbatch; the running ones
// are tracked where they are weights: 4 x 4 numbers a sample.
// CHECK-LABEL: @batch_norm
// CHECK: %[[MEAN:.*]] = train.batch_mean
// CHECK: %[[CENTERED:.*]] = train.sub %arg0
// CHECK: %[[VARIANCE:.*]] = train.batch_mean
// CHECK: train.track %[[MEAN]], %{{.*}} keep 5.000000e-01 each 16 : tensor<2x3xf32>, tensor<3xf32>
// CHECK: train.track %[[VARIANCE]], %{{.*}} keep 5.000000e-01 each 16 variance
train.parameter @running_mean : tensor<3xf32>
train.parameter @running_var : tensor<3xf32>
func.func @batch_norm(%x: tensor<2x3x4x4xf32>, %c: tensor<3xf32>) -> tensor<2x3x4x4xf32> {
  %m = train.read @running_mean : tensor<3xf32>
  %v = train.read @running_var : tensor<3xf32>
  %0:3 = train.onnx_node "BatchNormalization" opset 15(%x, %c, %c, %m, %v) {training_mode = 1 : i64, momentum = 5.0e-01 : f32} : (tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3x4x4xf32>, tensor<3xf32>, tensor<3xf32>)
  return %0#0 : tensor<2x3x4x4xf32>
}

// CHECK-LABEL: @simplified_layer_norm
// CHECK: train.rms_norm %arg0
func.func @simplified_layer_norm(%x: tensor<2x8xf32>, %s: tensor<8xf32>) -> tensor<2x8xf32> {
  %0 = train.onnx_node "SimplifiedLayerNormalization" opset 17(%x, %s) {axis = -1 : i64, epsilon = 1.0e-05 : f32} : (tensor<2x8xf32>, tensor<8xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// The second root of the sum of squares over all positions.
// CHECK-LABEL: @global_lp_pool
// CHECK: train.reduce_sum {{.*}} axes [2, 3]
// CHECK: return %{{.*}} : tensor<2x3x1x1xf32>
func.func @global_lp_pool(%x: tensor<2x3x4x4xf32>) -> tensor<2x3x1x1xf32> {
  %0 = train.onnx_node "GlobalLpPool" opset 17(%x) {p = 2 : i64} : (tensor<2x3x4x4xf32>) -> tensor<2x3x1x1xf32>
  return %0 : tensor<2x3x1x1xf32>
}

// CHECK-LABEL: @upsample
// CHECK: return %{{.*}} : tensor<1x1x4x6xf32>
func.func @upsample(%x: tensor<1x1x2x3xf32>) -> tensor<1x1x4x6xf32> {
  %s = train.constant dense<[1.0, 1.0, 2.0, 2.0]> : tensor<4xf32>
  %0 = train.onnx_node "Upsample" opset 9(%x, %s) {mode = "nearest"} : (tensor<1x1x2x3xf32>, tensor<4xf32>) -> tensor<1x1x4x6xf32>
  return %0 : tensor<1x1x4x6xf32>
}

// A constant condition chooses rows.
// CHECK-LABEL: @compress
// CHECK: %[[ROWS:.*]] = train.constant dense<[0, 2]> : tensor<2xi64>
// CHECK: train.gather %arg0
// CHECK: return %{{.*}} : tensor<2x3xf32>
func.func @compress(%x: tensor<4x3xf32>) -> tensor<2x3xf32> {
  %c = train.constant dense<[true, false, true]> : tensor<3xi1>
  %0 = train.onnx_node "Compress" opset 11(%x, %c) {axis = 0 : i64} : (tensor<4x3xf32>, tensor<3xi1>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// Sums are exact in f64.
// CHECK-LABEL: @matmul_integer
// CHECK: train.cast %arg0 : tensor<2x4xui8> to tensor<2x4xf64>
// CHECK: train.einsum
// CHECK: train.cast {{.*}} : tensor<2x3xf64> to tensor<2x3xi32>
func.func @matmul_integer(%x: tensor<2x4xui8>, %w: tensor<4x3xui8>) -> tensor<2x3xi32> {
  %0 = train.onnx_node "MatMulInteger" opset 10(%x, %w) {} : (tensor<2x4xui8>, tensor<4x3xui8>) -> tensor<2x3xi32>
  return %0 : tensor<2x3xi32>
}

// One mask where the chance is a constant; every node has masks of its own.
// CHECK-LABEL: @bernoulli
// CHECK: train.dropout {{.*}} ratio 7.500000e-01 id 2147483648
// CHECK: train.dropout {{.*}} ratio 7.500000e-01 id 2147483712
// CHECK-NOT: train.dropout
// CHECK: return
func.func @bernoulli() -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %p = train.constant dense<0.25> : tensor<2x3xf32>
  %0 = train.onnx_node "Bernoulli" opset 15(%p) {} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %1 = train.onnx_node "Bernoulli" opset 15(%p) {} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<2x3xf32>
}
