// REQUIRES: merak-opt
// RUN: merak-opt %s --legalize-onnx --differentiate --sparse-updates="data=%t.none" --remarks-filter=sparse -o /dev/null 2>&1 | FileCheck %s

// Ids that the model computes from floats are not counted; no data are opened for them.
// CHECK: [Missed] Touched {{.*}}its ids are not computed from integer inputs alone{{.*}}'table': what a step looks up is not counted
// CHECK: 'table' is updated by rows: at most 8 of 96
module {
  train.parameter @table : tensor<96x4xf32> trainable
  func.func @model(%ids: tensor<8xi64>, %more: tensor<8xf32>) -> tensor<f32> {
    %t = train.read @table : tensor<96x4xf32>
    %cast = train.onnx_node "Cast" opset 17(%more) {to = 7 : si64} : (tensor<8xf32>) -> tensor<8xi64>
    %sum = train.onnx_node "Add" opset 17(%ids, %cast) {} : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
    %y = train.onnx_node "Gather" opset 17(%t, %sum) {} : (tensor<96x4xf32>, tensor<8xi64>) -> tensor<8x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%y) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}
