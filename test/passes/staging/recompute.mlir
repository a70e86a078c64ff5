// Recomputation: what F does not keep, R computes again for B and W.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4096 microbatch=2048 recompute=full" --merak-verify-stages | FileCheck %s --check-prefix=FULL
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4096 microbatch=2048 recompute=none" --merak-verify-stages | FileCheck %s --check-prefix=NONE
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=tp=2 global-batch=4096 recompute=full" --merak-verify-stages | FileCheck %s --check-prefix=TP

// F stores what it sends, nothing else; R reads the data again and stores the
// hidden values for B and W.
// FULL-LABEL: pipe.stage @stage0
// FULL: pipe.action F @forward
// FULL: train.einsum
// FULL-COUNT-1: pipe.store
// FULL-NOT: pipe.store
// FULL: pipe.action R @recompute
// FULL-DAG: pipe.load @x
// FULL-DAG: pipe.load @w1
// FULL: train.einsum "bi,ij->bj"
// FULL: train.relu
// FULL: pipe.store
// The result of the second product is only sent: R stops before it.
// FULL-NOT: train.einsum
// FULL: pipe.action B @backward
// What arrived is kept: R of the last stage loads it, no transfer leaves an R.
// FULL-LABEL: pipe.stage @stage1
// FULL: pipe.action R @recompute
// FULL: pipe.load @from0_
// FULL: pipe.transfer F
// FULL: pipe.transfer B
// FULL-NOT: pipe.transfer
// FULL-NOT: train.recompute

// NONE-NOT: pipe.action R

// A sum over ranks happens once: F keeps the result, R reads it.
// TP: pipe.action F @forward
// TP: %[[SUM:.*]] = dist.all_reduce
// TP-NEXT: pipe.store %[[SUM]] to @[[KEPT:.*]] :
// TP: pipe.action R @recompute
// TP-NOT: dist.all_reduce
// TP: pipe.load @[[KEPT]]
// TP-NOT: dist.all_reduce
// TP: pipe.action B @backward

module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4096>} {
  train.parameter @w1 : tensor<64x128xf32> trainable
  train.parameter @w2 : tensor<128x64xf32> trainable
  train.parameter @w3 : tensor<64x64xf32> trainable
  func.func @model(%x: tensor<4096x64xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w1 = train.read @w1 : tensor<64x128xf32>
    %h = train.einsum "bi,ij->bj" %x, %w1 : tensor<4096x64xf32>, tensor<64x128xf32>
    %r = train.relu %h : tensor<4096x128xf32>
    %w2 = train.read @w2 : tensor<128x64xf32>
    %y = train.einsum "bi,ij->bj" %r, %w2 : tensor<4096x128xf32>, tensor<128x64xf32>
    %z = train.relu %y : tensor<4096x64xf32>
    %w3 = train.read @w3 : tensor<64x64xf32>
    %v = train.einsum "bi,ij->bj" %z, %w3 : tensor<4096x64xf32>, tensor<64x64xf32>
    %q = train.mul %v, %v : tensor<4096x64xf32>, tensor<4096x64xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4096x64xf32>
    return %loss : tensor<f32>
  }
}
