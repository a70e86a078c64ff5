// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s --check-prefix=BEFORE
// RUN: merak-opt %s --merak-convert-to-plan --merak-update-in-place | FileCheck %s
// RUN: merak-opt %s --merak-convert-to-plan --merak-update-in-place \
// RUN:   --merak-assign-memory --merak-verify-memory --merak-insert-events \
// RUN:   --merak-verify-plan -o /dev/null

// The gradient of logits, which W reads, takes the place of the logits, which F
// left. The buffer has slots from F to W: two, where the lives by themselves need
// one and two. Logits that W reads as well (@y) stay.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 2>,
    train.config = #train.config<mode = train, model = "loss.onnx", global_batch = 8,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "1f1b">,
    dist.cluster = #dist.cluster<backend = "cpu">} {
  pipe.stage @stage0 index 0 schedule <F0, B0, F1, B1, W0, W1> {
    pipe.value activation @h : tensor<4x8xf32>
    pipe.value activation @labels : tensor<4xi64>
    pipe.value activation @lse : tensor<4xf32>
    pipe.value activation @x : tensor<4x8xf32>
    pipe.value activation @dx : tensor<4x8xf32>
    pipe.value activation @y : tensor<4x8xf32>
    pipe.value activation @dy : tensor<4x8xf32>
    pipe.value activation @o : tensor<4x8xf32>
    pipe.value activation @p : tensor<4x8xf32>

    // BEFORE-DAG: plan.buffer activations @x : tensor<4x8xf32> class
    // BEFORE-DAG: plan.buffer activations @dx : tensor<4x8xf32> slots 2 class
    // CHECK: plan.buffer activations @x : tensor<4x8xf32> slots 2
    // CHECK-NOT: plan.buffer activations @dx
    // CHECK: plan.buffer activations @y : tensor<4x8xf32> slots 2
    // CHECK: plan.buffer activations @dy : tensor<4x8xf32> slots 2

    // CHECK-LABEL: plan.procedure @stage0.forward
    // CHECK: (@h[4, 8]) -> (@x[4, 8])
    pipe.action F @forward {
      %h = pipe.load @h : tensor<4x8xf32>
      %0 = train.softmax %h axis 1 : tensor<4x8xf32>
      pipe.store %0 to @x : tensor<4x8xf32>
      %1 = train.softmax %h axis 0 : tensor<4x8xf32>
      pipe.store %1 to @y : tensor<4x8xf32>
    }
    // CHECK-LABEL: plan.procedure @stage0.backward
    // CHECK: (@x[4, 8], @labels[4], @lse[4]) -> (@x[4, 8])
    // CHECK: (@y[4, 8], @labels[4], @lse[4]) -> (@dy[4, 8])
    pipe.action B @backward {
      %l = pipe.load @labels : tensor<4xi64>
      %s = pipe.load @lse : tensor<4xf32>
      %x = pipe.load @x : tensor<4x8xf32>
      %0 = train.softmax_cross_entropy_grad %x, %l, %s, %s : tensor<4x8xf32>, tensor<4xi64>, tensor<4xf32>, tensor<4xf32> -> tensor<4x8xf32>
      pipe.store %0 to @dx : tensor<4x8xf32>
      %y = pipe.load @y : tensor<4x8xf32>
      %1 = train.softmax_cross_entropy_grad %y, %l, %s, %s : tensor<4x8xf32>, tensor<4xi64>, tensor<4xf32>, tensor<4xf32> -> tensor<4x8xf32>
      pipe.store %1 to @dy : tensor<4x8xf32>
    }
    // CHECK-LABEL: plan.procedure @stage0.weight
    // CHECK: (@x[4, 8]) -> (@o[4, 8])
    pipe.action W @weight {
      %0 = pipe.load @dx : tensor<4x8xf32>
      %1 = train.softmax %0 axis 1 : tensor<4x8xf32>
      pipe.store %1 to @o : tensor<4x8xf32>
      %2 = pipe.load @dy : tensor<4x8xf32>
      %3 = pipe.load @y : tensor<4x8xf32>
      %4 = train.softmax_grad %2, %3 axis 1 : tensor<4x8xf32>
      pipe.store %4 to @p : tensor<4x8xf32>
    }
  }
}
