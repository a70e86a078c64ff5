// RUN: merak-opt %s --finish-graph | FileCheck %s

// CHECK: train.parameter @used
// CHECK-NOT: @unused
train.parameter @used : tensor<4x4xf32> trainable
train.parameter @unused : tensor<4x4xf32> trainable

// Every use of a parameter has its own read.
// CHECK-LABEL: @reads
// CHECK-NEXT: %[[A:.*]] = train.read @used
// CHECK-NEXT: %[[Y:.*]] = train.einsum "ab,bc->ac" %arg0, %[[A]]
// CHECK-NEXT: %[[B:.*]] = train.read @used
// CHECK-NEXT: train.einsum "ab,cb->ac" %[[Y]], %[[B]]
func.func @reads(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %w = train.read @used : tensor<4x4xf32>
  %0 = train.einsum "ab,bc->ac" %x, %w : tensor<2x4xf32>, tensor<4x4xf32>
  %1 = train.einsum "ab,cb->ac" %0, %w : tensor<2x4xf32>, tensor<4x4xf32>
  return %1 : tensor<2x4xf32>
}

// A constant that repeats along the batch keeps one copy.
// CHECK-LABEL: @copies
// CHECK-NEXT: %[[C:.*]] = train.constant dense<{{.*}}1.000000e+00, 2.000000e+00{{.*}}> : tensor<1x2xf32>
// CHECK-NEXT: train.add %arg0, %[[C]] : tensor<3x2xf32>, tensor<1x2xf32>
func.func @copies(%x: tensor<3x2xf32>) -> tensor<3x2xf32> {
  %c = train.constant dense<[[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]> : tensor<3x2xf32>
  %0 = train.add %x, %c : tensor<3x2xf32>, tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}
