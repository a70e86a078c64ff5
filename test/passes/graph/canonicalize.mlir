// RUN: merak-opt %s --canonicalize-graph | FileCheck %s

// A transposed weight is a matter of letters.
// CHECK-LABEL: @transpose_into_einsum
// CHECK-NEXT: train.einsum "abc,dc->abd" %arg0, %arg1
// CHECK-NEXT: return
func.func @transpose_into_einsum(%x: tensor<2x8x4xf32>, %w: tensor<3x4xf32>) -> tensor<2x8x3xf32> {
  %0 = train.transpose %w perm [1, 0] : tensor<3x4xf32>
  %1 = train.einsum "ayx,xz->ayz" %x, %0 : tensor<2x8x4xf32>, tensor<4x3xf32>
  return %1 : tensor<2x8x3xf32>
}

// CHECK-LABEL: @einsum_into_transpose
// CHECK-NEXT: train.einsum "ab,bc->ca" %arg0, %arg1
// CHECK-NEXT: return
func.func @einsum_into_transpose(%x: tensor<8x4xf32>, %w: tensor<4x3xf32>) -> tensor<3x8xf32> {
  %0 = train.einsum "yx,xz->yz" %x, %w : tensor<8x4xf32>, tensor<4x3xf32>
  %1 = train.transpose %0 perm [1, 0] : tensor<8x3xf32>
  return %1 : tensor<3x8xf32>
}

// To what operands are rounded stays.
// CHECK-LABEL: @rounded
// CHECK-NEXT: train.einsum "ab,cb->ca" %arg0, %arg1 {rounds = [f8E4M3FN, f8E5M2]}
// CHECK-NEXT: return
func.func @rounded(%x: tensor<8x4xf32>, %w: tensor<3x4xf32>) -> tensor<3x8xf32> {
  %0 = train.transpose %w perm [1, 0] : tensor<3x4xf32>
  %1 = train.einsum "yx,xz->yz" %x, %0 {rounds = [f8E4M3FN, f8E5M2]} : tensor<8x4xf32>, tensor<4x3xf32>
  %2 = train.transpose %1 perm [1, 0] : tensor<8x3xf32>
  return %2 : tensor<3x8xf32>
}

// Nor are its factors taken apart.
// CHECK-LABEL: @rounded_joined
// CHECK: train.einsum {{.*}} {rounds = [f8E4M3FN, f8E4M3FN]} : tensor<16x4xf32>, tensor<4x3xf32>
func.func @rounded_joined(%x: tensor<2x8x4xf32>, %w: tensor<4x3xf32>) -> tensor<2x8x3xf32> {
  %0 = train.reshape %x : tensor<2x8x4xf32> to tensor<16x4xf32>
  %1 = train.einsum "ab,bc->ac" %0, %w {rounds = [f8E4M3FN, f8E4M3FN]} : tensor<16x4xf32>, tensor<4x3xf32>
  %2 = train.reshape %1 : tensor<16x3xf32> to tensor<2x8x3xf32>
  return %2 : tensor<2x8x3xf32>
}

// [b,t,c] -> [b*t,c] around a linear layer goes away.
// CHECK-LABEL: @joined_rows
// CHECK-NEXT: %[[Y:.*]] = train.einsum "abc,cd->abd" %arg0, %arg1
// CHECK-NEXT: %[[Z:.*]] = train.add %[[Y]], %arg2
// CHECK-NEXT: %[[G:.*]] = train.gelu %[[Z]]
// CHECK-NEXT: return %[[G]]
func.func @joined_rows(%x: tensor<2x8x4xf32>, %w: tensor<4x3xf32>, %b: tensor<3xf32>) -> tensor<2x8x3xf32> {
  %0 = train.reshape %x : tensor<2x8x4xf32> to tensor<16x4xf32>
  %1 = train.einsum "ab,bc->ac" %0, %w : tensor<16x4xf32>, tensor<4x3xf32>
  %2 = train.add %1, %b : tensor<16x3xf32>, tensor<3xf32>
  %3 = train.gelu %2 : tensor<16x3xf32>
  %4 = train.reshape %3 : tensor<16x3xf32> to tensor<2x8x3xf32>
  return %4 : tensor<2x8x3xf32>
}

// Rows of a loss keep their two dimensions.
// CHECK-LABEL: @joined_loss
// CHECK: train.softmax_cross_entropy %arg0, %arg1 : tensor<2x8x5xf32>, tensor<2x8xi64> -> tensor<2x8xf32>, tensor<2x8xf32>
// CHECK-NEXT: train.reduce_sum %{{.*}} axes [0, 1]
func.func @joined_loss(%x: tensor<2x8x5xf32>, %l: tensor<2x8xi64>) -> tensor<f32> {
  %0 = train.reshape %x : tensor<2x8x5xf32> to tensor<16x5xf32>
  %1 = train.reshape %l : tensor<2x8xi64> to tensor<16xi64>
  %2, %3 = train.softmax_cross_entropy %0, %1 : tensor<16x5xf32>, tensor<16xi64> -> tensor<16xf32>, tensor<16xf32>
  %4 = train.reduce_sum %2 axes [0] keepdims false : tensor<16xf32>
  return %4 : tensor<f32>
}

// Positions 0..7 are a slice of their table.
// CHECK-LABEL: @known_gather
// CHECK-NEXT: train.slice %arg0 starts [0, 0] sizes [4, 2] steps [1, 1]
// CHECK-NEXT: train.reshape {{.*}} to tensor<1x4x2xf32>
// CHECK-NEXT: return
func.func @known_gather(%t: tensor<16x2xf32>) -> tensor<1x4x2xf32> {
  %0 = train.constant dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>
  %1 = train.gather %t[%0] axis 0 : tensor<16x2xf32>, tensor<1x4xi64>
  return %1 : tensor<1x4x2xf32>
}

