// RUN: merak-opt %s --canonicalize-graph --cse --raise-activations | FileCheck %s

// (x * 0.5) * (tanh(sqrt(2/pi) * (x + 0.044715 x^3)) + 1)
// CHECK-LABEL: @tanh
// CHECK-NEXT: train.gelu tanh %arg0
// CHECK-NEXT: return
func.func @tanh(%x: tensor<8xf32>) -> tensor<8xf32> {
  %half = train.constant dense<0.5> : tensor<f32>
  %three = train.constant dense<3.0> : tensor<f32>
  %cubic = train.constant dense<0.044715> : tensor<f32>
  %root = train.constant dense<0.797884583> : tensor<f32>
  %one = train.constant dense<1.0> : tensor<f32>
  %0 = train.mul %x, %half : tensor<8xf32>, tensor<f32>
  %1 = train.pow %x, %three : tensor<8xf32>, tensor<f32>
  %2 = train.mul %1, %cubic : tensor<8xf32>, tensor<f32>
  %3 = train.add %x, %2 : tensor<8xf32>, tensor<8xf32>
  %4 = train.mul %3, %root : tensor<8xf32>, tensor<f32>
  %5 = train.tanh %4 : tensor<8xf32>
  %6 = train.add %5, %one : tensor<8xf32>, tensor<f32>
  %7 = train.mul %0, %6 : tensor<8xf32>, tensor<8xf32>
  return %7 : tensor<8xf32>
}

// x may itself be a product.
// CHECK-LABEL: @erf
// CHECK: %[[X:.*]] = train.mul %arg0, %arg1
// CHECK-NEXT: train.gelu %[[X]]
// CHECK-NEXT: return
func.func @erf(%a: tensor<8xf32>, %b: tensor<8xf32>) -> tensor<8xf32> {
  %half = train.constant dense<0.5> : tensor<f32>
  %root = train.constant dense<1.41421354> : tensor<f32>
  %one = train.constant dense<1.0> : tensor<f32>
  %x = train.mul %a, %b : tensor<8xf32>, tensor<8xf32>
  %0 = train.div %x, %root : tensor<8xf32>, tensor<f32>
  %1 = train.erf %0 : tensor<8xf32>
  %2 = train.add %1, %one : tensor<8xf32>, tensor<f32>
  %3 = train.mul %x, %2 : tensor<8xf32>, tensor<8xf32>
  %4 = train.mul %3, %half : tensor<8xf32>, tensor<f32>
  return %4 : tensor<8xf32>
}

// Another number than 1 / sqrt(2) is another function.
// CHECK-LABEL: @not_gelu
// CHECK-NOT: train.gelu
// CHECK: return
func.func @not_gelu(%x: tensor<8xf32>) -> tensor<8xf32> {
  %half = train.constant dense<0.5> : tensor<f32>
  %root = train.constant dense<1.5> : tensor<f32>
  %one = train.constant dense<1.0> : tensor<f32>
  %0 = train.div %x, %root : tensor<8xf32>, tensor<f32>
  %1 = train.erf %0 : tensor<8xf32>
  %2 = train.add %1, %one : tensor<8xf32>, tensor<f32>
  %3 = train.mul %x, %2 : tensor<8xf32>, tensor<8xf32>
  %4 = train.mul %3, %half : tensor<8xf32>, tensor<f32>
  return %4 : tensor<8xf32>
}
