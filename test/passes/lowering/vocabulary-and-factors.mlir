// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-convert-to-plan | FileCheck %s

// A vocabulary of 10 over tp=2, a fused projection 3 * 2 over (tp) * 4, a slice
// of a value that all ranks have, and a padded part of it.
module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 2, mb = 1>,
    train.config = #train.config<mode = infer, model = "m.onnx", global_batch = 4>,
    pipe.decision = #pipe.decision<schedule = "gpipe">} {
  train.parameter @table : tensor<10x8xf32> from #train.source<"" at 0 length 320>
  pipe.stage @stage0 index 0 schedule <F0> {
    pipe.value input @ids : tensor<4x6xi64> tensor "ids" layout #dist.layout<[4, 6]>
    pipe.value input @labels : tensor<4x6xi64> tensor "labels" layout #dist.layout<[4, 6]>
    pipe.value constant @table : tensor<5x8xf32> tensor "table" layout #dist.layout<[10 over (tp), 8]>
    pipe.value result @out : tensor<4x24x6xf32> tensor "out" layout #dist.layout<[4, 24, 6]>
    pipe.value result @own : tensor<4x6x12xf32> tensor "own" layout #dist.layout<[4, 6, 3 * 2 over (tp) * 4]>
    pipe.value result @score : tensor<4x6xf32> tensor "score" layout #dist.layout<[4, 6]>
    pipe.value result @padded : tensor<4x6x9xf32> tensor "padded" layout #dist.layout<[4, 6, 9]>
    // CHECK: plan.buffer activations @"stage0.forward:ids" {{.*}} {plan.limit = 10 : i64}
    // CHECK: plan.buffer activations @"stage0.forward:labels" {{.*}} {plan.allowed = -100 : i64, plan.limit = 10 : i64}
    pipe.action F @forward {
      %ids = pipe.load @ids : tensor<4x6xi64>
      %labels = pipe.load @labels : tensor<4x6xi64>
      %table = pipe.load @table : tensor<5x8xf32>
      // CHECK: plan.library "gather" (@table[5, 8], @"stage0.forward:ids"[4, 6]) -> {{.*}} with {axis = "0", batch = "0", rows_global = "10"} scalars [#plan.scalar<"tp" * 5>]
      %part = train.gather %table[%ids] axis 0 {rows = 10 : i64, split_axis = "tp"} : tensor<5x8xf32>, tensor<4x6xi64>
      // CHECK: plan.collective all_reduce ({{.*}}) -> (@[[X:.*]][4, 6, 8]) group 0
      %x = dist.all_reduce %part over ["tp"] sum : tensor<4x6x8xf32>
      %logits = train.einsum "btd,vd->btv" %x, %table : tensor<4x6x8xf32>, tensor<5x8xf32>
      // CHECK: plan.library "pick" ({{.*}}) -> {{.*}} with {ignore_index = "-100"} scalars [#plan.scalar<"tp" * 5>]
      %y = train.pick %logits at %labels ignore -100 {split_axis = "tp"} : tensor<4x6x5xf32>, tensor<4x6xi64> -> tensor<4x6xf32>
      %score = dist.all_reduce %y over ["tp"] sum : tensor<4x6xf32>
      pipe.store %score to @score : tensor<4x6xf32>

      // Three interleaved parts of 4 join to 3 * 2 * 4, and are taken again.
      // CHECK: plan.library "einsum" ({{.*}}) -> (@[[C:.*]][4, 6, 12])
      %w = train.constant dense<0.5> : tensor<8x12xf32>
      %qkv = train.einsum "btd,dv->btv" %x, %w : tensor<4x6x8xf32>, tensor<8x12xf32>
      // Gathered right into the transposed result.
      // CHECK: plan.collective all_gather (@[[C]][4, 6, 3, 1, 4]) -> (@out[4, 6, 3, 2, 4] by [144, 1, 48, 24, 6]) group 0 dim 3
      %all = dist.all_gather %qkv over ["tp"] dim 2 major 3 minor 4 : tensor<4x6x12xf32> to tensor<4x6x24xf32>
      // CHECK: plan.library "slice" (@out[4, 6, 3, 2, 4]{{.*}}) -> (@own[4, 6, 3, 1, 4]{{.*}}) with {axis = "3"} scalars [#plan.scalar<"tp" * 1>]
      %own = dist.shard_slice %all over ["tp"] dim 2 major 3 minor 4 : tensor<4x6x24xf32> to tensor<4x6x12xf32>
      pipe.store %own to @own : tensor<4x6x12xf32>
      %t = train.transpose %all perm [0, 2, 1] : tensor<4x6x24xf32>
      pipe.store %t to @out : tensor<4x24x6xf32>
      // CHECK: plan.library "fill" () -> (@padded[4, 6, 9])
      // CHECK-NEXT: plan.library "copy" (@{{.*}}[4, 6, 4] by [144, 1, 6] at 12) -> (@padded[4, 6, 4] by [54, 9, 2] at 1)
      %part4 = train.slice %all starts [0, 0, 2] sizes [4, 6, 4] steps [1, 1, 1] : tensor<4x6x24xf32>
      %p = train.pad %part4 low [0, 0, 1] high [0, 0, 1] interior [0, 0, 1] value 1.0 : tensor<4x6x4xf32>
      pipe.store %p to @padded : tensor<4x6x9xf32>
    }
  }
}
