// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan --merak-verify-plan | FileCheck %s
// RUN: sed 's/backend = "cuda"/backend = "cpu"/' %s \
// RUN:   | merak-opt --merak-convert-to-plan | FileCheck %s --check-prefix=CPU

// On GPUs products end with biases and GELU; on every device gradients of
// weights leave the product in f32.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>,
    train.config = #train.config<mode = train, model = "mlp.onnx", global_batch = 16,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cuda">} {
  train.parameter @w : tensor<8x32xbf16> from #train.source<"" at 0 length 512>
  train.parameter @b : tensor<32xf32> from #train.source<"" at 512 length 128>

  pipe.stage @stage0 index 0 schedule <F0, B0, W0> {
    pipe.value input @x : tensor<16x8xbf16> tensor "x"
    pipe.value parameter @w : tensor<8x32xbf16> tensor "w"
    pipe.value parameter @b : tensor<32xf32> tensor "b"
    pipe.value activation @z : tensor<16x32xbf16>
    pipe.value activation @y : tensor<16x32xbf16>
    pipe.value activation @dy : tensor<16x8xbf16>
    pipe.value activation @dz : tensor<16x32xbf16>
    pipe.value gradient @sum : tensor<8x32xf32>
    pipe.value activation @image : tensor<16x4x6x6xbf16>
    pipe.value activation @dimage : tensor<16x8x4x4xbf16>
    pipe.value gradient @filter : tensor<8x4x3x3xf32>
    pipe.value gradient @other : tensor<16x32xf32>

    // GELU's argument is kept for the backward pass; the bias is converted on
    // its own.
    // CHECK: plan.procedure @stage0.forward action F
    // CHECK: plan.kernel @[[CONVERT:.*]] (@b[32]) -> (@[[BIAS:.*]][32])
    // CHECK-NEXT: plan.library "einsum" ({{.*}}, @w[8, 32], @[[BIAS]][32]) -> (@y[16, 32], @z[16, 32]) with {bias = "1", equation = "bi,ij->bj", gelu = "keep"}
    // A sum with a whole tensor is no bias, and the other GELU no epilogue.
    // CHECK-NEXT: plan.library "einsum" {{.*}} with {equation = "bi,ij->bj"}
    // CHECK-NEXT: plan.kernel
    // CHECK-NOT: plan.kernel
    // CPU: plan.library "einsum" (@{{[^,]*}}[16, 8], @w[8, 32]) -> {{.*}} with {equation = "bi,ij->bj"}
    // CPU: plan.kernel
    pipe.action F @forward {
      %x = pipe.load @x : tensor<16x8xbf16>
      %w = pipe.load @w : tensor<8x32xbf16>
      %b = pipe.load @b : tensor<32xf32>
      %h = train.einsum "bi,ij->bj" %x, %w : tensor<16x8xbf16>, tensor<8x32xbf16>
      %bias = train.cast %b : tensor<32xf32> to tensor<32xbf16>
      %z = train.add %h, %bias : tensor<16x32xbf16>, tensor<32xbf16>
      pipe.store %z to @z : tensor<16x32xbf16>
      %y = train.gelu tanh %z : tensor<16x32xbf16>
      pipe.store %y to @y : tensor<16x32xbf16>
      %h2 = train.einsum "bi,ij->bj" %x, %w : tensor<16x8xbf16>, tensor<8x32xbf16>
      %s = train.add %h2, %h2 : tensor<16x32xbf16>, tensor<16x32xbf16>
      %g = train.gelu %s : tensor<16x32xbf16>
      %wide = train.cast %g : tensor<16x32xbf16> to tensor<16x32xf32>
      pipe.store %wide to @other accumulate : tensor<16x32xf32>
    }
    // The gradient passes GELU inside of the product.
    // CHECK: plan.procedure @stage0.backward action B
    // CHECK: plan.library "einsum" (@dy[16, 8], @w[8, 32], @z[16, 32]) -> (@dz[16, 32]) with {equation = "bi,ij->bj", gelu = "gradient"}
    // CHECK-NOT: plan.kernel
    pipe.action B @backward {
      %w = pipe.load @w : tensor<8x32xbf16>
      %dy = pipe.load @dy : tensor<16x8xbf16>
      %z = pipe.load @z : tensor<16x32xbf16>
      %d = train.einsum "bi,ij->bj" %dy, %w : tensor<16x8xbf16>, tensor<8x32xbf16>
      %dz = train.gelu_grad tanh %d, %z : tensor<16x32xbf16>
      pipe.store %dz to @dz : tensor<16x32xbf16>
    }
    // CHECK: plan.procedure @stage0.weight action W
    // CHECK: plan.library "einsum" ({{.*}}, @dz[16, 32]) -> (@sum[8, 32]) with {equation = "bi,bj->ij"}
    // CHECK-NEXT: plan.library "conv_grad_weight" ({{.*}}) -> (@filter[8, 4, 3, 3])
    // CHECK-NOT: plan.kernel
    // CPU: plan.procedure @stage0.weight action W
    // CPU: plan.library "einsum" ({{.*}}, @dz[16, 32]) -> (@sum[8, 32]) with {equation = "bi,bj->ij"}
    // CPU-NEXT: plan.library "conv_grad_weight" ({{.*}}) -> (@filter[8, 4, 3, 3])
    // CPU-NOT: plan.kernel
    pipe.action W @weight {
      %x = pipe.load @x : tensor<16x8xbf16>
      %dz = pipe.load @dz : tensor<16x32xbf16>
      %dw = train.einsum "bi,bj->ij" %x, %dz : tensor<16x8xbf16>, tensor<16x32xbf16>
      %wide = train.cast %dw {train.role = "backward_weight"} : tensor<8x32xbf16> to tensor<8x32xf32>
      pipe.store %wide to @sum accumulate : tensor<8x32xf32>
      %image = pipe.load @image : tensor<16x4x6x6xbf16>
      %dimage = pipe.load @dimage : tensor<16x8x4x4xbf16>
      %df = train.conv_grad_weight %image, %dimage {strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>, group = 1 : i64} : tensor<16x4x6x6xbf16>, tensor<16x8x4x4xbf16> -> tensor<8x4x3x3xbf16>
      %widef = train.cast %df {train.role = "backward_weight"} : tensor<8x4x3x3xbf16> to tensor<8x4x3x3xf32>
      pipe.store %widef to @filter accumulate : tensor<8x4x3x3xf32>
    }
  }
}
