// Interleaved schedules: two parts of the model on each of two stages. Chunk c
// of stage s is part 2c + s; what leaves the last stage returns to the first. Part 0
// reads data only, so that it has no B.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4 microbatch=1 schedule=interleaved" --merak-verify-stages --merak-attach-schedule="schedule=interleaved" | FileCheck %s
// One chunk is the default of every other schedule.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4 microbatch=1" --merak-verify-stages | FileCheck %s --check-prefix=PLAIN
// RUN: not merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4 microbatch=1 chunks=2" --merak-attach-schedule="schedule=1f1b" 2>&1 | FileCheck %s --check-prefix=WRONG

// CHECK: pipe.stage @stage0 index 0 schedule <F0, F1, F0.1, F1.1, F2, B0.1, W0.1, F3, B1.1, W1.1, F2.1, W0, F3.1, W1, B2.1, W2.1, B3.1, W3.1, W2, W3, U>
// CHECK-DAG: pipe.value parameter @w1
// CHECK-DAG: pipe.value parameter @w3
// CHECK: pipe.action F @forward {
// CHECK: pipe.load @w1
// CHECK: pipe.action F @forward.1 chunk 1 {
// CHECK: pipe.load @w3
// CHECK: pipe.action B @backward.1 chunk 1 {
// The update is one for all chunks.
// CHECK: pipe.action U @update {
// CHECK: pipe.update @w1
// CHECK: pipe.update @w3
// CHECK-LABEL: pipe.stage @stage1
// CHECK: pipe.action F @forward.1 chunk 1 {
// CHECK: pipe.load @w4
// CHECK: pipe.transfer F @t0 from @stage0::@{{.*}} to @stage1
// CHECK: pipe.transfer F @t1 from @stage1::@{{.*}} to @stage0
// CHECK: pipe.transfer F @t2 chunk 1 from @stage0::@{{.*}} to @stage1
// CHECK: pipe.transfer B @t3 chunk 1 from @stage1::@{{.*}} to @stage0
// CHECK: pipe.transfer B @t4 chunk 1 from @stage0::@{{.*}} to @stage1
// CHECK: pipe.transfer B @t5 from @stage1::@{{.*}} to @stage0

// PLAIN-NOT: chunk
// WRONG: schedule '1f1b' has one chunk a stage, found 2

module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w1 : tensor<512x512xf32> trainable
  train.parameter @w2 : tensor<512x512xf32> trainable
  train.parameter @w3 : tensor<512x512xf32> trainable
  train.parameter @w4 : tensor<512x512xf32> trainable
  func.func @model(%x: tensor<4x512xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w1 = train.read @w1 : tensor<512x512xf32>
    %a = train.einsum "bi,ij->bj" %x, %w1 : tensor<4x512xf32>, tensor<512x512xf32>
    %w2 = train.read @w2 : tensor<512x512xf32>
    %c = train.einsum "bi,ij->bj" %a, %w2 : tensor<4x512xf32>, tensor<512x512xf32>
    %w3 = train.read @w3 : tensor<512x512xf32>
    %e = train.einsum "bi,ij->bj" %c, %w3 : tensor<4x512xf32>, tensor<512x512xf32>
    %w4 = train.read @w4 : tensor<512x512xf32>
    %g = train.einsum "bi,ij->bj" %e, %w4 : tensor<4x512xf32>, tensor<512x512xf32>
    %loss = train.reduce_sum %g axes [0, 1] keepdims false : tensor<4x512xf32>
    return %loss : tensor<f32>
  }
}
