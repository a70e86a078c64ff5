// RUN: merak-opt %s --raise-rotary --canonicalize-graph | FileCheck %s

// Heads outside; the tables are concatenations of one half with itself.
// CHECK-LABEL: @rotary
// CHECK-DAG: %[[C:.*]] = train.cos %arg1 : tensor<1x1x3x2xf32>
// CHECK-DAG: %[[S:.*]] = train.sin %arg1 : tensor<1x1x3x2xf32>
// CHECK-DAG: %[[CT:.*]] = train.reshape %[[C]] : tensor<1x1x3x2xf32> to tensor<1x3x1x2xf32>
// CHECK-DAG: %[[ST:.*]] = train.reshape %[[S]] : tensor<1x1x3x2xf32> to tensor<1x3x1x2xf32>
// CHECK-DAG: %[[X:.*]] = train.transpose %arg0 perm [0, 2, 1, 3]
// CHECK: %[[Y:.*]] = train.rotary %[[X]], %[[CT]], %[[ST]]
// CHECK: train.transpose %[[Y]] perm [0, 2, 1, 3]
func.func @rotary(%x: tensor<2x5x3x4xf32>, %f: tensor<1x1x3x2xf32>) -> tensor<2x5x3x4xf32> {
  %ff = train.concat %f, %f axis 3 : tensor<1x1x3x2xf32>, tensor<1x1x3x2xf32>
  %cos = train.cos %ff : tensor<1x1x3x4xf32>
  %sin = train.sin %ff : tensor<1x1x3x4xf32>
  %low = train.slice %x starts [0, 0, 0, 0] sizes [2, 5, 3, 2] steps [1, 1, 1, 1] : tensor<2x5x3x4xf32>
  %high = train.slice %x starts [0, 0, 0, 2] sizes [2, 5, 3, 2] steps [1, 1, 1, 1] : tensor<2x5x3x4xf32>
  %neg = train.neg %high : tensor<2x5x3x2xf32>
  %turned = train.concat %neg, %low axis 3 : tensor<2x5x3x2xf32>, tensor<2x5x3x2xf32>
  %0 = train.mul %x, %cos : tensor<2x5x3x4xf32>, tensor<1x1x3x4xf32>
  %1 = train.mul %turned, %sin : tensor<2x5x3x4xf32>, tensor<1x1x3x4xf32>
  %2 = train.add %0, %1 : tensor<2x5x3x4xf32>, tensor<2x5x3x4xf32>
  return %2 : tensor<2x5x3x4xf32>
}

// Tables whose halves differ are no rotary tables.
// CHECK-LABEL: @other_halves
// CHECK-NOT: train.rotary
// CHECK: return
func.func @other_halves(%x: tensor<2x5x3x4xf32>, %f: tensor<1x1x3x2xf32>, %g: tensor<1x1x3x2xf32>) -> tensor<2x5x3x4xf32> {
  %ff = train.concat %f, %g axis 3 : tensor<1x1x3x2xf32>, tensor<1x1x3x2xf32>
  %cos = train.cos %ff : tensor<1x1x3x4xf32>
  %sin = train.sin %ff : tensor<1x1x3x4xf32>
  %low = train.slice %x starts [0, 0, 0, 0] sizes [2, 5, 3, 2] steps [1, 1, 1, 1] : tensor<2x5x3x4xf32>
  %high = train.slice %x starts [0, 0, 0, 2] sizes [2, 5, 3, 2] steps [1, 1, 1, 1] : tensor<2x5x3x4xf32>
  %neg = train.neg %high : tensor<2x5x3x2xf32>
  %turned = train.concat %neg, %low axis 3 : tensor<2x5x3x2xf32>, tensor<2x5x3x2xf32>
  %0 = train.mul %x, %cos : tensor<2x5x3x4xf32>, tensor<1x1x3x4xf32>
  %1 = train.mul %turned, %sin : tensor<2x5x3x4xf32>, tensor<1x1x3x4xf32>
  %2 = train.add %0, %1 : tensor<2x5x3x4xf32>, tensor<2x5x3x4xf32>
  return %2 : tensor<2x5x3x4xf32>
}
