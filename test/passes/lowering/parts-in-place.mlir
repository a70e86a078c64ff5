// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s

// A part that its producer writes where it belongs is not copied there again,
// whatever stride a reshape gives to a dimension of size 1: halves of a bias
// that lie side by side, and steps of two directions.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 2>,
    train.config = #train.config<mode = train, model = "bloom.onnx", global_batch = 2,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cpu">} {
  pipe.stage @stage0 index 0 schedule <F0, F1> {
    pipe.value activation @a : tensor<1x2x4xf32>
    pipe.value activation @b : tensor<1x2x4xf32>
    pipe.value activation @whole : tensor<2x1x8xf32>
    pipe.value activation @h : tensor<1x4x6xf32>
    pipe.value activation @steps : tensor<1x4x2x6xf32>

    // CHECK: plan.procedure @stage0.forward
    // CHECK-NOT: "copy"
    // CHECK: plan.kernel {{.*}} -> (@whole[1, 2, 4] by [16, 8, 1])
    // CHECK-NOT: "copy"
    // CHECK: plan.kernel {{.*}} -> (@whole[1, 2, 4] by [16, 8, 1] at 4)
    // CHECK-NOT: "copy"
    // CHECK: plan.kernel {{.*}} -> (@steps[1, 4, 6] by [48, 12, 1])
    // CHECK-NOT: "copy"
    // CHECK: plan.kernel {{.*}} -> (@steps[1, 4, 6] by [48, 12, 1] at 6)
    // CHECK-NOT: "copy"
    pipe.action F @forward {
      %a = pipe.load @a : tensor<1x2x4xf32>
      %b = pipe.load @b : tensor<1x2x4xf32>
      %0 = train.exp %a : tensor<1x2x4xf32>
      %1 = train.reshape %0 : tensor<1x2x4xf32> to tensor<2x1x4xf32>
      %2 = train.tanh %b : tensor<1x2x4xf32>
      %3 = train.reshape %2 : tensor<1x2x4xf32> to tensor<2x1x4xf32>
      %4 = train.concat %1, %3 axis 2 : tensor<2x1x4xf32>, tensor<2x1x4xf32>
      pipe.store %4 to @whole : tensor<2x1x8xf32>
      %h = pipe.load @h : tensor<1x4x6xf32>
      %5 = train.exp %h : tensor<1x4x6xf32>
      %6 = train.reshape %5 : tensor<1x4x6xf32> to tensor<1x1x4x6xf32>
      %7 = train.tanh %5 : tensor<1x4x6xf32>
      %8 = train.reshape %7 : tensor<1x4x6xf32> to tensor<1x1x4x6xf32>
      %9 = train.concat %6, %8 axis 1 : tensor<1x1x4x6xf32>, tensor<1x1x4x6xf32>
      %10 = train.transpose %9 perm [0, 2, 1, 3] : tensor<1x2x4x6xf32>
      pipe.store %10 to @steps : tensor<1x4x2x6xf32>
    }
  }
}
