// REQUIRES: merak-opt
// RUN: merak-opt %s --legalize-onnx --split-input-file | FileCheck %s
// RUN: merak-opt %s --legalize-onnx=dropout=false --split-input-file | FileCheck %s --check-prefix=OFF
// RUN: merak-opt %s --graph-import --differentiate --split-input-file | FileCheck %s --check-prefix=GRAD

// Every active node has its own number; a mask that is used is drawn from ones
// with the number of the node. Absent modes, absent ratios, ratio 0.
// CHECK-LABEL: func.func @model
// CHECK-DAG: %[[HALF:.*]] = train.dropout %{{.*}} ratio 5.000000e-01 id 1 : tensor<8x4xf32>
// CHECK-DAG: %[[FIFTH:.*]] = train.dropout %[[HALF]] ratio 0.2{{[0-9]*}} id 3 : tensor<8x4xf32>
// CHECK-DAG: %[[ONES:.*]] = train.constant dense<1.000000e+00> : tensor<8x4xf32>
// CHECK-DAG: %[[DRAWN:.*]] = train.dropout %[[ONES]] ratio 0.2{{[0-9]*}} id 3 : tensor<8x4xf32>
// CHECK-DAG: %[[MASK:.*]] = train.compare gt %[[DRAWN]]
// CHECK-DAG: train.select %[[MASK]], %[[FIFTH]]
// CHECK-NOT: id 0
// CHECK-NOT: id 2
// CHECK: return

// OFF-LABEL: func.func @model
// OFF-NOT: train.dropout
// OFF: return

// The gradient draws the same masks: the same number and ratio.
// GRAD-LABEL: func.func @step
// GRAD: train.dropout %{{.*}} ratio 5.000000e-01 id 1 {{.*}}train.role = "forward"
// GRAD: train.dropout %{{.*}} ratio 0.2{{[0-9]*}} id 3 {{.*}}train.role = "forward"
// GRAD: train.dropout %[[DY:.*]] ratio 0.2{{[0-9]*}} id 3 {{.*}}train.role = "backward_input"
// GRAD: train.dropout %{{.*}} ratio 5.000000e-01 id 1 {{.*}}train.role = "backward_input"
module {
  train.parameter @w : tensor<4x4xf32> trainable from #train.source<"" at 0 length 64>
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4x4xf32>
    %y = train.onnx_node "MatMul" opset 17(%x, %w) {} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
    %true = train.constant dense<true> : tensor<i1>
    %zero = train.constant dense<0.0> : tensor<f32>
    %fifth = train.constant dense<0.2> : tensor<f32>
    %none = train.none : none
    %0 = train.onnx_node "Dropout" opset 17(%y) {} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %1 = train.onnx_node "Dropout" opset 17(%0, %none, %true) {} : (tensor<8x4xf32>, none, tensor<i1>) -> tensor<8x4xf32>
    %2 = train.onnx_node "Dropout" opset 17(%1, %zero, %true) {} : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> tensor<8x4xf32>
    %3:2 = train.onnx_node "Dropout" opset 17(%2, %fifth, %true) {} : (tensor<8x4xf32>, tensor<f32>, tensor<i1>) -> (tensor<8x4xf32>, tensor<8x4xi1>)
    %4 = train.onnx_node "Where" opset 17(%3#1, %3#0, %0) {} : (tensor<8x4xi1>, tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %5 = train.onnx_node "ReduceSum" opset 11(%4) {keepdims = 0 : i64} : (tensor<8x4xf32>) -> tensor<f32>
    return %5 : tensor<f32>
  }
}

// -----

// Before opset 12 the ratio is an attribute and a node that is there is active.
// CHECK-LABEL: func.func @model
// CHECK: train.dropout %{{.*}} ratio 2.500000e-01 id 0
// OFF-LABEL: func.func @model
// OFF-NOT: train.dropout
// GRAD-LABEL: func.func @step
module {
  train.parameter @w : tensor<4xf32> trainable from #train.source<"" at 0 length 16>
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %w = train.read @w : tensor<4xf32>
    %0 = train.onnx_node "Mul" opset 11(%x, %w) {} : (tensor<8x4xf32>, tensor<4xf32>) -> tensor<8x4xf32>
    %1 = train.onnx_node "Dropout" opset 11(%0) {ratio = 2.500000e-01 : f32} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = train.onnx_node "ReduceSum" opset 11(%1) {keepdims = 0 : i64} : (tensor<8x4xf32>) -> tensor<f32>
    return %2 : tensor<f32>
  }
}
