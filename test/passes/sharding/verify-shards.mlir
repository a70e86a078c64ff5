// Partial sums are reduced exactly once, and only linear ops see them.
// RUN: merak-opt %s --merak-verify-shards --verify-diagnostics

module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 2, tp = 2, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @x : tensor<4xf32> tensor "x" layout #dist.layout<[4] partial(tp)>
    pipe.value gradient @g : tensor<4xf32> layout #dist.layout<[4] partial(dp)>
    pipe.value parameter @w : tensor<4xf32> tensor "w" layout #dist.layout<[4]>
    pipe.value activation @a : tensor<4xf32> layout #dist.layout<[4]>
    pipe.value parameter @t : tensor<9x4xf32> tensor "t" layout #dist.layout<[9, 4]>
    pipe.value step @rows : tensor<3x4xf32> layout #dist.layout<[3, 4]>
    pipe.value step @ids : tensor<3xi64> layout #dist.layout<[3] partial(dp)>
    pipe.action F @forward {
      %0 = pipe.load @x : tensor<4xf32>
      // A sum of two partial sums is fine.
      %1 = train.add %0, %0 {dist.layouts = [#dist.layout<[4] partial(tp)>]} : tensor<4xf32>, tensor<4xf32>
      // expected-error @+1 {{'train.relu' uses operand 0 while it is a partial sum over 'tp'}}
      %2 = train.relu %0 {dist.layouts = [#dist.layout<[4]>]} : tensor<4xf32>
      // expected-error @+1 {{result of 'train.add' lost the partial sum over 'tp'}}
      %3 = train.add %0, %0 {dist.layouts = [#dist.layout<[4]>]} : tensor<4xf32>, tensor<4xf32>
      // expected-error @+1 {{store of a value that is partial over {tp} to 'a', which is not}}
      pipe.store %1 to @a : tensor<4xf32>
      %4 = dist.all_reduce %1 over ["tp"] sum {dist.from = #dist.layout<[4] partial(tp)>, dist.layouts = [#dist.layout<[4]>]} : tensor<4xf32>
      // expected-error @+1 {{sum over 'tp' of a value that is not partial over it}}
      %5 = dist.all_reduce %4 over ["tp"] sum {dist.from = #dist.layout<[4]>, dist.layouts = [#dist.layout<[4]>]} : tensor<4xf32>
    }
    pipe.action U @update {
      %0 = pipe.load @g : tensor<4xf32>
      // expected-error @+1 {{gradient of 'w' is still partial over {dp}}}
      pipe.update @w by #train.optimizer<sgd, lr = 1.0e-01, weight_decay = 0.0> states [] gradient %0 : tensor<4xf32>
      %1 = pipe.load @rows : tensor<3x4xf32>
      %2 = pipe.load @ids : tensor<3xi64>
      // expected-error @+1 {{ids of the rows of 't' are still partial over {dp}}}
      pipe.update @t by #train.optimizer<sgd, lr = 1.0e-01, weight_decay = 0.0> states [] gradient %1 at %2 : tensor<3x4xf32>, tensor<3xi64>
    }
  }
}
