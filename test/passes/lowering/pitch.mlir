// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan --merak-verify-plan | FileCheck %s
// RUN: sed 's/backend = "cuda"/backend = "cpu"/' %s \
// RUN:   | merak-opt --merak-convert-to-plan | FileCheck %s --check-prefix=CPU

// On GPUs rows of what products read and write begin at whole lines of memory,
// in 16-bit types, where they would begin anywhere.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>,
    train.config = #train.config<mode = train, model = "head.onnx", global_batch = 16,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cuda">} {
  // Named values and those of an action; what no product touches, and what has
  // other rows besides, stays as it is.
  // CHECK-DAG: plan.buffer {{.*}}@logits : tensor<2x8x1024xbf16>
  // CHECK-DAG: plan.buffer {{.*}}@sum : tensor<16x1001xbf16>
  // CHECK-DAG: plan.buffer {{.*}}@flat : tensor<2x8x1001xbf16>
  // CHECK-DAG: plan.buffer {{.*}}@wide : tensor<16x1001xf32>
  // CPU: plan.buffer {{.*}}@logits : tensor<2x8x1001xbf16>
  pipe.stage @stage0 index 0 schedule <F0, B0> {
    pipe.value activation @x : tensor<2x8x32xbf16>
    pipe.value activation @w : tensor<32x1001xbf16>
    pipe.value activation @logits : tensor<2x8x1001xbf16>
    pipe.value activation @flat : tensor<2x8x1001xbf16>
    pipe.value activation @sum : tensor<16x1001xbf16>
    pipe.value activation @line : tensor<16016xbf16>
    pipe.value activation @dx : tensor<16x32xbf16>
    pipe.value activation @wide : tensor<16x1001xf32>

    // CHECK: plan.procedure @stage0.forward action F
    // CHECK: plan.library "einsum" ({{.*}}) -> (@logits[2, 8, 1001] by [8192, 1024, 1])
    pipe.action F @forward {
      %x = pipe.load @x : tensor<2x8x32xbf16>
      %w = pipe.load @w : tensor<32x1001xbf16>
      %y = train.einsum "btk,kn->btn" %x, %w : tensor<2x8x32xbf16>, tensor<32x1001xbf16>
      pipe.store %y to @logits : tensor<2x8x1001xbf16>
      %z = train.einsum "btk,kn->btn" %x, %w : tensor<2x8x32xbf16>, tensor<32x1001xbf16>
      pipe.store %z to @flat : tensor<2x8x1001xbf16>
      %line = train.reshape %z : tensor<2x8x1001xbf16> to tensor<16016xbf16>
      pipe.store %line to @line : tensor<16016xbf16>
    }
    // CHECK: plan.procedure @stage0.backward action B
    // CHECK: plan.kernel @{{.*}} (@logits[16, 1001] by [1024, 1]) -> (@[[D:.*]][16, 1001] by [1024, 1])
    // CHECK: plan.library "einsum" (@[[D]][16, 1001] by [1024, 1], @w[32, 1001] by [1024, 1]) -> (@dx[16, 32])
    pipe.action B @backward {
      %w = pipe.load @w : tensor<32x1001xbf16>
      %logits = pipe.load @logits : tensor<2x8x1001xbf16>
      %rows = train.reshape %logits : tensor<2x8x1001xbf16> to tensor<16x1001xbf16>
      %d = train.gelu %rows : tensor<16x1001xbf16>
      %dx = train.einsum "bn,kn->bk" %d, %w : tensor<16x1001xbf16>, tensor<32x1001xbf16>
      pipe.store %dx to @dx : tensor<16x32xbf16>
      %twice = train.add %rows, %rows : tensor<16x1001xbf16>, tensor<16x1001xbf16>
      pipe.store %twice to @sum : tensor<16x1001xbf16>
      %full = train.cast %rows : tensor<16x1001xbf16> to tensor<16x1001xf32>
      pipe.store %full to @wide : tensor<16x1001xf32>
    }
  }
}
