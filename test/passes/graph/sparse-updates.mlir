// REQUIRES: merak-opt
// RUN: merak-opt %s --legalize-onnx --differentiate --sparse-updates --split-input-file | FileCheck %s
// RUN: merak-opt %s --legalize-onnx --differentiate --sparse-updates --split-input-file --remarks-filter=sparse -o /dev/null 2>&1 | FileCheck %s --check-prefix=REMARK

// RUN: merak-opt %s --legalize-onnx --differentiate --sparse-updates="mode=exact rests=true" --split-input-file --remarks-filter=sparse -o /dev/null 2>&1 | FileCheck %s --check-prefix=EXACT

// RUN: merak-opt %s --legalize-onnx --differentiate --sparse-updates="mode=exact" --split-input-file | FileCheck %s --check-prefix=REPLAYED

// Under an optimizer that changes all rows they are owed its steps.
// REPLAYED: train.update @table {{.*}}train.replayed
// CHECK-NOT: train.replayed

// EXACT: 'table' is updated by rows: at most 8 of 96
// EXACT: 'table' is updated by rows: at most 40 of 96
// EXACT: [Missed] Dense {{.*}}a step has more ids than it has rows{{.*}}'table' keeps its gradient

// The gradient of a table that is looked up alone is the rows of the ids.
// CHECK-LABEL: func.func @step
// CHECK-SAME: (%[[IDS:.*]]: tensor<8xi64>, %{{.*}}: tensor<8x4xf32>)
// CHECK: %[[DY:.*]] = train.mul %{{.*}}, %{{.*}} {train.of
// CHECK-NOT: train.scatter_add
// CHECK: %[[ROWS:.*]], %[[UNIQUE:.*]] = train.coalesce %[[DY]] at %[[IDS]] size 96 {{.*}}train.role = "update"
// CHECK: train.update @table : %{{.*}} by %[[ROWS]] at %[[UNIQUE]]
// REMARK: [Passed] Sparse | Category:sparse | {{.*}}'table' is updated by rows: at most 8 of 96
module {
  train.parameter @table : tensor<96x4xf32> trainable
  func.func @model(%ids: tensor<8xi64>, %x: tensor<8x4xf32>) -> tensor<f32> {
    %t = train.read @table : tensor<96x4xf32>
    %y = train.onnx_node "Gather" opset 17(%t, %ids) {} : (tensor<96x4xf32>, tensor<8xi64>) -> tensor<8x4xf32>
    %z = train.onnx_node "Mul" opset 17(%y, %x) {} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%z) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}

// -----

// Two lookups of one table are one update.
// CHECK-LABEL: func.func @step
// CHECK-SAME: (%[[A:.*]]: tensor<8x3xi64>, %[[B:.*]]: tensor<8x2xi64>)
// CHECK-DAG: %[[IDS:.*]] = train.concat %[[A]], %[[B]] axis 1
// CHECK-DAG: %[[DY:.*]] = train.concat %{{.*}}, %{{.*}} axis 1 {{.*}} : tensor<8x3x4xf32>, tensor<8x2x4xf32>
// CHECK: train.coalesce %[[DY]] at %[[IDS]] size 96
// CHECK-NOT: train.coalesce
// REMARK: 'table' is updated by rows: at most 40 of 96
module {
  train.parameter @table : tensor<96x4xf32> trainable
  func.func @model(%a: tensor<8x3xi64>, %b: tensor<8x2xi64>) -> tensor<f32> {
    %t = train.read @table : tensor<96x4xf32>
    %u = train.read @table : tensor<96x4xf32>
    %x = train.onnx_node "Gather" opset 17(%t, %a) {} : (tensor<96x4xf32>, tensor<8x3xi64>) -> tensor<8x3x4xf32>
    %y = train.onnx_node "Gather" opset 17(%u, %b) {} : (tensor<96x4xf32>, tensor<8x2xi64>) -> tensor<8x2x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%x) {keepdims = 0 : si64} : (tensor<8x3x4xf32>) -> tensor<f32>
    %m = train.onnx_node "ReduceSum" opset 17(%y) {keepdims = 0 : si64} : (tensor<8x2x4xf32>) -> tensor<f32>
    %n = train.onnx_node "Add" opset 17(%l, %m) {} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %n : tensor<f32>
  }
}

