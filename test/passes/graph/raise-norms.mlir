// RUN: merak-opt %s --canonicalize-graph --cse --raise-norms | FileCheck %s

// Layer norm as exporters write it before opset 17.
// CHECK-LABEL: @layer_norm
// CHECK: %[[Y:[a-z]+]], %{{[a-z]+}}, %{{[a-z]+}} = train.layer_norm %arg0 scale %arg1 bias %arg2 axis 2 epsilon 9.99999{{[0-9]*}}E-6
// CHECK-NEXT: return %[[Y]]
func.func @layer_norm(%x: tensor<2x8x4xf32>, %s: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<2x8x4xf32> {
  %n = train.constant dense<0.25> : tensor<f32>
  %two = train.constant dense<2.0> : tensor<f32>
  %eps = train.constant dense<1.0e-05> : tensor<f32>
  %0 = train.reduce_sum %x axes [2] keepdims true : tensor<2x8x4xf32>
  %1 = train.mul %0, %n : tensor<2x8x1xf32>, tensor<f32>
  %2 = train.sub %x, %1 : tensor<2x8x4xf32>, tensor<2x8x1xf32>
  %3 = train.pow %2, %two : tensor<2x8x4xf32>, tensor<f32>
  %4 = train.reduce_sum %3 axes [2] keepdims true : tensor<2x8x4xf32>
  %5 = train.mul %4, %n : tensor<2x8x1xf32>, tensor<f32>
  %6 = train.add %5, %eps : tensor<2x8x1xf32>, tensor<f32>
  %7 = train.sqrt %6 : tensor<2x8x1xf32>
  %8 = train.div %2, %7 : tensor<2x8x4xf32>, tensor<2x8x1xf32>
  %9 = train.mul %8, %s : tensor<2x8x4xf32>, tensor<4xf32>
  %10 = train.add %9, %b : tensor<2x8x4xf32>, tensor<4xf32>
  return %10 : tensor<2x8x4xf32>
}

// CHECK-LABEL: @rms_norm
// CHECK: %[[Y:[a-z]+]], %{{[a-z]+}} = train.rms_norm %arg0 scale %arg1 axis 1
// CHECK-NEXT: return %[[Y]]
func.func @rms_norm(%x: tensor<8x4xf32>, %s: tensor<4xf32>) -> tensor<8x4xf32> {
  %n = train.constant dense<0.25> : tensor<f32>
  %eps = train.constant dense<1.0e-06> : tensor<f32>
  %0 = train.mul %x, %x : tensor<8x4xf32>, tensor<8x4xf32>
  %1 = train.reduce_sum %0 axes [1] keepdims true : tensor<8x4xf32>
  %2 = train.mul %1, %n : tensor<8x1xf32>, tensor<f32>
  %3 = train.add %2, %eps : tensor<8x1xf32>, tensor<f32>
  %4 = train.sqrt %3 : tensor<8x1xf32>
  %5 = train.reciprocal %4 : tensor<8x1xf32>
  %6 = train.mul %x, %5 : tensor<8x4xf32>, tensor<8x1xf32>
  %7 = train.mul %s, %6 : tensor<4xf32>, tensor<8x4xf32>
  return %7 : tensor<8x4xf32>
}

// The sum of squares divided by something else is no mean.
// CHECK-LABEL: @no_norm
// CHECK-NOT: train.rms_norm
// CHECK: return
func.func @no_norm(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %n = train.constant dense<0.5> : tensor<f32>
  %eps = train.constant dense<1.0e-06> : tensor<f32>
  %0 = train.mul %x, %x : tensor<8x4xf32>, tensor<8x4xf32>
  %1 = train.reduce_sum %0 axes [1] keepdims true : tensor<8x4xf32>
  %2 = train.mul %1, %n : tensor<8x1xf32>, tensor<f32>
  %3 = train.add %2, %eps : tensor<8x1xf32>, tensor<f32>
  %4 = train.sqrt %3 : tensor<8x1xf32>
  %5 = train.div %x, %4 : tensor<8x4xf32>, tensor<8x1xf32>
  return %5 : tensor<8x4xf32>
}
