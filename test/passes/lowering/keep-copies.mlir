// What a step converts of a parameter stays for the next one, and the update writes it.
// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-keep-copies | FileCheck %s

// CHECK: pipe.value step @w.as_used : tensor<8x8xbf16> {pipe.copy_of = @w}
// One that is not trained is converted when it was loaded.
// CHECK: pipe.value step @frozen.as_used : tensor<8x8xbf16> {pipe.copy_of = @frozen}
// The second type of one, what is updated by rows, and what is left to the next
// step are converted as before.
// CHECK: pipe.value step @w.as_f16 : tensor<8x8xf16>
// CHECK-NOT: pipe.copy_of
// CHECK: pipe.action G
// CHECK-NEXT: %[[W:.*]] = pipe.load @w
// CHECK-NEXT: train.cast %[[W]] : tensor<8x8xf32> to tensor<8x8xf16>
// CHECK-NEXT: pipe.store %{{.*}} to @w.as_f16
// CHECK-NEXT: %[[TABLE:.*]] = pipe.load @table
// CHECK-NEXT: train.cast %[[TABLE]]
// CHECK-NEXT: pipe.store %{{.*}} to @table.as_used
// CHECK-NEXT: %[[LATE:.*]] = pipe.load @late
// CHECK-NEXT: train.cast %[[LATE]]
// CHECK-NEXT: pipe.store %{{.*}} to @late.as_used
// CHECK-NEXT: }
// CHECK: pipe.update @w {{.*}} {pipe.copy = @w.as_used}
// CHECK: pipe.update @table
// CHECK-NOT: pipe.copy

module attributes {dist.mesh = #dist.mesh<pp = 1, dp = 1, tp = 1, mb = 1>} {
  pipe.stage @stage0 index 0 {
    pipe.value input @x : tensor<8x8xbf16> tensor "x"
    pipe.value parameter @w : tensor<8x8xf32> tensor "w"
    pipe.value constant @frozen : tensor<8x8xf32> tensor "frozen"
    pipe.value parameter @table : tensor<8x8xf32> tensor "table"
    pipe.value parameter @late : tensor<8x8xf32> tensor "late"
    pipe.value step @w.as_used : tensor<8x8xbf16>
    pipe.value step @frozen.as_used : tensor<8x8xbf16>
    pipe.value step @w.as_f16 : tensor<8x8xf16>
    pipe.value step @table.as_used : tensor<8x8xbf16>
    pipe.value step @late.as_used : tensor<8x8xbf16>
    pipe.value gradient @sum : tensor<8x8xf32>
    pipe.value gradient @rows : tensor<4x8xf32>
    pipe.value gradient @ids : tensor<4xi64>
    pipe.action G @gather {
      %0 = pipe.load @w : tensor<8x8xf32>
      %1 = train.cast %0 : tensor<8x8xf32> to tensor<8x8xbf16>
      pipe.store %1 to @w.as_used : tensor<8x8xbf16>
      %2 = pipe.load @frozen : tensor<8x8xf32>
      %3 = train.cast %2 : tensor<8x8xf32> to tensor<8x8xbf16>
      pipe.store %3 to @frozen.as_used : tensor<8x8xbf16>
      %4 = pipe.load @w : tensor<8x8xf32>
      %5 = train.cast %4 : tensor<8x8xf32> to tensor<8x8xf16>
      pipe.store %5 to @w.as_f16 : tensor<8x8xf16>
      %6 = pipe.load @table : tensor<8x8xf32>
      %7 = train.cast %6 : tensor<8x8xf32> to tensor<8x8xbf16>
      pipe.store %7 to @table.as_used : tensor<8x8xbf16>
      %8 = pipe.load @late : tensor<8x8xf32>
      %9 = train.cast %8 : tensor<8x8xf32> to tensor<8x8xbf16>
      pipe.store %9 to @late.as_used : tensor<8x8xbf16>
    }
    pipe.action U @update {
      %0 = pipe.load @sum : tensor<8x8xf32>
      pipe.update @w by #train.optimizer<sgd> states [] gradient %0 : tensor<8x8xf32>
      %1 = pipe.load @rows : tensor<4x8xf32>
      %2 = pipe.load @ids : tensor<4xi64>
      pipe.update @table by #train.optimizer<sgd> states [] gradient %1 at %2 : tensor<4x8xf32>, tensor<4xi64>
      pipe.update @late by #train.optimizer<sgd> states [] gradient %0 {train.delayed} : tensor<8x8xf32>
    }
  }
}
