// RUN: merak-opt %s --legalize-onnx | FileCheck %s

// The places beside the axis are the same of table and ids, so they can be split;
// the axis is moved behind them.
// CHECK-LABEL: @gather_elements
// CHECK-DAG: %[[TABLE:.*]] = train.transpose %arg0 perm [1, 0]
// CHECK-DAG: %[[WRAPPED:.*]] = train.select
// CHECK-DAG: %[[IDS:.*]] = train.transpose %[[WRAPPED]] perm [1, 0]
// CHECK: train.gather %[[TABLE]][%[[IDS]]] axis 1 {batch = 1 : i64} : tensor<4x3xf32>, tensor<4x2xi64>
func.func @gather_elements(%x: tensor<3x4xf32>, %i: tensor<2x4xi64>) -> tensor<2x4xf32> {
  %0 = train.onnx_node "GatherElements" opset 13(%x, %i) {axis = 0 : i64} : (tensor<3x4xf32>, tensor<2x4xi64>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// Ids that are repeated behind the axis choose whole slices.
// CHECK-LABEL: @gather_slices
// CHECK: %[[ONCE:.*]] = train.reshape %arg1 : tensor<2x3x1xi64> to tensor<2x3xi64>
// CHECK: %[[WRAPPED:.*]] = train.select {{.*}} %[[ONCE]]
// CHECK: train.gather %arg0[%[[WRAPPED]]] axis 1 {batch = 1 : i64} : tensor<2x5x4xf32>, tensor<2x3xi64>
func.func @gather_slices(%x: tensor<2x5x4xf32>, %i: tensor<2x3x1xi64>) -> tensor<2x3x4xf32> {
  %e = train.expand %i : tensor<2x3x1xi64> to tensor<2x3x4xi64>
  %0 = train.onnx_node "GatherElements" opset 13(%x, %e) {axis = 1 : i64} : (tensor<2x5x4xf32>, tensor<2x3x4xi64>) -> tensor<2x3x4xf32>
  return %0 : tensor<2x3x4xf32>
}

// CHECK-LABEL: @gather_nd
// CHECK: train.gather %{{.*}}[%{{.*}}] axis 1 {batch = 1 : i64} : tensor<2x15x4xf32>, tensor<2x7xi64>
func.func @gather_nd(%x: tensor<2x3x5x4xf32>, %i: tensor<2x7x2xi64>) -> tensor<2x7x4xf32> {
  %0 = train.onnx_node "GatherND" opset 13(%x, %i) {batch_dims = 1 : i64} : (tensor<2x3x5x4xf32>, tensor<2x7x2xi64>) -> tensor<2x7x4xf32>
  return %0 : tensor<2x7x4xf32>
}

// CHECK-LABEL: @scatter_elements
// CHECK: train.scatter_add %arg2 at %{{.*}} axis 1 {batch = 1 : i64} : tensor<3x2xf32>, tensor<3x2xi64> to tensor<3x5xf32>
func.func @scatter_elements(%x: tensor<3x5xf32>, %i: tensor<3x2xi64>, %u: tensor<3x2xf32>) -> tensor<3x5xf32> {
  %0 = train.onnx_node "ScatterElements" opset 18(%x, %i, %u) {axis = 1 : i64, reduction = "add"} : (tensor<3x5xf32>, tensor<3x2xi64>, tensor<3x2xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}

// Another axis is moved to the end and back.
// CHECK-LABEL: @top_k
// CHECK: %[[LAST:.*]] = train.transpose %arg0 perm [1, 0]
// CHECK: train.top_k %[[LAST]] smallest : tensor<4x6xf32> -> tensor<4x2xf32>, tensor<4x2xi64>
func.func @top_k(%x: tensor<6x4xf32>) -> tensor<2x4xf32> {
  %k = train.constant dense<2> : tensor<1xi64>
  %0:2 = train.onnx_node "TopK" opset 11(%x, %k) {axis = 0 : i64, largest = 0 : i64} : (tensor<6x4xf32>, tensor<1xi64>) -> (tensor<2x4xf32>, tensor<2x4xi64>)
  return %0#0 : tensor<2x4xf32>
}

// Running sums of 5 elements: distances 1, 2 and 4.
// CHECK-LABEL: @cumsum
// CHECK-COUNT-3: train.add
// CHECK-NOT: train.add
func.func @cumsum(%x: tensor<5xf32>) -> tensor<5xf32> {
  %a = train.constant dense<0> : tensor<i64>
  %0 = train.onnx_node "CumSum" opset 14(%x, %a) {} : (tensor<5xf32>, tensor<i64>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// A transposed convolution is the gradient of a convolution: 2 (4-1) + 3 = 9.
// CHECK-LABEL: @conv_transpose
// CHECK: train.conv_grad_input %arg0, %arg1 {{.*}} : tensor<1x2x4x4xf32>, tensor<2x3x3x3xf32> -> tensor<1x3x9x9xf32>
func.func @conv_transpose(%x: tensor<1x2x4x4xf32>, %w: tensor<2x3x3x3xf32>) -> tensor<1x3x9x9xf32> {
  %0 = train.onnx_node "ConvTranspose" opset 11(%x, %w) {strides = array<i64: 2, 2>} : (tensor<1x2x4x4xf32>, tensor<2x3x3x3xf32>) -> tensor<1x3x9x9xf32>
  return %0 : tensor<1x3x9x9xf32>
}

// Known indices that form a grid, as x[:, 1:3] = u has them: the first dimension
// is written whole and can be split, the other is padded.
// CHECK-LABEL: @slice_assignment
// CHECK-NOT: train.scatter_add
// CHECK: %[[WIDE:.*]] = train.pad %{{.*}} low [0, 1] high [0, 1] interior [0, 0]
// CHECK: %[[HERE:.*]] = train.constant dense<{{\[\[}}false, true, true, false]]> : tensor<1x4xi1>
// CHECK: train.select %[[HERE]], %[[WIDE]], %arg0
func.func @slice_assignment(%x: tensor<2x4xf32>, %u: tensor<2x2xf32>) -> tensor<2x4xf32> {
  %i = train.constant dense<[[[0, 1], [0, 2]], [[1, 1], [1, 2]]]> : tensor<2x2x2xi64>
  %0 = train.onnx_node "ScatterND" opset 16(%x, %i, %u) {} : (tensor<2x4xf32>, tensor<2x2x2xi64>, tensor<2x2xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// One column, and rows in an order that no padding makes: added where they are.
// CHECK-LABEL: @grid_in_disorder
// CHECK-NOT: train.scatter_add
// CHECK: %[[FROM:.*]] = train.constant dense<[1, 0, 0]> : tensor<3xi64>
// CHECK: train.gather %{{.*}}[%[[FROM]]] axis 0
// CHECK: train.pad %{{.*}} low [0, 3] high [0, 0]
// CHECK: train.and
// CHECK: train.add %arg0
// CHECK: train.select
func.func @grid_in_disorder(%x: tensor<3x4xf32>, %u: tensor<2xf32>) -> tensor<3x4xf32> {
  %i = train.constant dense<[[2, 3], [0, -1]]> : tensor<2x2xi64>
  %0 = train.onnx_node "ScatterND" opset 16(%x, %i, %u) {reduction = "add"} : (tensor<3x4xf32>, tensor<2x2xi64>, tensor<2xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// A place that is written twice is no grid: both are added.
// CHECK-LABEL: @written_twice
// CHECK: train.scatter_add
func.func @written_twice(%x: tensor<3xf32>, %u: tensor<2xf32>) -> tensor<3xf32> {
  %i = train.constant dense<1> : tensor<2x1xi64>
  %0 = train.onnx_node "ScatterND" opset 16(%x, %i, %u) {reduction = "add"} : (tensor<3xf32>, tensor<2x1xi64>, tensor<2xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// A diagonal is none either: both components follow the same dimension.
// CHECK-LABEL: @diagonal
// CHECK: train.scatter_add
func.func @diagonal(%x: tensor<3x3xf32>, %u: tensor<2xf32>) -> tensor<3x3xf32> {
  %i = train.constant dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>
  %0 = train.onnx_node "ScatterND" opset 16(%x, %i, %u) {} : (tensor<3x3xf32>, tensor<2x2xi64>, tensor<2xf32>) -> tensor<3x3xf32>
  return %0 : tensor<3x3xf32>
}
