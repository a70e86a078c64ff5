// RUN: merak-opt %s --legalize-onnx --split-input-file | FileCheck %s

// d = (a + b) a: dd/da = (a + b) + a, through both uses; dd/db = a.
// CHECK-LABEL: @two_uses
// CHECK: %[[C:.*]] = train.add %arg0, %arg1
// CHECK: %[[D:.*]] = train.mul %[[C]], %arg0
// CHECK: %[[ONE:.*]] = train.constant dense<1.0{{.*}}> : tensor<f32>
// CHECK: %[[DC:.*]] = train.mul %[[ONE]], %arg0
// CHECK: %[[DA:.*]] = train.mul %[[ONE]], %[[C]]
// CHECK: %[[SUM:.*]] = train.add %[[DA]], %[[DC]]
// CHECK: return %[[D]], %[[SUM]], %[[DC]]
func.func @two_uses(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<f32>, tensor<f32>, tensor<f32>) {
  %c = train.onnx_node "Add" opset 12(%a, %b) {} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %d = train.onnx_node "Mul" opset 12(%c, %a) {} : (tensor<f32>, tensor<f32>) -> tensor<f32>
  %g:2 = train.onnx_node "Gradient" in "ai.onnx.preview.training" opset 1(%a, %b, %d) {xs = ["a", "b"], y = "d"} : (tensor<f32>, tensor<f32>, tensor<f32>) -> (tensor<f32>, tensor<f32>)
  return %d, %g#0, %g#1 : tensor<f32>, tensor<f32>, tensor<f32>
}

// -----

// What zs names is where y begins: nothing goes on to a through c.
// CHECK-LABEL: @held
// CHECK: %[[C:.*]] = train.tanh %arg0
// CHECK: train.mul %[[C]], %arg0
// CHECK: %[[ONE:.*]] = train.constant dense<1.0{{.*}}> : tensor<4xf32>
// CHECK: %[[DA:.*]] = train.mul %[[ONE]], %[[C]]
// CHECK-NOT: train.add
// CHECK: return %[[DA]]
func.func @held(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c = train.onnx_node "Tanh" opset 12(%a) {} : (tensor<4xf32>) -> tensor<4xf32>
  %d = train.onnx_node "Mul" opset 12(%c, %a) {} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g = train.onnx_node "Gradient" in "ai.onnx.preview.training" opset 1(%a, %c, %d) {xs = ["a"], zs = ["c"], y = "d"} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %g : tensor<4xf32>
}

// -----

// Every use of a parameter counts; what y does not depend on gets zeros.
// CHECK-LABEL: @parameter
// CHECK: train.add
// CHECK: %[[ZERO:.*]] = train.constant dense<0.0{{.*}}> : tensor<3xf32>
// CHECK: return %{{.*}}, %[[ZERO]]
train.parameter @w : tensor<4xf32> trainable from #train.source<"" at 0 length 16>
func.func @parameter(%x: tensor<3xf32>) -> (tensor<4xf32>, tensor<3xf32>) {
  %0 = train.read @w : tensor<4xf32>
  %1 = train.read @w : tensor<4xf32>
  %2 = train.read @w : tensor<4xf32>
  %d = train.onnx_node "Mul" opset 12(%0, %1) {} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %g:2 = train.onnx_node "Gradient" in "ai.onnx.preview.training" opset 1(%2, %x, %d) {xs = ["w", "x"], y = "d"} : (tensor<4xf32>, tensor<3xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<3xf32>)
  return %g#0, %g#1 : tensor<4xf32>, tensor<3xf32>
}
