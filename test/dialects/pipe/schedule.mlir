// Schedules and actions as text and back, also in the generic form.
// RUN: merak-opt %s | FileCheck %s
// RUN: merak-opt %s | merak-opt | FileCheck %s
// RUN: merak-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC
// RUN: merak-opt %s --mlir-print-op-generic | merak-opt | FileCheck %s

// Every action, both kinds of recomputation, chunks; cells that are also names of
// types. A forward is marked where its recomputation is early, whoever wrote it.
// CHECK: pipe.stage @stage0 index 0 schedule <P0, P0.1, f16, F1, F1.2, r1, B1, W1, R16, B16, W16, S, U>
// GENERIC: #pipe.schedule<P0, P0.1, f16, F1, F1.2, r1, B1, W1, R16, B16, W16, S, U>
pipe.stage @stage0 index 0 schedule <P0, P0.1, f16, F1, F1.2, r1, B1, W1, R16, B16, W16, S, U> {
  // CHECK: pipe.action F @forward {
  // GENERIC: kind = #pipe.action<F>
  pipe.action F @forward {
  }
  // CHECK: pipe.action P @prologue.1 chunk 1 {
  pipe.action P @prologue.1 chunk 1 {
  }
}

// CHECK: pipe.stage @stage1 index 1 schedule <f0, R0, B0>
pipe.stage @stage1 index 1 schedule <F0, R0, B0> {
}

// CHECK: pipe.stage @stage2 index 2 schedule <> {
pipe.stage @stage2 index 2 schedule <> {
}

// CHECK: pipe.stage @stage3 index 3 {
pipe.stage @stage3 index 3 {
}

// CHECK: plan.program @program index 0 streams ["compute"] groups [] schedule <F0, U> {
plan.program @program index 0 streams ["compute"] groups [] schedule <F0, U> {
  // CHECK: plan.procedure @update action U {
  plan.procedure @update action U {
  }
}

// CHECK: module attributes {pipe.example = #pipe.action<W>, pipe.order = #pipe.schedule<F0, F1>}
module attributes {pipe.example = #pipe.action<W>, pipe.order = #pipe.schedule<F0, F1>} {
}
