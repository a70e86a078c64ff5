// Values and actions are symbols of one table: an input called "weight" and a
// parameter called "forward" get names of their own and keep the user's.
// Stages and transfers are symbols of the module, as parameters are.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=1 global-batch=4 microbatch=2" --merak-verify-stages | FileCheck %s
// RUN: sed 's/@forward/@stage0/' %s | merak-opt --differentiate --merak-cut-stages="mesh=pp=1 global-batch=4 microbatch=2" --merak-verify-stages | FileCheck %s --check-prefix=STAGE

// STAGE: train.parameter @stage0
// STAGE: pipe.stage @stage0_ index 0
// STAGE: pipe.value parameter @stage0 {{.*}} tensor "stage0"

// CHECK-DAG: pipe.value input @weight_1 {{.*}} tensor "weight"
// CHECK-DAG: pipe.value parameter @forward_1 {{.*}} tensor "forward"
// CHECK-DAG: pipe.action F @forward
// CHECK-DAG: pipe.action W @weight
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @forward : tensor<8x16xf32> trainable
  func.func @model(%x: tensor<4x8xf32> {train.name = "weight"}) -> (tensor<f32> {train.name = "loss"}) {
    %w = train.read @forward : tensor<8x16xf32>
    %h = train.einsum "bi,ij->bj" %x, %w : tensor<4x8xf32>, tensor<8x16xf32>
    %q = train.mul %h, %h : tensor<4x16xf32>, tensor<4x16xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4x16xf32>
    return %loss : tensor<f32>
  }
}
