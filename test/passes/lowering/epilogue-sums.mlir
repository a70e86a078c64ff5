// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan --merak-verify-plan | FileCheck %s
// RUN: sed 's/backend = "cuda"/backend = "cpu"/' %s \
// RUN:   | merak-opt --merak-convert-to-plan | FileCheck %s --check-prefix=CPU

// The gradient of a bias is a sum over what the product for the gradient of its
// weight reads: on GPUs one instruction forms both, in f32. Sums with too few
// results to fill a GPU are no kernels of ours there.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>,
    train.config = #train.config<mode = train, model = "mlp.onnx", global_batch = 4096,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cuda">} {
  pipe.stage @stage0 index 0 schedule <W0> {
    pipe.value activation @x : tensor<4096x96xbf16>
    pipe.value activation @dy : tensor<4096x96xbf16>
    pipe.value activation @dz : tensor<4096x96xbf16>
    pipe.value gradient @w : tensor<96x96xf32>
    pipe.value gradient @b : tensor<96xf32>
    pipe.value gradient @w2 : tensor<96x96xf32>
    pipe.value gradient @b2 : tensor<96xf32>
    pipe.value gradient @odd : tensor<4096xf32>
    pipe.value gradient @w3 : tensor<96x96xf32>
    pipe.value activation @da : tensor<4096x96xbf16>
    pipe.value activation @u : tensor<4096x96xbf16>
    pipe.value gradient @w4 : tensor<96x96xf32>
    pipe.value gradient @b4 : tensor<96xf32>
    pipe.value gradient @alone : tensor<96xf32>

    // CHECK: plan.procedure @stage0.weight action W
    // CHECK-NEXT: plan.library "einsum" (@x[4096, 96], @dy[4096, 96]) -> (@w[96, 96], @b[96]) with {equation = "bi,bj->ij", sum = "1"}
    // The other order, in the type of the factors; only one product takes them.
    // CHECK-NEXT: plan.library "einsum" (@dz[4096, 96], @x[4096, 96]) -> (@[[W2:.*]][96, 96], @[[B2:.*]][96]) with {equation = "bj,bi->ji", sum = "0"}
    // CHECK: plan.library "einsum" (@x[4096, 96], @dz[4096, 96]) -> {{.*}} with {equation = "bi,bj->ij"}
    // Sums over something else, and one that is needed before the product.
    // CHECK: plan.kernel {{.*}}(@dy[4096, 96])
    // Sums that begin with a conversion do not need it, also without a product.
    // CHECK: plan.library "einsum" (@x[4096, 96], @da[4096, 96]) -> (@w4[96, 96], @b4[1, 96]) with {equation = "bi,bj->ij", sum = "1"}
    // CHECK-NEXT: plan.library "reduce_sum" (@u[4096, 96]) -> (@alone[96]) with {axes = "0"}
    // CHECK-NOT: plan.kernel
    // CPU: plan.procedure @stage0.weight action W
    // CPU-NOT: sum =
    pipe.action W @weight {
      %x = pipe.load @x : tensor<4096x96xbf16>
      %dy = pipe.load @dy : tensor<4096x96xbf16>
      %dz = pipe.load @dz : tensor<4096x96xbf16>
      %db = train.reduce_sum %dy axes [0] keepdims false : tensor<4096x96xbf16>
      %dbf = train.cast %db {train.role = "backward_weight"} : tensor<96xbf16> to tensor<96xf32>
      pipe.store %dbf to @b accumulate : tensor<96xf32>
      %dw = train.einsum "bi,bj->ij" %x, %dy : tensor<4096x96xbf16>, tensor<4096x96xbf16>
      %dwf = train.cast %dw {train.role = "backward_weight"} : tensor<96x96xbf16> to tensor<96x96xf32>
      pipe.store %dwf to @w accumulate : tensor<96x96xf32>
      %dw2 = train.einsum "bj,bi->ji" %dz, %x : tensor<4096x96xbf16>, tensor<4096x96xbf16>
      %db2 = train.reduce_sum %dz axes [0] keepdims false : tensor<4096x96xbf16>
      %dw2f = train.cast %dw2 : tensor<96x96xbf16> to tensor<96x96xf32>
      %db2f = train.cast %db2 : tensor<96xbf16> to tensor<96xf32>
      pipe.store %dw2f to @w2 accumulate : tensor<96x96xf32>
      pipe.store %db2f to @b2 accumulate : tensor<96xf32>
      %dw3 = train.einsum "bi,bj->ij" %x, %dz : tensor<4096x96xbf16>, tensor<4096x96xbf16>
      %dw3f = train.cast %dw3 {train.role = "backward_weight"} : tensor<96x96xbf16> to tensor<96x96xf32>
      pipe.store %dw3f to @w3 accumulate : tensor<96x96xf32>
      %rows = train.reduce_sum %dy axes [1] keepdims false : tensor<4096x96xbf16>
      %rowsf = train.cast %rows {train.role = "backward_weight"} : tensor<4096xbf16> to tensor<4096xf32>
      pipe.store %rowsf to @odd accumulate : tensor<4096xf32>
      %da = pipe.load @da : tensor<4096x96xbf16>
      %again = pipe.load @da : tensor<4096x96xbf16>
      %daf = train.cast %again {train.role = "backward_weight"} : tensor<4096x96xbf16> to tensor<4096x96xf32>
      %db4 = train.reduce_sum %daf axes [0] keepdims true : tensor<4096x96xf32>
      %flat = train.reshape %db4 : tensor<1x96xf32> to tensor<96xf32>
      pipe.store %flat to @b4 accumulate : tensor<96xf32>
      %dw4 = train.einsum "bi,bj->ij" %x, %da : tensor<4096x96xbf16>, tensor<4096x96xbf16>
      %dw4f = train.cast %dw4 {train.role = "backward_weight"} : tensor<96x96xbf16> to tensor<96x96xf32>
      pipe.store %dw4f to @w4 accumulate : tensor<96x96xf32>
      %u = pipe.load @u : tensor<4096x96xbf16>
      %uf = train.cast %u {train.role = "backward_weight"} : tensor<4096x96xbf16> to tensor<4096x96xf32>
      %du = train.reduce_sum %uf axes [0] keepdims false : tensor<4096x96xf32>
      pipe.store %du to @alone accumulate : tensor<96xf32>
    }
  }
}
