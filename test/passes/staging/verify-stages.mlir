// What the closing check of the stage phase finds, all of it.
// RUN: merak-opt %s --merak-verify-stages --split-input-file --verify-diagnostics

module {
  pipe.stage @stage0 index 0 {
    // expected-error @+1 {{expected activation 'a' to be stored or received once, found 0 stores and no transfer}}
    pipe.value activation @a : tensor<4xf32>
    // expected-error @+1 {{expected parameter 'w' to be updated once, found 0 updates}}
    pipe.value parameter @w : tensor<4xf32> tensor "w"
  }
}

// -----

module {
  pipe.stage @stage0 index 0 {
    pipe.value activation @a : tensor<4xf32>
    pipe.value input @x : tensor<4xf32> tensor "x"
    pipe.action F @forward {
      %0 = pipe.load @x : tensor<4xf32>
      pipe.store %0 to @a : tensor<4xf32>
    }
  }
  pipe.stage @stage1 index 1 {
    pipe.value activation @b : tensor<4xf32>
  }
  pipe.transfer F @t0 from @stage0::@a to @stage1::@b
  // expected-error @+1 {{value @stage1::@b is received twice}}
  pipe.transfer F @t1 from @stage0::@a to @stage1::@b
}
