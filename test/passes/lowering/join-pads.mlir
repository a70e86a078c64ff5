// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan --merak-verify-plan | FileCheck %s

// The gradient of a tensor that was cut into slices is their gradients beside
// each other: written in place, without zeros.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>,
    train.config = #train.config<mode = train, model = "cut.onnx", global_batch = 4,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "gpipe">,
    dist.cluster = #dist.cluster<backend = "cuda">} {
  pipe.stage @stage0 index 0 schedule <B0> {
    pipe.value activation @a : tensor<4x8xf32>
    pipe.value activation @b : tensor<4x6xf32>
    pipe.value activation @c : tensor<4x4xf32>
    pipe.value activation @all : tensor<4x18xf32>
    pipe.value activation @more : tensor<4x18xf32>
    pipe.value activation @gap : tensor<4x18xf32>

    // CHECK: plan.procedure @stage0.backward action B
    pipe.action B @backward {
      %a = pipe.load @a : tensor<4x8xf32>
      %b = pipe.load @b : tensor<4x6xf32>
      %c = pipe.load @c : tensor<4x4xf32>
      %x = train.neg %a : tensor<4x8xf32>
      %y = train.neg %b : tensor<4x6xf32>
      %z = train.neg %c : tensor<4x4xf32>
      // Three kernels that write their parts.
      // CHECK-NEXT: plan.kernel @{{.*}} (@a[4, 8]) -> (@all[4, 8] by [18, 1])
      // CHECK-NEXT: plan.kernel @{{.*}} (@b[4, 6]) -> (@all[4, 6] by [18, 1] at 8)
      // CHECK-NEXT: plan.kernel @{{.*}} (@c[4, 4]) -> (@all[4, 4] by [18, 1] at 14)
      %p = train.pad %z low [0, 14] high [0, 0] interior [0, 0] value 0.000000e+00 : tensor<4x4xf32>
      %q = train.pad %x low [0, 0] high [0, 10] interior [0, 0] value 0.000000e+00 : tensor<4x8xf32>
      %r = train.pad %y low [0, 8] high [0, 4] interior [0, 0] value 0.000000e+00 : tensor<4x6xf32>
      %s = train.add %p, %q : tensor<4x18xf32>, tensor<4x18xf32>
      %t = train.add %s, %r : tensor<4x18xf32>, tensor<4x18xf32>
      pipe.store %t to @all : tensor<4x18xf32>
      // Beside a gradient of the whole.
      // CHECK-COUNT-3: plan.library "copy"
      // CHECK-NEXT: plan.kernel {{.*}}@all[4, 18]) -> (@more[4, 18])
      %p2 = train.pad %a low [0, 0] high [0, 10] interior [0, 0] value 0.000000e+00 : tensor<4x8xf32>
      %q2 = train.pad %b low [0, 8] high [0, 4] interior [0, 0] value 0.000000e+00 : tensor<4x6xf32>
      %r2 = train.pad %c low [0, 14] high [0, 0] interior [0, 0] value 0.000000e+00 : tensor<4x4xf32>
      %s2 = train.add %p2, %t : tensor<4x18xf32>, tensor<4x18xf32>
      %t2 = train.add %s2, %q2 : tensor<4x18xf32>, tensor<4x18xf32>
      %u2 = train.add %t2, %r2 : tensor<4x18xf32>, tensor<4x18xf32>
      pipe.store %u2 to @more : tensor<4x18xf32>
      // Parts with a gap between them stay a sum.
      // CHECK-NEXT: plan.library "fill"
      %p3 = train.pad %a low [0, 0] high [0, 10] interior [0, 0] value 0.000000e+00 : tensor<4x8xf32>
      %r3 = train.pad %c low [0, 14] high [0, 0] interior [0, 0] value 0.000000e+00 : tensor<4x4xf32>
      %s3 = train.add %p3, %r3 : tensor<4x18xf32>, tensor<4x18xf32>
      pipe.store %s3 to @gap : tensor<4x18xf32>
    }
  }
}