// x[arange(4), ids] with a flat table: each sample looks into its own part.
// CHECK-LABEL: @parts_of_flat_table
// CHECK-NEXT: train.gather %arg0[%arg1] axis 1 {batch = 1 : i64} : tensor<4x6x2xf32>, tensor<4xi64>
// CHECK-NEXT: return
func.func @parts_of_flat_table(%x: tensor<4x6x2xf32>, %ids: tensor<4xi64>) -> tensor<4x2xf32> {
  %starts = train.constant dense<[0, 6, 12, 18]> : tensor<4xi64>
  %zero = train.constant dense<0> : tensor<i64>
  %size = train.constant dense<24> : tensor<i64>
  %flat = train.reshape %x : tensor<4x6x2xf32> to tensor<24x2xf32>
  %at = train.add %ids, %starts : tensor<4xi64>, tensor<4xi64>
  %end = train.add %at, %size : tensor<4xi64>, tensor<i64>
  %is = train.compare lt %at, %zero : tensor<4xi64>, tensor<i64>
  %wrapped = train.select %is, %end, %at : tensor<4xi1>, tensor<4xi64>, tensor<4xi64>
  %y = train.gather %flat[%wrapped] axis 0 : tensor<24x2xf32>, tensor<4xi64>
  return %y : tensor<4x2xf32>
}

// Starts that do not count the parts.
// CHECK-LABEL: @other_starts
// CHECK: train.gather %{{.*}} axis 0 : tensor<24x2xf32>
func.func @other_starts(%x: tensor<4x6x2xf32>, %ids: tensor<4xi64>) -> tensor<4x2xf32> {
  %starts = train.constant dense<[0, 6, 12, 12]> : tensor<4xi64>
  %flat = train.reshape %x : tensor<4x6x2xf32> to tensor<24x2xf32>
  %at = train.add %ids, %starts : tensor<4xi64>, tensor<4xi64>
  %y = train.gather %flat[%at] axis 0 : tensor<24x2xf32>, tensor<4xi64>
  return %y : tensor<4x2xf32>
}

// CHECK-LABEL: @slice_of_concat
// CHECK-NEXT: train.slice %arg1 starts [0, 1] sizes [2, 2] steps [1, 1]
// CHECK-NEXT: return
func.func @slice_of_concat(%a: tensor<2x2xf32>, %b: tensor<2x4xf32>) -> tensor<2x2xf32> {
  %c = train.concat %a, %b axis 1 : tensor<2x2xf32>, tensor<2x4xf32>
  %y = train.slice %c starts [0, 3] sizes [2, 2] steps [1, 1] : tensor<2x6xf32>
  return %y : tensor<2x2xf32>
}

// CHECK-LABEL: @constants
// CHECK-NEXT: %[[C:.*]] = train.constant dense<[false, true, true]>
// CHECK-NEXT: return %[[C]]
func.func @constants() -> tensor<3xi1> {
  %0 = train.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
  %1 = train.constant dense<2.0> : tensor<f32>
  %2 = train.div %0, %1 : tensor<3xf32>, tensor<f32>
  %4 = train.constant dense<1.0> : tensor<f32>
  %3 = train.compare ge %2, %4 : tensor<3xf32>, tensor<f32>
  return %3 : tensor<3xi1>
}

// CHECK-LABEL: @neutral
// CHECK-NEXT: train.mul %arg0, %arg0
// CHECK-NEXT: return
func.func @neutral(%x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = train.constant dense<0.0> : tensor<f32>
  %one = train.constant dense<1.0> : tensor<f32>
  %two = train.constant dense<2.0> : tensor<f32>
  %0 = train.add %zero, %x : tensor<f32>, tensor<3xf32>
  %1 = train.div %0, %one : tensor<3xf32>, tensor<f32>
  %2 = train.pow %1, %two : tensor<3xf32>, tensor<f32>
  return %2 : tensor<3xf32>
}

// The packed projection of a vision transformer: [b,t,3,h,d] is sliced first,
// transposed last.
// CHECK-LABEL: @slice_of_transpose
// CHECK-NEXT: train.slice %arg0 starts [0, 0, 1, 0, 0] sizes [2, 5, 1, 4, 6]
// CHECK-NEXT: train.reshape {{.*}} to tensor<2x5x4x6xf32>
// CHECK-NEXT: train.transpose {{.*}} perm [0, 2, 1, 3]
func.func @slice_of_transpose(%x: tensor<2x5x3x4x6xf32>) -> tensor<2x4x5x6xf32> {
  %0 = train.transpose %x perm [2, 0, 3, 1, 4] : tensor<2x5x3x4x6xf32>
  %1 = train.slice %0 starts [1, 0, 0, 0, 0] sizes [1, 2, 4, 5, 6] steps [1, 1, 1, 1, 1] : tensor<3x2x4x5x6xf32>
  %2 = train.reshape %1 : tensor<1x2x4x5x6xf32> to tensor<2x4x5x6xf32>
  return %2 : tensor<2x4x5x6xf32>
}

// A number on the right stays there, even if the left operand broadcasts.
// CHECK-LABEL: @wide_constant
// CHECK: train.add %arg0, %{{.*}} : tensor<1x2xf32>, tensor<2x2xf32>
func.func @wide_constant(%x: tensor<1x2xf32>) -> tensor<2x2xf32> {
  %c = train.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  %0 = train.add %x, %c : tensor<1x2xf32>, tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}
