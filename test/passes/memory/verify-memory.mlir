// REQUIRES: merak-opt
// RUN: not merak-opt %s --merak-verify-memory 2>&1 | FileCheck %s

// CHECK: error: 'plan.buffer' op at bytes [512, 1536) overlaps 'w' at [0, 1024) while both are live
// CHECK: note: the other buffer
plan.program @persistent index 0 streams ["compute"] groups [] schedule <F0> arena 2048 {
  plan.buffer parameters @w : tensor<16x16xf32> at 0
  plan.buffer gradients @g : tensor<16x16xf32> at 512
}

// CHECK: error: 'plan.buffer' op at bytes [0, 64) overlaps 'read' at [0, 64) while both are live
plan.program @transient index 1 streams ["compute"] groups [] schedule <F0> arena 64 {
  plan.buffer workspace @read : tensor<16xf32> in @f at 0
  plan.buffer workspace @written : tensor<16xf32> in @f at 0
  plan.procedure @f action F {
    plan.library "fill"() -> (@read[16]) scalars [#plan.scalar<0>]
    plan.library "copy"(@read[16]) -> (@written[16])
  }
}

// A collective beside the computation keeps its operand until its result is
// used: here until the last copy.
// CHECK: error: 'plan.buffer' op at bytes [0, 64) overlaps 'sent' at [0, 64) while both are live
plan.program @beside index 2 streams ["compute", "collectives"] groups [["tp"]] schedule <F0> arena 192 {
  plan.buffer workspace @sent : tensor<16xf32> in @f at 0
  plan.buffer workspace @sum : tensor<16xf32> in @f at 64
  plan.buffer workspace @other : tensor<16xf32> in @f at 0
  plan.buffer workspace @end : tensor<16xf32> in @f at 128
  plan.procedure @f action F {
    plan.library "fill"() -> (@sent[16]) scalars [#plan.scalar<0>]
    plan.collective all_reduce(@sent[16]) -> (@sum[16]) group 0 reduction sum stream 1
    plan.library "fill"() -> (@other[16]) scalars [#plan.scalar<0>]
    plan.library "copy"(@sum[16]) -> (@end[16])
  }
}

// CHECK: error: 'plan.buffer' op has no offset
// CHECK: error: 'plan.buffer' op at byte 32 is not aligned to 64
// CHECK: error: 'plan.buffer' op ends at byte 160 of an arena of 128
plan.program @places index 3 streams ["compute"] groups [] schedule <F0> arena 128 {
  plan.buffer workspace @a : tensor<4xf32>
  plan.buffer workspace @b : tensor<4xf32> at 32
  plan.buffer workspace @c : tensor<8xf32> at 128
}
