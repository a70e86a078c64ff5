// Collectives and reductions as text and back.
// RUN: merak-opt %s | FileCheck %s
// RUN: merak-opt %s --mlir-print-op-generic | merak-opt | FileCheck %s

// CHECK: plan.program @program
plan.program @program index 0 streams ["compute"] groups [["dp"]] schedule <U> {
  plan.buffer gradients @g : tensor<4xf32>
  plan.buffer gradients @h : tensor<8xf32>
  plan.procedure @update action U {
    // CHECK: plan.collective all_reduce (@g[4]) -> (@g[4]) group 0 reduction sum
    plan.collective all_reduce (@g[4]) -> (@g[4]) group 0 reduction sum
    // CHECK: plan.collective reduce_scatter (@h[8]) -> (@g[4]) group 0 reduction max
    plan.collective reduce_scatter (@h[8]) -> (@g[4]) group 0 reduction max
    // CHECK: plan.collective all_gather (@g[4]) -> (@h[8]) group 0
    plan.collective all_gather (@g[4]) -> (@h[8]) group 0
    // CHECK: plan.collective all_to_all (@h[8]) -> (@h[8]) group 0
    plan.collective all_to_all (@h[8]) -> (@h[8]) group 0
    // CHECK: plan.collective broadcast (@h[8]) -> (@h[8]) group 0 stream 1
    plan.collective broadcast (@h[8]) -> (@h[8]) group 0 stream 1
  }
}
