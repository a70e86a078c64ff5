// Every op and attribute of the dist dialect is parsed, printed and parsed
// again.
// RUN: merak-opt %s --verify-roundtrip | merak-opt | FileCheck %s

// CHECK: module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 4>}
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 2, tp = 4>} {
  // CHECK-LABEL: @local
  func.func @local(%x: tensor<8x64xf32>) {
    // CHECK: dist.all_reduce %{{.*}} over ["dp", "tp"] sum : tensor<8x64xf32>
    %0 = dist.all_reduce %x over ["dp", "tp"] sum : tensor<8x64xf32>
    // CHECK: dist.all_reduce %{{.*}} over ["tp"] max : tensor<8x64xf32>
    %1 = dist.all_reduce %x over ["tp"] max : tensor<8x64xf32>
    // CHECK: dist.all_gather %{{.*}} over ["tp"] dim 1 major 2 minor 16 : tensor<8x64xf32> to tensor<8x256xf32>
    %2 = dist.all_gather %x over ["tp"] dim 1 major 2 minor 16 : tensor<8x64xf32> to tensor<8x256xf32>
    // CHECK: dist.reduce_scatter %{{.*}} over ["tp"] dim 1 major 1 minor 16 : tensor<8x64xf32> to tensor<8x16xf32>
    %3 = dist.reduce_scatter %x over ["tp"] dim 1 major 1 minor 16 : tensor<8x64xf32> to tensor<8x16xf32>
    // CHECK: dist.shard_slice %{{.*}} over ["tp"] dim 1 major 1 minor 16 : tensor<8x64xf32> to tensor<8x16xf32>
    %4 = dist.shard_slice %x over ["tp"] dim 1 major 1 minor 16 : tensor<8x64xf32> to tensor<8x16xf32>
    // CHECK: dist.place %{{.*}} over ["mb"] dim 0 major 1 minor 1 : tensor<8x64xf32> to tensor<32x64xf32>
    %place = dist.place %x over ["mb"] dim 0 major 1 minor 1 : tensor<8x64xf32> to tensor<32x64xf32>
    // CHECK: dist.all_to_all %{{.*}} over ["tp"] dim 0 major 1 minor 1 to 1 major 1 minor 16 : tensor<8x64xf32> to tensor<32x16xf32>
    %5 = dist.all_to_all %x over ["tp"] dim 0 major 1 minor 1 to 1 major 1 minor 16 : tensor<8x64xf32> to tensor<32x16xf32>
    // From one factor of a dimension to another one of it.
    // CHECK: dist.all_to_all %{{.*}} over ["tp"] dim 1 major 1 minor 16 to 1 major 4 minor 1 : tensor<8x64xf32> to tensor<8x64xf32>
    %6 = dist.all_to_all %x over ["tp"] dim 1 major 1 minor 16 to 1 major 4 minor 1 : tensor<8x64xf32> to tensor<8x64xf32>
    // CHECK: dist.accumulate %{{.*}} : tensor<8x64xf32>
    %7 = dist.accumulate %x : tensor<8x64xf32>
    return
  }

  // Before shapes are local, operand and result have one type.
  // CHECK-LABEL: @global
  func.func @global(%x: tensor<8x64xf32>) {
    // CHECK: dist.all_gather %{{.*}} over ["tp"] dim 1 major 1 minor 16 {dist.layouts = [#dist.layout<[8, 4 * 16] partial(dp)>]} : tensor<8x64xf32> to tensor<8x64xf32>
    %0 = dist.all_gather %x over ["tp"] dim 1 major 1 minor 16 {dist.layouts = [#dist.layout<[8, 4 * 16] partial(dp)>]} : tensor<8x64xf32> to tensor<8x64xf32>
    // CHECK: dist.shard_slice %{{.*}} over ["tp"] dim 1 major 1 minor 16 {dist.layouts = [#dist.layout<[8, 4 over (tp) * 16]>]} : tensor<8x64xf32> to tensor<8x64xf32>
    %1 = dist.shard_slice %x over ["tp"] dim 1 major 1 minor 16 {dist.layouts = [#dist.layout<[8, 4 over (tp) * 16]>]} : tensor<8x64xf32> to tensor<8x64xf32>
    return
  }
}

// Axes that are no words, factors of size 0, dimensions without factors.
// CHECK: module attributes {dist.example = #dist.layout<[0, 2 over ("a b") * 1, 1]>, dist.mesh = #dist.mesh<"a b" = 2>}
module attributes {dist.mesh = #dist.mesh<"a b" = 2>, dist.example = #dist.layout<[0, 2 over ("a b") * 1, 1]>} {
}
