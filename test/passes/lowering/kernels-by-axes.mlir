// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s

// A value that is equal on all ranks does not come out of a kernel that also
// reads, for another value, what is not. Axes that tell no ranks apart do not
// count.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 2, mb = 2>,
    train.config = #train.config<mode = train, model = "mlp.onnx", global_batch = 8,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cpu">} {
  pipe.stage @stage0 index 0 schedule <F0, F1> {
    pipe.value activation @whole : tensor<4x96xf32> layout <[8 over (mb), 96]>
    pipe.value activation @part : tensor<4x96xf32> layout <[8 over (mb), 96] partial(tp)>
    pipe.value activation @sum : tensor<4x96xf32> layout <[8 over (mb), 96]>
    pipe.value activation @mixed : tensor<4x96xf32> layout <[8 over (mb), 96] partial(tp)>
    pipe.value activation @again : tensor<4x96xf32> layout <[8 over (mb), 96]>

    // CHECK: plan.procedure @stage0.forward
    // CHECK-NEXT: plan.kernel {{.*}}(@whole[4, 96]) -> (@sum[4, 96])
    // CHECK-NEXT: plan.kernel {{.*}}(@sum[4, 96], @part[4, 96]) -> (@mixed[4, 96])
    // CHECK-NEXT: plan.kernel {{.*}}(@sum[4, 96]) -> (@again[4, 96])
    // CHECK-NOT: plan.kernel
    pipe.action F @forward {
      %whole = pipe.load @whole : tensor<4x96xf32>
      %part = pipe.load @part : tensor<4x96xf32>
      %a = train.add %whole, %whole {dist.layouts = [#dist.layout<[8 over (mb), 96]>], train.role = "forward"} : tensor<4x96xf32>, tensor<4x96xf32>
      pipe.store %a to @sum : tensor<4x96xf32>
      %b = train.mul %a, %part {dist.layouts = [#dist.layout<[8 over (mb), 96] partial(tp)>], train.role = "forward"} : tensor<4x96xf32>, tensor<4x96xf32>
      pipe.store %b to @mixed : tensor<4x96xf32>
      %c = train.mul %a, %a {dist.layouts = [#dist.layout<[8 over (mb), 96]>], train.role = "forward"} : tensor<4x96xf32>, tensor<4x96xf32>
      pipe.store %c to @again : tensor<4x96xf32>
    }
  }
}
