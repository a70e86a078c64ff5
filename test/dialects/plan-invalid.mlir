// Each message of a plan op's verifier and of the attributes; reductions are in
// plan/collectives-errors.mlir.
// RUN: merak-opt %s --verify-diagnostics --split-input-file

// expected-error @+1 {{attribute 'index' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
plan.program @stage0 index -1 streams ["compute"] groups [] schedule <F0> {
}

// -----

// expected-error @+1 {{'plan.program' op expected at least one stream}}
plan.program @stage0 index 0 streams [] groups [] schedule <F0> {
}

// -----

// expected-error @+1 {{attribute 'groups' failed to satisfy constraint: array of groups, each an array of mesh axes}}
plan.program @stage0 index 0 streams ["compute"] groups ["tp"] schedule <F0> {
}

// -----

// expected-error @+1 {{'plan.program' op expected each axis of a group once, found ["tp", "tp"]}}
plan.program @stage0 index 0 streams ["compute"] groups [["dp"], ["tp", "tp"]] schedule <F0> {
}

// -----

// expected-error @+1 {{'plan.program' op expected at least one axis of a group}}
plan.program @stage0 index 0 streams ["compute"] groups [[]] schedule <F0> {
}

// -----

// expected-error @+1 {{'plan.program' op expected buffers, procedures, calls and outputs, found 'train.none'}}
plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  %0 = train.none : none
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.buffer' op is live in one procedure only, but has 2 slots}}
  plan.buffer workspace @a : tensor<4xf32> in @f slots 2 class 0
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{attribute 'slots' failed to satisfy constraint: 64-bit signless integer attribute whose value is positive}}
  plan.buffer workspace @a : tensor<4xf32> slots 0
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.buffer' op expected a class of its 2 slots}}
  plan.buffer activations @a : tensor<4xf32> slots 2
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{attribute 'slot_class' failed to satisfy constraint: 64-bit signless integer attribute whose minimum value is -1}}
  plan.buffer activations @a : tensor<4xf32> class -2
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.buffer' op expected slots at least 16 bytes apart, found 8}}
  plan.buffer activations @a : tensor<4xf32> slots 2 stride 8 class 0
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{attribute 'offset' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
  plan.buffer activations @a : tensor<4xf32> at -64
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{attribute 'type' failed to satisfy constraint: type attribute of statically shaped tensor}}
  plan.buffer activations @a : tensor<4x?xf32>
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.buffer' op expected a layout of 2 dimensions, found #dist.layout<[4]>}}
  plan.buffer parameters @a : tensor<4x4xf32> layout <[4]>
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.buffer' op expected a layout of which dimension 0 is a multiple of 3, found #dist.layout<[4]>}}
  plan.buffer parameters @a : tensor<3xf32> layout <[4]>
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.procedure' op expected instructions, found 'train.none'}}
  plan.procedure @f action F {
    %0 = train.none : none
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.call' op expected triples (stream, on, call) as waits, got 4 numbers}}
  plan.call @f microbatch 0 slots [] waits [0, 1, 0, 0]
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.call' op expected slots and waits that are not negative, found array<i64: -1> and array<i64>}}
  plan.call @f microbatch 0 slots [-1] waits []
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.call' op expected slots and waits that are not negative, found array<i64> and array<i64: 0, 1, -1>}}
  plan.call @f microbatch 0 slots [] waits [0, 1, -1]
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{attribute 'microbatch' failed to satisfy constraint: 64-bit signless integer attribute whose minimum value is -1}}
  plan.call @f microbatch -2 slots [] waits []
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  // expected-error @+1 {{'plan.output' op expected the shape of #dist.layout<[8 over (mb), 4]>, found array<i64: 8, 8>}}
  plan.output "y" of @y shape [8, 8] layout <[8 over (mb), 4]>
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.kernel' op expected at least one output, got 1 inputs and 0 outputs}}
    plan.kernel @kernel0 (@x[4]) -> () rows 0
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{attribute 'rows' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
    plan.kernel @kernel0 (@x[4]) -> (@x[4]) rows -1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.library' op expected a string as attribute "axis", found 0}}
    plan.library "slice" (@x[4]) -> (@x[4]) with {axis = 0}
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.library' op expected the name of a kernel}}
    plan.library "" (@x[4]) -> (@x[4])
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.library' op expected at least one output, got 0 inputs and 0 outputs}}
    plan.library "fill" () -> ()
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{attribute 'stream' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
    plan.library "fill" () -> (@x[4]) stream -1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.record' op expected no operands, got 1 inputs and 0 outputs}}
    plan.record 0 (@x[4]) -> ()
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{attribute 'event' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
    plan.record -1 () -> ()
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.wait' op expected no operands, got 0 inputs and 1 outputs}}
    plan.wait 0 () -> (@x[4])
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.load_input' op expected one output and no input, got 0 inputs and 2 outputs}}
    plan.load_input "x" () -> (@x[4], @x[4])
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.load_input' op expected the name of a model input}}
    plan.load_input "" () -> (@x[4])
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.send' op expected inputs and no output, got 0 inputs and 0 outputs}}
    plan.send "t0" () -> () peer {pp = 1}
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.send' op expected the name of a channel}}
    plan.send "" (@x[4]) -> () peer {pp = 1}
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.send' op expected a coordinate of the peer on "pp", found -1}}
    plan.send "t0" (@x[4]) -> () peer {pp = -1}
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.recv' op expected outputs and no input, got 1 inputs and 1 outputs}}
    plan.recv "t0" (@x[4]) -> (@x[4]) peer {pp = 0}
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.recv' op expected a coordinate of the peer on "pp", found "0"}}
    plan.recv "t0" () -> (@x[4]) peer {pp = "0"}
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected as many outputs as inputs, at least one, got 0 inputs and 0 outputs}}
    plan.collective all_reduce () -> () group 0 reduction sum
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected as many outputs as inputs, at least one, got 1 inputs and 2 outputs}}
    plan.collective all_reduce (@x[4]) -> (@x[4], @x[4]) group 0 reduction sum
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{attribute 'group' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
    plan.collective all_reduce (@x[4]) -> (@x[4]) group -1 reduction sum
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected no such dimension of all_reduce, got dim 1 and dim2 0}}
    plan.collective all_reduce (@x[4]) -> (@x[4]) group 0 reduction sum dim 1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected no such dimension of all_gather, got dim 0 and dim2 1}}
    plan.collective all_gather (@x[4]) -> (@y[8]) group 0 dim2 1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that all_reduce makes of [4], got [2, 2]}}
    plan.collective all_reduce (@x[4]) -> (@y[2, 2]) group 0 reduction sum
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that broadcast makes of [4], got [8]}}
    plan.collective broadcast (@x[4]) -> (@y[8]) group 0
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that all_gather makes of [4], got [6]}}
    plan.collective all_gather (@x[4]) -> (@y[6]) group 0
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that all_gather makes of [4], got [8]}}
    plan.collective all_gather (@x[4]) -> (@y[8]) group 0 dim 1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that all_gather makes of [4, 2], got [8, 2]}}
    plan.collective all_gather (@x[4, 2]) -> (@y[8, 2]) group 0 dim 1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that reduce_scatter makes of [6], got [4]}}
    plan.collective reduce_scatter (@x[6]) -> (@y[4]) group 0 reduction max
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that reduce_scatter makes of [4], got [8]}}
    plan.collective reduce_scatter (@x[4]) -> (@y[8]) group 0 reduction sum
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that all_to_all makes of [4, 8], got [12, 4]}}
    plan.collective all_to_all (@x[4, 8]) -> (@y[12, 4]) group 0 dim 1
  }
}

