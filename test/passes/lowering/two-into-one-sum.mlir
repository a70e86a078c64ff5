// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s

// Both halves of a microbatch add their part to one loss. Where one kernel makes
// both, it cannot write them there itself: each is added behind it.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 2>,
    train.config = #train.config<mode = train, model = "mlp.onnx", global_batch = 8,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cpu">} {
  pipe.stage @stage0 index 0 schedule <F0, F1> {
    pipe.value activation @x : tensor<4x96xf32> layout <[8 over (mb), 96]>
    pipe.value step @sum : tensor<96xf32> layout <[96]>

    // CHECK: plan.procedure @stage0.forward
    // CHECK-NEXT: plan.kernel {{.*}} -> (@"[[A:.*]]"[96], @"[[B:.*]]"[96])
    // CHECK-NEXT: plan.library "copy" (@"[[B]]"[96]) -> (@sum[96]) accumulate
    // CHECK-NEXT: plan.library "copy" (@"[[A]]"[96]) -> (@sum[96]) accumulate
    // CHECK-NEXT: }
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x96xf32>
      %a = train.slice %x starts [0, 0] sizes [1, 96] steps [1, 1] {dist.layouts = [#dist.layout<[1, 96]>], train.role = "forward"} : tensor<4x96xf32>
      %r = train.reshape %a {dist.layouts = [#dist.layout<[96]>], train.role = "forward"} : tensor<1x96xf32> to tensor<96xf32>
      %s = train.add %r, %r {dist.layouts = [#dist.layout<[96]>], train.role = "forward"} : tensor<96xf32>, tensor<96xf32>
      %b = train.mul %s, %r {dist.layouts = [#dist.layout<[96]>], train.role = "forward"} : tensor<96xf32>, tensor<96xf32>
      pipe.store %s to @sum accumulate : tensor<96xf32>
      pipe.store %b to @sum accumulate : tensor<96xf32>
    }
  }
}
