// Every op and attribute of the plan dialect is parsed, printed and parsed
// again. Collectives are in plan/collectives.mlir.
// RUN: merak-opt %s --verify-roundtrip | merak-opt | FileCheck %s
// RUN: merak-opt %s --mlir-print-op-generic | merak-opt | FileCheck %s

func.func private @kernel0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {merak.kernel}

// CHECK: plan.program @stage0 index 0 streams ["compute", "collectives", "send"] groups {{\[}}["tp"], ["dp", "tp"]] schedule <F0, F1, U> arena 1024 events 1 {
plan.program @stage0 index 0 streams ["compute", "collectives", "send"] groups [["tp"], ["dp", "tp"]] schedule <F0, F1, U> arena 1024 events 1 {
  // CHECK-NEXT: plan.buffer parameters @w : tensor<8x4xf32> at 0 tensor "w" layout <[8, 8 over (tp)]>
  plan.buffer parameters @w : tensor<8x4xf32> at 0 tensor "w" layout <[8, 8 over (tp)]>
  // CHECK-NEXT: plan.buffer gradients @sum0 : tensor<8x4xf32> tensor "w"
  plan.buffer gradients @sum0 : tensor<8x4xf32> tensor "w"
  // CHECK-NEXT: plan.buffer optimizer @w.sum : tensor<8x4xf32>
  plan.buffer optimizer @w.sum : tensor<8x4xf32>
  // Slots before and after memory is assigned.
  // CHECK-NEXT: plan.buffer activations @act0 : tensor<4xf32> slots 3 class 0
  plan.buffer activations @act0 : tensor<4xf32> slots 3 class 0
  // CHECK-NEXT: plan.buffer communication @act1 : tensor<4xf32> at 512 slots 2 stride 64 class 1
  plan.buffer communication @act1 : tensor<4xf32> at 512 slots 2 stride 64 class 1
  // CHECK-NEXT: plan.buffer workspace @tmp : tensor<4xi1> in @stage0.forward at 640
  plan.buffer workspace @tmp : tensor<4xi1> in @stage0.forward at 640
  // CHECK-NEXT: plan.buffer activations @ids : tensor<4xi64> in @stage0.forward tensor "ids" layout <[16 over (mb, dp)]> {plan.allowed = -100 : i64, plan.limit = 96 : i64}
  plan.buffer activations @ids : tensor<4xi64> in @stage0.forward tensor "ids" layout <[16 over (mb, dp)]> {plan.allowed = -100 : i64, plan.limit = 96 : i64}
  // CHECK-NEXT: plan.buffer workspace @loss : tensor<f32>
  plan.buffer workspace @loss : tensor<f32>

  // CHECK: plan.procedure @stage0.forward action F {
  plan.procedure @stage0.forward action F {
    // CHECK-NEXT: plan.load_input "ids" () -> (@ids[4])
    plan.load_input "ids" () -> (@ids[4])
    // CHECK-NEXT: plan.kernel @kernel0 (@act0[4]) -> (@act1[4]) rows 0 accumulate {in_place}
    plan.kernel @kernel0 (@act0[4]) -> (@act1[4]) rows 0 accumulate {in_place}
    // CHECK-NEXT: plan.kernel @kernel0 (@act0[4]) -> (@act1[4]) rows 4 scalars [#plan.scalar<5.000000e-01 : f64>] stream 1
    plan.kernel @kernel0 (@act0[4]) -> (@act1[4]) rows 4 scalars [#plan.scalar<0.5>] stream 1
    // Views: dense, strided, from an offset on, without elements, of rank 0.
    // CHECK-NEXT: plan.library "copy" (@w[4, 8] by [1, 4]) -> (@sum0[2, 2] by [4, 1] at 6) accumulate {plan.submicrobatch = 1 : i64}
    plan.library "copy" (@w[4, 8] by [1, 4]) -> (@sum0[2, 2] by [4, 1] at 6) accumulate {plan.submicrobatch = 1 : i64}
    // CHECK-NEXT: plan.library "copy" (@act0[0]) -> (@loss[])
    plan.library "copy" (@act0[0]) -> (@loss[])
    // CHECK-NEXT: plan.library "sgd_update" (@sum0[8, 4]) -> (@w[8, 4]) with {clip = "0"} scalars [#plan.scalar<"lr">, #plan.scalar<"tp" * 48>, #plan.scalar<3 : i64>]
    plan.library "sgd_update" (@sum0[8, 4]) -> (@w[8, 4]) with {clip = "0"} scalars [#plan.scalar<"lr">, #plan.scalar<"tp" * 48>, #plan.scalar<3>]
    // CHECK-NEXT: plan.collective all_to_all (@act0[4]) -> (@act1[4]) group 0 stream 1
    plan.collective all_to_all (@act0[4]) -> (@act1[4]) group 0 stream 1
    // CHECK-NEXT: plan.record 0 () -> () stream 1
    plan.record 0 () -> () stream 1
    // CHECK-NEXT: plan.wait 0 () -> ()
    plan.wait 0 () -> ()
    // CHECK-NEXT: plan.send "t0" (@act1[4]) -> () peer {pp = 1 : i64} stream 2
    plan.send "t0" (@act1[4]) -> () peer {pp = 1} stream 2
    // CHECK-NEXT: plan.recv "t1" () -> (@act0[4]) peer {pp = 1 : i64} stream 2
    plan.recv "t1" () -> (@act0[4]) peer {pp = 1} stream 2
  }
  // CHECK: plan.procedure @stage0.update action U {
  plan.procedure @stage0.update action U {
  }
  // CHECK: plan.call @stage0.forward microbatch 0 slots [0, 1] waits []
  plan.call @stage0.forward microbatch 0 slots [0, 1] waits []
  // CHECK-NEXT: plan.call @stage0.update microbatch -1 slots [0, 0] waits [0, 1, 0, 1, 0, 0] {plan.after_previous}
  plan.call @stage0.update microbatch -1 slots [0, 0] waits [0, 1, 0, 1, 0, 0] {plan.after_previous}
  // CHECK-NEXT: plan.output "loss" of @loss shape []
  plan.output "loss" of @loss shape []
  // CHECK-NEXT: plan.output "y" of @act1 shape [8] layout <[8 over (mb)]> per_microbatch
  plan.output "y" of @act1 shape [8] layout <[8 over (mb)]> per_microbatch
}
