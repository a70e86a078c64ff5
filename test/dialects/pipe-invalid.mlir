// Each message of a pipe op's verifier.
// RUN: merak-opt %s --verify-diagnostics --split-input-file

// expected-error @+1 {{attribute 'index' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
pipe.stage @stage0 index -1 {
}

// -----

// expected-error @+1 {{'pipe.stage' op expected values and actions, found 'train.none'}}
pipe.stage @stage0 index 0 {
  %0 = train.none : none
}

// -----

// expected-error @+1 {{'pipe.stage' op expected one action B.1, found two}}
pipe.stage @stage0 index 0 {
  pipe.action B @backward {
  }
  pipe.action B @backward.1 chunk 1 {
  }
  pipe.action B @again chunk 1 {
  }
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected 'pipe.initial' for a carried value}}
  pipe.value carried @late : tensor<4xf32>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected the name of a tensor for a value of kind parameter}}
  pipe.value parameter @w : tensor<4xf32>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected the name of a tensor for a value of kind input}}
  pipe.value input @x : tensor<4xf32>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected the name of a tensor for a value of kind constant}}
  pipe.value constant @table : tensor<4xf32>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected the name of a tensor for a value of kind state}}
  pipe.value state @w.sum : tensor<4xf32>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op attribute 'type' failed to satisfy constraint: type attribute of statically shaped tensor}}
  pipe.value activation @act0 : tensor<?xf32>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected a layout of 1 dimensions, found #dist.layout<[4, 8]>}}
  pipe.value activation @act0 : tensor<4xf32> layout <[4, 8]>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected a layout of which dimension 1 is a multiple of 8, found #dist.layout<[4, 4]>}}
  pipe.value activation @act0 : tensor<4x8xf32> layout <[4, 4]>
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.value' op expected a layout of which dimension 0 is a multiple of 0, found #dist.layout<[4]>}}
  pipe.value activation @act0 : tensor<0xf32> layout <[4]>
}

// -----

// expected-error @+1 {{'pipe.value' op expects parent op 'pipe.stage'}}
pipe.value activation @act0 : tensor<4xf32>

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{'pipe.action' op expected no chunk of action U, which is for all parts of its stage, got 1}}
  pipe.action U @update chunk 1 {
  }
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{attribute 'chunk' failed to satisfy constraint: 64-bit signless integer attribute whose value is non-negative}}
  pipe.action F @forward chunk -1 {
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.action F @forward {
    // expected-error @+1 {{'pipe.load' op expected a value of the stage, found @forward}}
    %0 = pipe.load @forward : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.action F @forward {
    // expected-error @+1 {{'pipe.load' op expected the type of @act0, 'tensor<4xf32>', found 'tensor<5xf32>'}}
    %0 = pipe.load @act0 : tensor<5xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.action F @forward {
    %0 = pipe.load @act0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.store' op expected a value of the stage, found @act1}}
    pipe.store %0 to @act1 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.value activation @act1 : tensor<8xf32>
  pipe.action F @forward {
    %0 = pipe.load @act0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.store' op expected the type of @act1, 'tensor<8xf32>', found 'tensor<4xf32>'}}
    pipe.store %0 to @act1 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value input @x : tensor<4xf32> tensor "x"
  pipe.action F @forward {
    %0 = pipe.load @x : tensor<4xf32>
    // expected-error @+1 {{'pipe.store' op expected a value that can be written, found input @x}}
    pipe.store %0 to @x : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.action F @forward {
    %0 = pipe.load @act0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.store' op expected a gradient, step or carried value to add to, found activation @act0}}
    pipe.store %0 to @act0 accumulate : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<4xf32> tensor "w"
  pipe.value state @w.exp_avg : tensor<4xf32> tensor "w.exp_avg"
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected as many states as #train.optimizer<adamw> has, which are 2, found 1}}
    pipe.update @w by #train.optimizer<adamw> states [@w.exp_avg] gradient %0 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<4xf32> tensor "w"
  pipe.value state @a : tensor<4xf32> tensor "a"
  pipe.value state @b : tensor<4xf32> tensor "b"
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected as many states as #train.optimizer<sgd> has, which are 0, found 2}}
    pipe.update @w by #train.optimizer<sgd> states [@a, @b] gradient %0 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<4xf32> tensor "w"
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected a scalar to clip by, found 'tensor<4xf32>'}}
    pipe.update @w by #train.optimizer<sgd> states [] gradient %0 clip %0 : tensor<4xf32>, tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<8xf32> tensor "w"
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected the type of @w, 'tensor<8xf32>', found 'tensor<4xf32>'}}
    pipe.update @w by #train.optimizer<sgd> states [] gradient %0 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<9x4xf32> tensor "w"
  pipe.value step @rows : tensor<3x5xf32>
  pipe.value step @ids : tensor<3xi64>
  pipe.action U @update {
    %0 = pipe.load @rows : tensor<3x5xf32>
    %1 = pipe.load @ids : tensor<3xi64>
    // expected-error @+1 {{'pipe.update' op expected rows of @w, 'tensor<9x4xf32>', for each of the ids, 'tensor<3xi64>', found 'tensor<3x5xf32>'}}
    pipe.update @w by #train.optimizer<sgd> states [] gradient %0 at %1 : tensor<3x5xf32>, tensor<3xi64>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<4xf32> tensor "w"
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected a value of the stage, found @w.sum}}
    pipe.update @w by #train.optimizer<adagrad> states [@w.sum] gradient %0 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected a value of kind parameter, found gradient @sum0}}
    pipe.update @sum0 by #train.optimizer<sgd> states [] gradient %0 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value parameter @w : tensor<4xf32> tensor "w"
  pipe.value gradient @sum0 : tensor<4xf32>
  pipe.action U @update {
    %0 = pipe.load @sum0 : tensor<4xf32>
    // expected-error @+1 {{'pipe.update' op expected a value of kind state, found parameter @w}}
    pipe.update @w by #train.optimizer<sgd, momentum = 5.000000e-01> states [@w] gradient %0 : tensor<4xf32>
  }
}

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.action F @forward {
  }
}
// expected-error @+1 {{'pipe.transfer' op expected a value of a stage, found @stage1::@act0}}
pipe.transfer F @t0 from @stage0::@act0 to @stage1::@act0

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.action F @forward {
  }
}
pipe.stage @stage1 index 1 {
  pipe.value activation @from0_act0 : tensor<5xf32>
}
// expected-error @+1 {{'pipe.transfer' op expected values of one type, found 'tensor<4xf32>' and 'tensor<5xf32>'}}
pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0

