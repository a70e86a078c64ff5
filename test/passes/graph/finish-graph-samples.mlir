// RUN: merak-opt %s --finish-graph | FileCheck %s

// Windows of all images in one dimension, as tracing with a fixed batch writes
// them: the mask of one image is kept, and repeated.
// CHECK-LABEL: @windows
// CHECK-NEXT: %[[C:.*]] = train.constant dense<{{.*}}1.000000e+00, 2.000000e+00{{.*}}3.000000e+00, 4.000000e+00{{.*}}> : tensor<1x2x2xf32>
// CHECK-NEXT: %[[E:.*]] = train.expand %[[C]] : tensor<1x2x2xf32> to tensor<4x2x2xf32>
// CHECK-NEXT: %[[R:.*]] = train.reshape %[[E]] : tensor<4x2x2xf32> to tensor<8x2xf32>
// CHECK-NEXT: train.add %arg0, %[[R]]
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  func.func @windows(%x: tensor<8x2xf32>) -> tensor<8x2xf32> {
    %c = train.constant dense<[[1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0],
      [1.0, 2.0], [3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]> : tensor<8x2xf32>
    %0 = train.add %x, %c : tensor<8x2xf32>, tensor<8x2xf32>
    return %0 : tensor<8x2xf32>
  }
}