// -----

plan.program @stage0 index 0 streams ["compute"] groups [["tp"]] schedule <F0> {
  plan.procedure @f action F {
    // expected-error @+1 {{'plan.collective' op expected the shape that all_to_all makes of [4, 8], got [4, 4]}}
    plan.collective all_to_all (@x[4, 8]) -> (@y[4, 4]) group 0 dim 1
  }
}

// -----

// expected-error @+1 {{expected one stride per dimension, got 1 for 2}}
module attributes {plan.example = #plan.view<@x[4, 2] by [1]>} {
}

// -----

// expected-error @+1 {{expected no negative offset, size or stride in the view of @x}}
module attributes {plan.example = #plan.view<@x[4] at -1>} {
}

// -----

// expected-error @+1 {{expected no negative offset, size or stride in the view of @x}}
module attributes {plan.example = #plan.view<@x[-4]>} {
}

// -----

// expected-error @+1 {{expected no negative offset, size or stride in the view of @x}}
module attributes {plan.example = #plan.view<@x[4] by [-1] at 3>} {
}

// -----

// expected-error @+1 {{expected an integer, a float or a name as scalar, found []}}
module attributes {plan.example = #plan.scalar<[]>} {
}

// -----

// expected-error @+1 {{expected a mesh axis before the scale 48, found 3}}
module attributes {plan.example = #plan.scalar<3 * 48>} {
}
