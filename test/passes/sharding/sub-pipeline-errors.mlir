// RUN: merak-opt %s --merak-sub-pipeline --split-input-file --verify-diagnostics

// expected-error @below {{expected a mesh whose axis 'mb' counts halves of microbatches, found size 3}}
module attributes {dist.mesh = #dist.mesh<tp = 2, mb = 3>, pipe.tp_overlap = 3 : i64} {
}

// -----

// expected-error @below {{expected an overlap level from 1 to 3, found 4}}
module attributes {dist.mesh = #dist.mesh<tp = 2, mb = 2>, pipe.tp_overlap = 4 : i64} {
}

// -----

module attributes {dist.mesh = #dist.mesh<tp = 2, mb = 2>, pipe.tp_overlap = 1 : i64} {
  pipe.stage @stage0 index 0 {
    pipe.value input @x : tensor<4xf32> tensor "x" layout #dist.layout<[8 over (mb)]>
    // expected-error @below {{output 'y' of every microbatch cannot be made in halves}}
    pipe.value result @y : tensor<4xf32> tensor "y" layout #dist.layout<[8 over (mb)]>
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4xf32>
      pipe.store %x to @y : tensor<4xf32>
    }
  }
}