// -----

// No step is taken on the padding row: its id is one that the table does not have.
// CHECK-LABEL: func.func @step
// CHECK-SAME: (%[[IDS:.*]]: tensor<8xi64>)
// CHECK: %[[PAD:.*]] = train.compare eq %[[IDS]]
// CHECK: %[[NONE:.*]] = train.constant dense<5> : tensor<i64>
// CHECK: %[[LEFT:.*]] = train.select %[[PAD]], %[[NONE]], %[[IDS]]
// CHECK: train.coalesce %{{.*}} at %[[LEFT]] size 5
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

// The last product reads the table, too: every row has a gradient.
// CHECK-LABEL: func.func @step
// CHECK-NOT: train.coalesce
// CHECK: train.update @table : %{{.*}} by %{{.*}} : tensor<96x4xf32>, tensor<96x4xf32>
// REMARK: [Missed] Dense | Category:sparse | {{.*}}it is not only looked up by rows{{.*}}'table' keeps its gradient
module {
  train.parameter @table : tensor<96x4xf32> trainable
  func.func @model(%ids: tensor<8xi64>) -> tensor<f32> {
    %t = train.read @table : tensor<96x4xf32>
    %u = train.read @table : tensor<96x4xf32>
    %y = train.onnx_node "Gather" opset 17(%t, %ids) {} : (tensor<96x4xf32>, tensor<8xi64>) -> tensor<8x4xf32>
    %v = train.onnx_node "Transpose" opset 17(%u) {perm = [1 : si64, 0 : si64]} : (tensor<96x4xf32>) -> tensor<4x96xf32>
    %z = train.onnx_node "MatMul" opset 17(%y, %v) {} : (tensor<8x4xf32>, tensor<4x96xf32>) -> tensor<8x96xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%z) {keepdims = 0 : si64} : (tensor<8x96xf32>) -> tensor<f32>
    return %l : tensor<f32>
  }
}

// -----

// Lookups of one id and of many a sample, of different types, are joined sample by
// sample.
// CHECK-LABEL: func.func @step
// CHECK-SAME: (%[[A:.*]]: tensor<8xi32>, %[[B:.*]]: tensor<8x2x3xi64>)
// CHECK-DAG: %[[ONE:.*]] = train.reshape %[[A]] {{.*}} tensor<8xi32> to tensor<8x1xi32>
// CHECK-DAG: %[[CAST:.*]] = train.cast %[[ONE]] {{.*}} tensor<8x1xi32> to tensor<8x1xi64>
// CHECK-DAG: %[[MANY:.*]] = train.reshape %[[B]] {{.*}} tensor<8x2x3xi64> to tensor<8x6xi64>
// CHECK-DAG: %[[IDS:.*]] = train.concat %[[CAST]], %[[MANY]] axis 1
// CHECK-DAG: %[[DY:.*]] = train.concat %{{.*}}, %{{.*}} axis 1 {{.*}} : tensor<8x1x4xf32>, tensor<8x6x4xf32>
// CHECK: train.coalesce %[[DY]] at %[[IDS]] size 96
// REMARK: 'table' is updated by rows: at most 56 of 96
module {
  train.parameter @table : tensor<96x4xf32> trainable
  func.func @model(%a: tensor<8xi32>, %b: tensor<8x2x3xi64>) -> tensor<f32> {
    %t = train.read @table : tensor<96x4xf32>
    %u = train.read @table : tensor<96x4xf32>
    %x = train.onnx_node "Gather" opset 17(%t, %a) {} : (tensor<96x4xf32>, tensor<8xi32>) -> tensor<8x4xf32>
    %y = train.onnx_node "Gather" opset 17(%u, %b) {} : (tensor<96x4xf32>, tensor<8x2x3xi64>) -> tensor<8x2x3x4xf32>
    %l = train.onnx_node "ReduceSum" opset 17(%x) {keepdims = 0 : si64} : (tensor<8x4xf32>) -> tensor<f32>
    %m = train.onnx_node "ReduceSum" opset 17(%y) {keepdims = 0 : si64} : (tensor<8x2x3x4xf32>) -> tensor<f32>
    %n = train.onnx_node "Add" opset 17(%l, %m) {} : (tensor<f32>, tensor<f32>) -> tensor<f32>
    return %n : tensor<f32>
  }
}
