// Gradients read sums over all microbatches. Of data, sums of sums: the prologue
// goes over the microbatches twice. Of outputs, the square root of a sum: its
// gradient is in B, and under gpipe alone all forwards come before it.
// RUN: merak-opt %s --differentiate --merak-cut-stages="global-batch=8 microbatch=2 schedule=gpipe" --merak-verify-stages --merak-attach-schedule="schedule=gpipe" | FileCheck %s
// RUN: not merak-opt %s --differentiate --merak-cut-stages="global-batch=8 microbatch=2 schedule=1f1b" 2>&1 | FileCheck %s --check-prefix=REFUSED
// RUN: merak-opt %s --differentiate --merak-cut-stages="global-batch=8 microbatch=8 schedule=1f1b" --merak-verify-stages

// CHECK: schedule <P0, P1, P2, P3, P0.1, P1.1, P2.1, P3.1, F0, F1, F2, F3, B0
// CHECK: pipe.action P @prologue
// CHECK: pipe.store %{{.*}} to @[[MEAN:.*]] accumulate
// CHECK: pipe.action P @prologue.1 chunk 1
// CHECK: pipe.load @[[MEAN]]
// CHECK: pipe.store %{{.*}} to @[[SQUARES:.*]] accumulate
// CHECK: pipe.action F @forward
// CHECK-NOT: train.sqrt
// CHECK: pipe.action B @backward
// CHECK: pipe.load @[[SUM:.*]] : tensor<f32>
// CHECK: train.sqrt
// CHECK: pipe.action U @update

// REFUSED: error: op 'root' needs 'total' summed over all microbatches before it can run, but 'total' depends on parameter 'w'; of the schedules, gpipe runs all forwards before the first gradient: use --schedule=gpipe, or one microbatch
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 8>} {
  train.parameter @w : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %m = train.reduce_sum %x axes [0] keepdims true : tensor<8x4xf32>
    %c = train.sub %x, %m : tensor<8x4xf32>, tensor<1x4xf32>
    %cc = train.mul %c, %c : tensor<8x4xf32>, tensor<8x4xf32>
    %v = train.reduce_sum %cc axes [0] keepdims true : tensor<8x4xf32>
    %n = train.div %c, %v : tensor<8x4xf32>, tensor<1x4xf32>
    %w = train.read @w : tensor<4x4xf32>
    %h = train.einsum "bi,ij->bj" %n, %w : tensor<8x4xf32>, tensor<4x4xf32>
    %q = train.mul %h, %h : tensor<8x4xf32>, tensor<8x4xf32>
    %sum = train.reduce_sum %q axes [0, 1] keepdims false : tensor<8x4xf32> loc("total")
    %loss = train.sqrt %sum : tensor<f32> loc("root")
    return %loss : tensor<f32>
  }
}
