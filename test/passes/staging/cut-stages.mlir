// One model, cut in three ways.
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=pp=2 global-batch=4 microbatch=2" --merak-verify-stages | FileCheck %s --check-prefix=PP
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=tp=2 global-batch=4" --merak-verify-stages | FileCheck %s --check-prefix=TP
// RUN: merak-opt %s --differentiate --merak-cut-stages="mesh=dp=2 global-batch=4 microbatch=1" --merak-verify-stages | FileCheck %s --check-prefix=DP

// Two stages meet in one transfer forward and one backward.
// PP: dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, mb = 2>
// PP-LABEL: pipe.stage @stage0
// PP: pipe.value input @x : tensor<4x8xf32> tensor "x" layout <[4 over (mb), 8]>
// PP: pipe.action F @forward
// PP: train.einsum "bi,ij->bj"
// PP: pipe.action W @weight
// PP: to @{{.*}} accumulate
// PP: pipe.action U @update
// PP: pipe.update @w1
// PP-LABEL: pipe.stage @stage1
// PP: pipe.action F @forward
// PP: train.einsum "bi,ij->bj"
// PP: pipe.update @w2
// PP: pipe.transfer F @t0 from @stage0::@{{.*}} to @stage1::@
// PP: pipe.transfer B @t1 from @stage1::@{{.*}} to @stage0::@

// The search splits the hidden dimension: no communication in between, one sum
// behind the second product.
// TP: pipe.value parameter @w1 : tensor<8x16xf32> tensor "w1" layout <[8, 16 over (tp)]>
// TP: pipe.value parameter @w2 : tensor<16x8xf32> tensor "w2" layout <[16 over (tp), 8]>
// TP: pipe.action F @forward
// TP-NOT: dist.all_reduce
// TP: train.einsum "bi,ij->bj"
// TP-NOT: dist.all_reduce
// TP: train.einsum "bi,ij->bj" {{.*}}partial(tp)
// TP: dist.all_reduce %{{.*}} over ["tp"] sum

// Replicas and microbatches are axes of one batch factor; gradients are summed
// over replicas in the update.
// DP: pipe.value input @x : tensor<4x8xf32> tensor "x" layout <[4 over (mb, dp), 8]>
// DP: pipe.action U @update
// DP: dist.all_reduce %{{.*}} over ["dp"] sum
// DP: pipe.update @w1

module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w1 : tensor<8x16xf32> trainable
  train.parameter @w2 : tensor<16x8xf32> trainable
  func.func @model(%x: tensor<4x8xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w1 = train.read @w1 : tensor<8x16xf32>
    %h = train.einsum "bi,ij->bj" %x, %w1 : tensor<4x8xf32>, tensor<8x16xf32>
    %r = train.relu %h : tensor<4x16xf32>
    %w2 = train.read @w2 : tensor<16x8xf32>
    %y = train.einsum "bi,ij->bj" %r, %w2 : tensor<4x16xf32>, tensor<16x8xf32>
    %q = train.mul %y, %y : tensor<4x8xf32>, tensor<4x8xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<4x8xf32>
    return %loss : tensor<f32>
  }
}
