// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan --merak-update-in-place | FileCheck %s
// RUN: merak-opt %s --merak-convert-to-plan --merak-update-in-place \
// RUN:   --merak-assign-memory --merak-verify-memory --merak-insert-events \
// RUN:   --merak-verify-plan | FileCheck %s --check-prefix=EVENTS
// RUN: merak-opt %s --merak-convert-to-plan=sends=late --merak-update-in-place \
// RUN:   --merak-assign-memory --merak-insert-events --merak-verify-plan \
// RUN:   | FileCheck %s --check-prefix=LATE
// RUN: merak-opt %s --merak-convert-to-plan=sends=blocking --merak-update-in-place \
// RUN:   --merak-assign-memory --merak-insert-events --merak-verify-plan \
// RUN:   | FileCheck %s --check-prefix=BLOCKING
// RUN: not merak-opt %s --merak-convert-to-plan=sends=soon 2>&1 \
// RUN:   | FileCheck %s --check-prefix=SOON
// SOON: expected sends to be early, late or blocking, found soon

// A gradient that leaves late waits for gradients of weights, which stand behind it.
// LATE-LABEL: plan.procedure @stage1.backward
// LATE-NOT: plan.send
// LATE: plan.procedure @stage1.weight
// LATE: plan.library "einsum"
// LATE-NEXT: plan.record [[EVENT:[0-9]+]] () -> ()
// LATE-NEXT: plan.wait [[EVENT]] () -> () stream 3
// LATE-NEXT: plan.send "t1" (@act1[4, 8]) -> () peer {pp = 0 : i64} stream 3 {plan.after_all}

// The computation waits for its sends.
// BLOCKING-LABEL: plan.procedure @stage0.forward
// BLOCKING: plan.send "t0" (@act0[4, 8]) -> () peer {pp = 1 : i64} {plan.after_all}
// BLOCKING-LABEL: plan.procedure @stage1.backward
// BLOCKING-NOT: plan.send
// BLOCKING: plan.procedure @stage1.weight
// BLOCKING: plan.library "einsum"
// BLOCKING-NEXT: plan.send "t1" (@act1[4, 8]) -> () peer {pp = 0 : i64} {plan.after_all}