// -----

pipe.stage @stage0 index 0 attributes {dist.devices = array<i64: 0, 1>, dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 1, ranks = 3>} {
  pipe.value activation @act0 : tensor<2xf32> layout <[4 over (dp)]>
  pipe.action F @forward {
  }
}
pipe.stage @stage1 index 1 attributes {dist.devices = array<i64: 2>, dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, ranks = 3>} {
  pipe.value activation @from0_act0 : tensor<5xf32> layout <[5 over (dp)]>
}
// expected-error @+1 {{'pipe.transfer' op expected values of one element type and shape, found 'tensor<2xf32>' and 'tensor<5xf32>'}}
pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0

// -----

pipe.stage @stage0 index 0 attributes {dist.devices = array<i64: 0, 1>, dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 1, ranks = 3>} {
  pipe.value activation @act0 : tensor<4xf32> layout <[4] partial(dp)>
  pipe.action F @forward {
  }
}
pipe.stage @stage1 index 1 attributes {dist.devices = array<i64: 2>, dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, ranks = 3>} {
  pipe.value activation @from0_act0 : tensor<4xf32> layout <[4] partial(dp)>
}
// expected-error @+1 {{'pipe.transfer' op sends a summand over 'dp' to another mesh, @stage0::@act0}}
pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.value activation @act1 : tensor<4xf32>
  pipe.action F @forward {
  }
}
// expected-error @+1 {{'pipe.transfer' op expected values of two stages, found @stage0::@act0 and @stage0::@act1}}
pipe.transfer F @t0 from @stage0::@act0 to @stage0::@act1

// -----

pipe.stage @stage0 index 0 {
  pipe.value activation @act0 : tensor<4xf32>
  pipe.action F @forward {
  }
}
pipe.stage @stage1 index 1 {
  pipe.value activation @from0_act0 : tensor<4xf32>
}
// expected-error @+1 {{'pipe.transfer' op expected an action of stage 'stage0', found F.1}}
pipe.transfer F @t0 chunk 1 from @stage0::@act0 to @stage1::@from0_act0