// Two stages of an MLP over dp=2 and tp=2, two microbatches. The hidden
// dimension is split over tp: one sum in the forward of stage 1.
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 2, mb = 2>,
    train.config = #train.config<mode = train, model = "mlp.onnx", global_batch = 16,
                                  optimizer = <sgd, lr = 1.0e-01, weight_decay = 0.0>>,
    pipe.decision = #pipe.decision<schedule = "1f1b">} {
  train.parameter @w1 : tensor<8x16xf32> trainable from #train.source<"" at 100 length 512>
  train.parameter @w2 : tensor<16x6xf32> trainable from #train.source<"w.bin" at 0 length 384>

  pipe.stage @stage0 index 0 schedule <F0, F1, W0, W1, U> {
    pipe.value input @x : tensor<4x8xf32> tensor "x" layout #dist.layout<[16 over (mb, dp), 8]>
    pipe.value parameter @w1 : tensor<8x8xf32> tensor "w1" layout #dist.layout<[8, 16 over (tp)]>
    pipe.value activation @act0 : tensor<4x8xf32> layout #dist.layout<[16 over (mb, dp), 16 over (tp)]>
    pipe.value activation @from1 : tensor<4x8xf32> layout #dist.layout<[16 over (mb, dp), 16 over (tp)]>
    pipe.value gradient @sum0 : tensor<8x8xf32> layout #dist.layout<[8, 16 over (tp)] partial(dp)>
    // The result of the last op goes straight into the value that is sent.
    // CHECK-LABEL: plan.program @stage0 index 0
    // CHECK: plan.buffer gradients @sum0 : tensor<8x8xf32> {{.*}}tensor "w1"
    // CHECK: plan.procedure @stage0.forward action F
    // CHECK-NEXT: plan.load_input "x" () -> (@"stage0.forward:x"[4, 8])
    // CHECK-NEXT: plan.library "einsum" (@"stage0.forward:x"[4, 8], @w1[8, 8]) -> (@[[H:.*]][4, 8]) with {equation = "bi,ij->bj"}
    // CHECK-NEXT: plan.kernel @kernel0 (@[[H]][4, 8]) -> (@act0[4, 8])
    // CHECK-NEXT: plan.send "t0" (@act0[4, 8]) -> () peer {pp = 1 : i64} stream 2
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x8xf32>
      %w = pipe.load @w1 : tensor<8x8xf32>
      %h = train.einsum "bi,ij->bj" %x, %w : tensor<4x8xf32>, tensor<8x8xf32>
      %r = train.relu %h : tensor<4x8xf32>
      pipe.store %r to @act0 : tensor<4x8xf32>
    }
    // The gradient is added where it is computed.
    // CHECK: plan.procedure @stage0.weight action W
    // CHECK: plan.recv "t1" () -> (@from1[4, 8]) peer {pp = 1 : i64} stream 3
    // CHECK: plan.library "einsum" ({{.*}}) -> (@sum0[8, 8]) with {equation = "bi,bj->ij"} accumulate
    pipe.action W @weight {
      %x = pipe.load @x : tensor<4x8xf32>
      %r = pipe.load @act0 : tensor<4x8xf32>
      %dr = pipe.load @from1 : tensor<4x8xf32>
      %zero = train.constant dense<0.0> : tensor<4x8xf32>
      %on = train.compare gt %r, %zero : tensor<4x8xf32>, tensor<4x8xf32>
      %dh = train.select %on, %dr, %zero : tensor<4x8xi1>, tensor<4x8xf32>, tensor<4x8xf32>
      %dw = train.einsum "bi,bj->ij" %x, %dh : tensor<4x8xf32>, tensor<4x8xf32>
      pipe.store %dw to @sum0 accumulate : tensor<8x8xf32>
    }
    // The reduced gradient stays in the accumulator.
    // CHECK: plan.procedure @stage0.update action U
    // CHECK-NEXT: plan.collective all_reduce (@sum0[8, 8]) -> (@sum0[8, 8]) group 0 reduction sum stream 1
    // CHECK-NEXT: plan.library "sgd_update" (@sum0[8, 8]) -> (@w1[8, 8]) with {clip = "0", dampening = "0", momentum = "0", nesterov = "0", weight_decay = "0"} scalars [#plan.scalar<"lr">, #plan.scalar<"step">]
    // CHECK: plan.procedure @stage0.clear
    // CHECK-NEXT: plan.library "fill" () -> (@sum0[8, 8])
    pipe.action U @update {
      %g = pipe.load @sum0 : tensor<8x8xf32>
      %r = dist.all_reduce %g over ["dp"] sum {dist.layouts = [#dist.layout<[8, 16 over (tp)]>], train.gradient_of = "w1"} : tensor<8x8xf32>
      pipe.update @w1 by #train.optimizer<sgd, lr = 1.0e-01, weight_decay = 0.0> states [] gradient %r : tensor<8x8xf32>
    }
    // Two microbatches are in flight.
    // CHECK: plan.call @stage0.clear microbatch -1
    // CHECK-NEXT: plan.call @stage0.forward microbatch 0 slots [0, 0]
    // CHECK-NEXT: plan.call @stage0.forward microbatch 1 slots [1, 1]
    // CHECK-NEXT: plan.call @stage0.weight microbatch 0 slots [0, 0]
    // CHECK-NEXT: plan.call @stage0.weight microbatch 1 slots [1, 1]
    // CHECK-NEXT: plan.call @stage0.update microbatch -1
  }

  pipe.stage @stage1 index 1 schedule <F0, B0, W0, F1, B1, W1, U> {
    pipe.value activation @from0 : tensor<4x8xf32> layout #dist.layout<[16 over (mb, dp), 16 over (tp)]>
    pipe.value activation @act1 : tensor<4x8xf32> layout #dist.layout<[16 over (mb, dp), 16 over (tp)]>
    pipe.value parameter @w2 : tensor<8x6xf32> tensor "w2" layout #dist.layout<[16 over (tp), 6]>
    pipe.value gradient @sum1 : tensor<8x6xf32> layout #dist.layout<[16 over (tp), 6] partial(dp)>
    pipe.value step @sum2 : tensor<f32> layout #dist.layout<[] partial(dp)>
    pipe.value result @loss : tensor<f32> tensor "loss" layout #dist.layout<[]>
    // CHECK-LABEL: plan.program @stage1 index 1
    // CHECK: plan.procedure @stage1.forward action F
    // CHECK: plan.collective all_reduce (@[[Y:.*]][4, 6]) -> (@[[Y]][4, 6]) group 0
    // EVENTS-LABEL: plan.program @stage1
    // EVENTS: plan.recv "t0"
    // EVENTS-NEXT: plan.record 0 () -> () stream 2
    // EVENTS: plan.wait 0 () -> ()
    // EVENTS: plan.library "einsum" (@from0
    // EVENTS: plan.record 1 () -> ()
    // EVENTS: plan.wait 1 () -> () stream 1
    // EVENTS-NEXT: plan.collective all_reduce
    // EVENTS-NEXT: plan.record 2 () -> () stream 1
    // EVENTS: plan.wait 2 () -> ()
    pipe.action F @forward {
      %x = pipe.load @from0 : tensor<4x8xf32>
      %w = pipe.load @w2 : tensor<8x6xf32>
      %p = train.einsum "bi,ij->bj" %x, %w : tensor<4x8xf32>, tensor<8x6xf32>
      %y = dist.all_reduce %p over ["tp"] sum : tensor<4x6xf32>
      %s = train.mul %y, %y : tensor<4x6xf32>, tensor<4x6xf32>
      %l = train.reduce_sum %s axes [0, 1] keepdims false : tensor<4x6xf32>
      pipe.store %l to @sum2 accumulate : tensor<f32>
    }
    pipe.action B @backward {
      %x = pipe.load @from0 : tensor<4x8xf32>
      %w = pipe.load @w2 : tensor<8x6xf32>
      %two = train.constant dense<2.0> : tensor<4x6xf32>
      %dx = train.einsum "bj,ij->bi" %two, %w : tensor<4x6xf32>, tensor<8x6xf32>
      pipe.store %dx to @act1 : tensor<4x8xf32>
    }
    pipe.action W @weight {
      %x = pipe.load @from0 : tensor<4x8xf32>
      %two = train.constant dense<2.0> : tensor<4x6xf32>
      %dw = train.einsum "bi,bj->ij" %x, %two : tensor<4x8xf32>, tensor<4x6xf32>
      pipe.store %dw to @sum1 accumulate : tensor<8x6xf32>
    }
    pipe.action U @update {
      %g = pipe.load @sum1 : tensor<8x6xf32>
      %r = dist.all_reduce %g over ["dp"] sum {dist.layouts = [#dist.layout<[16 over (tp), 6]>], train.gradient_of = "w2"} : tensor<8x6xf32>
      %l = pipe.load @sum2 : tensor<f32>
      %t = dist.all_reduce %l over ["dp"] sum : tensor<f32>
      pipe.store %t to @loss : tensor<f32>
      pipe.update @w2 by #train.optimizer<sgd, lr = 1.0e-01, weight_decay = 0.0> states [] gradient %r : tensor<8x6xf32>
    }
    // CHECK: plan.output "loss" of @loss shape []
  }
  pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0
  pipe.transfer B @t1 from @stage1::@act1 to @stage0::@from1
}
