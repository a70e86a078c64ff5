// Every op of the train dialect is parsed, printed and parsed again, with each
// part of its syntax that may be left out.
// RUN: merak-opt %s --verify-roundtrip | merak-opt | FileCheck %s

// CHECK: train.parameter @w : tensor<64x32xf32> trainable
train.parameter @w : tensor<64x32xf32> trainable
// CHECK: train.parameter @file : tensor<64x32xf32> trainable from <"m.data" at 4096 length 8192>
train.parameter @file : tensor<64x32xf32> trainable from <"m.data" at 4096 length 8192>
// CHECK: train.parameter @table : tensor<2xi64> = dense<[3, 5]> : tensor<2xi64>
train.parameter @table : tensor<2xi64> = dense<[3, 5]> : tensor<2xi64>

// CHECK-LABEL: @model
func.func @model(%x: tensor<8x4xf32>, %dw: tensor<64x32xf32>, %m: tensor<8x16xf32>, %r: tensor<16xf32>) {
  // CHECK: train.none : none
  %none = train.none : none
  // CHECK: train.onnx_node "Clip" opset 13(%{{.*}}, %{{.*}}) {} : (tensor<8x4xf32>, none) -> tensor<8x4xf32>
  %0 = train.onnx_node "Clip" opset 13(%x, %none) {} : (tensor<8x4xf32>, none) -> tensor<8x4xf32>
  // CHECK: train.onnx_node "Gelu" in "com.microsoft" opset 1(%{{.*}}) {approximate = "tanh"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = train.onnx_node "Gelu" in "com.microsoft" opset 1(%x) {approximate = "tanh"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: train.constant dense<5.000000e-01> : tensor<8x4xf32>
  %2 = train.constant dense<0.5> : tensor<8x4xf32>
  // CHECK: train.read @w : tensor<64x32xf32>
  %w = train.read @w : tensor<64x32xf32>
  // CHECK: train.update @w : %{{.*}} by %{{.*}} : tensor<64x32xf32>, tensor<64x32xf32>
  train.update @w : %w by %dw : tensor<64x32xf32>, tensor<64x32xf32>
  // CHECK: train.track %{{.*}}, %{{.*}} keep 9.000000e-01 each 64 : tensor<8x16xf32>, tensor<16xf32>
  %3 = train.track %m, %r keep 9.0e-01 each 64 : tensor<8x16xf32>, tensor<16xf32>
  // CHECK: train.track %{{.*}}, %{{.*}} keep 9.000000e-01 each 64 variance : tensor<8x16xf32>, tensor<16xf32>
  %4 = train.track %m, %r keep 9.0e-01 each 64 variance : tensor<8x16xf32>, tensor<16xf32>
  return
}

// CHECK-LABEL: @unary
func.func @unary(%x: tensor<8x4xf32>, %b: tensor<8x4xi1>) {
  // CHECK: train.neg %{{.*}} : tensor<8x4xf32>
  %0 = train.neg %x : tensor<8x4xf32>
  // CHECK: train.exp %{{.*}} : tensor<8x4xf32>
  %1 = train.exp %x : tensor<8x4xf32>
  // CHECK: train.log %{{.*}} : tensor<8x4xf32>
  %2 = train.log %x : tensor<8x4xf32>
  // CHECK: train.sqrt %{{.*}} : tensor<8x4xf32>
  %3 = train.sqrt %x : tensor<8x4xf32>
  // CHECK: train.reciprocal %{{.*}} : tensor<8x4xf32>
  %4 = train.reciprocal %x : tensor<8x4xf32>
  // CHECK: train.abs %{{.*}} : tensor<8x4xf32>
  %5 = train.abs %x : tensor<8x4xf32>
  // CHECK: train.sin %{{.*}} : tensor<8x4xf32>
  %6 = train.sin %x : tensor<8x4xf32>
  // CHECK: train.cos %{{.*}} : tensor<8x4xf32>
  %7 = train.cos %x : tensor<8x4xf32>
  // CHECK: train.tanh %{{.*}} : tensor<8x4xf32>
  %8 = train.tanh %x : tensor<8x4xf32>
  // CHECK: train.erf %{{.*}} : tensor<8x4xf32>
  %9 = train.erf %x : tensor<8x4xf32>
  // CHECK: train.sigmoid %{{.*}} : tensor<8x4xf32>
  %10 = train.sigmoid %x : tensor<8x4xf32>
  // CHECK: train.relu %{{.*}} : tensor<8x4xf32>
  %11 = train.relu %x : tensor<8x4xf32>
  // CHECK: train.tan %{{.*}} : tensor<8x4xf32>
  %12 = train.tan %x : tensor<8x4xf32>
  // CHECK: train.asin %{{.*}} : tensor<8x4xf32>
  %13 = train.asin %x : tensor<8x4xf32>
  // CHECK: train.acos %{{.*}} : tensor<8x4xf32>
  %14 = train.acos %x : tensor<8x4xf32>
  // CHECK: train.atan %{{.*}} : tensor<8x4xf32>
  %15 = train.atan %x : tensor<8x4xf32>
  // CHECK: train.sinh %{{.*}} : tensor<8x4xf32>
  %16 = train.sinh %x : tensor<8x4xf32>
  // CHECK: train.cosh %{{.*}} : tensor<8x4xf32>
  %17 = train.cosh %x : tensor<8x4xf32>
  // CHECK: train.floor %{{.*}} : tensor<8x4xf32>
  %18 = train.floor %x : tensor<8x4xf32>
  // CHECK: train.round %{{.*}} : tensor<8x4xf32>
  %19 = train.round %x : tensor<8x4xf32>
  // CHECK: train.not %{{.*}} : tensor<8x4xi1>
  %20 = train.not %b : tensor<8x4xi1>
  // CHECK: train.stop_gradient %{{.*}} : tensor<8x4xf32>
  %21 = train.stop_gradient %x : tensor<8x4xf32>
  // CHECK: train.gelu %{{.*}} : tensor<8x4xf32>
  %22 = train.gelu %x : tensor<8x4xf32>
  // CHECK: train.gelu tanh %{{.*}} : tensor<8x4xf32>
  %23 = train.gelu tanh %x : tensor<8x4xf32>
  // CHECK: train.gelu_grad %{{.*}}, %{{.*}} : tensor<8x4xf32>
  %24 = train.gelu_grad %x, %22 : tensor<8x4xf32>
  // CHECK: train.gelu_grad tanh %{{.*}}, %{{.*}} : tensor<8x4xf32>
  %25 = train.gelu_grad tanh %x, %23 : tensor<8x4xf32>
  // CHECK: train.cast %{{.*}} : tensor<8x4xf32> to tensor<8x4xbf16>
  %26 = train.cast %x : tensor<8x4xf32> to tensor<8x4xbf16>
  // CHECK: train.dropout %{{.*}} ratio 1.000000e-01 id 3 : tensor<8x4xf32>
  %27 = train.dropout %x ratio 1.0e-01 id 3 : tensor<8x4xf32>
  // CHECK: train.dropout %{{.*}} ratio 1.000000e-01 id 3 {axes = ["dp"], extents = array<i64: 8, 4>, scales = array<i64: 32>, strides = array<i64: 4, 1>} : tensor<8x4xf32>
  %28 = train.dropout %x ratio 1.0e-01 id 3 {extents = array<i64: 8, 4>, strides = array<i64: 4, 1>, axes = ["dp"], scales = array<i64: 32>} : tensor<8x4xf32>
  return
}

// CHECK-LABEL: @binary
func.func @binary(%x: tensor<8x4xf32>, %y: tensor<4xf32>, %b: tensor<8x1xi1>, %i: tensor<8x4xi32>) {
  // CHECK: train.add %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %0 = train.add %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.sub %{{.*}}, %{{.*}} : tensor<4xf32>, tensor<8x4xf32>
  %1 = train.sub %y, %x : tensor<4xf32>, tensor<8x4xf32>
  // CHECK: train.mul %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %2 = train.mul %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.div %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %3 = train.div %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.pow %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %4 = train.pow %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.max %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %5 = train.max %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.min %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %6 = train.min %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.and %{{.*}}, %{{.*}} : tensor<8x1xi1>, tensor<8x1xi1>
  %7 = train.and %b, %b : tensor<8x1xi1>, tensor<8x1xi1>
  // CHECK: train.or %{{.*}}, %{{.*}} : tensor<8x1xi1>, tensor<8x1xi1>
  %8 = train.or %b, %b : tensor<8x1xi1>, tensor<8x1xi1>
  // CHECK: train.xor %{{.*}}, %{{.*}} : tensor<8x4xi32>, tensor<8x4xi32>
  %9 = train.xor %i, %i : tensor<8x4xi32>, tensor<8x4xi32>
  // CHECK: train.shift_left %{{.*}}, %{{.*}} : tensor<8x4xi32>, tensor<8x4xi32>
  %10 = train.shift_left %i, %i : tensor<8x4xi32>, tensor<8x4xi32>
  // CHECK: train.shift_right %{{.*}}, %{{.*}} : tensor<8x4xi32>, tensor<8x4xi32>
  %11 = train.shift_right %i, %i : tensor<8x4xi32>, tensor<8x4xi32>
  // CHECK: train.compare eq %{{.*}}, %{{.*}} : tensor<8x4xf32>, tensor<4xf32>
  %12 = train.compare eq %x, %y : tensor<8x4xf32>, tensor<4xf32>
  // CHECK: train.compare ge %{{.*}}, %{{.*}} : tensor<8x4xi32>, tensor<8x4xi32>
  %13 = train.compare ge %i, %i : tensor<8x4xi32>, tensor<8x4xi32>
  // CHECK: train.select %{{.*}}, %{{.*}}, %{{.*}} : tensor<8x1xi1>, tensor<8x4xf32>, tensor<4xf32>
  %14 = train.select %b, %x, %y : tensor<8x1xi1>, tensor<8x4xf32>, tensor<4xf32>
  return
}

// CHECK-LABEL: @shape
func.func @shape(%x: tensor<8x12xf32>, %y: tensor<8x3xf32>, %z: tensor<3x1xf32>, %empty: tensor<0x4xf32>) {
  // CHECK: train.reshape %{{.*}} : tensor<8x12xf32> to tensor<8x3x4xf32>
  %0 = train.reshape %x : tensor<8x12xf32> to tensor<8x3x4xf32>
  // CHECK: train.transpose %{{.*}} perm [0, 2, 1] : tensor<8x3x4xf32>
  %1 = train.transpose %0 perm [0, 2, 1] : tensor<8x3x4xf32>
  // CHECK: train.expand %{{.*}} : tensor<3x1xf32> to tensor<8x3x4xf32>
  %2 = train.expand %z : tensor<3x1xf32> to tensor<8x3x4xf32>
  // CHECK: train.slice %{{.*}} starts [0, 1] sizes [8, 4] steps [1, 3] : tensor<8x12xf32>
  %3 = train.slice %x starts [0, 1] sizes [8, 4] steps [1, 3] : tensor<8x12xf32>
  // A slice of nothing may begin at the end.
  // CHECK: train.slice %{{.*}} starts [8, 0] sizes [0, 12] steps [1, 1] : tensor<8x12xf32>
  %4 = train.slice %x starts [8, 0] sizes [0, 12] steps [1, 1] : tensor<8x12xf32>
  // CHECK: train.pad %{{.*}} low [0, 1] high [0, 1] interior [0, 2] value 0.000000e+00 : tensor<8x4xf32>
  %5 = train.pad %3 low [0, 1] high [0, 1] interior [0, 2] value 0.0 : tensor<8x4xf32>
  // CHECK: train.concat %{{.*}}, %{{.*}} axis 1 : tensor<8x12xf32>, tensor<8x3xf32>
  %6 = train.concat %x, %y axis 1 : tensor<8x12xf32>, tensor<8x3xf32>
  // CHECK: train.pad %{{.*}} low [1, 0] high [2, 0] interior [1, 0] value 1.000000e+00 : tensor<0x4xf32>
  %7 = train.pad %empty low [1, 0] high [2, 0] interior [1, 0] value 1.0 : tensor<0x4xf32>
  return
}

// CHECK-LABEL: @tables
train.parameter @rows : tensor<9x4xf32>
func.func @tables(%t: tensor<9x4xf32>, %i: tensor<8x3xi64>, %own: tensor<8x5x4xf32>, %u: tensor<8x3x4xf32>, %x: tensor<8x9xf32>) {
  // CHECK: train.gather %{{.*}}[%{{.*}}] axis 0 : tensor<9x4xf32>, tensor<8x3xi64>
  %0 = train.gather %t[%i] axis 0 : tensor<9x4xf32>, tensor<8x3xi64>
  // CHECK: train.gather %{{.*}}[%{{.*}}] axis 0 {rows = 18 : i64, split_axis = "tp"} : tensor<9x4xf32>, tensor<8x3xi64>
  %1 = train.gather %t[%i] axis 0 {rows = 18 : i64, split_axis = "tp"} : tensor<9x4xf32>, tensor<8x3xi64>
  // CHECK: train.gather %{{.*}}[%{{.*}}] axis 1 {batch = 1 : i64} : tensor<8x5x4xf32>, tensor<8x3xi64>
  %2 = train.gather %own[%i] axis 1 {batch = 1 : i64} : tensor<8x5x4xf32>, tensor<8x3xi64>
  // CHECK: train.scatter_add %{{.*}} at %{{.*}} axis 0 : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  %3 = train.scatter_add %u at %i axis 0 : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  // CHECK: %[[ROWS:.*]], %[[UNIQUE:.*]] = train.coalesce %{{.*}} at %{{.*}} size 9 : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<8x3x4xf32>
  %rows, %unique = train.coalesce %u at %i size 9 : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<8x3x4xf32>
  // CHECK: train.update @rows : %{{.*}} by %[[ROWS]] at %[[UNIQUE]] : tensor<9x4xf32>, tensor<8x3x4xf32>, tensor<8x3xi64>
  train.update @rows : %3 by %rows at %unique : tensor<9x4xf32>, tensor<8x3x4xf32>, tensor<8x3xi64>
  // CHECK: train.split_ids %{{.*}} by %{{.*}} size 9 : tensor<8x3xi64>, tensor<8x3xi64>
  %prior, %delayed = train.split_ids %i by %unique size 9 : tensor<8x3xi64>, tensor<8x3xi64>
  // CHECK: train.scatter_reduce mul %{{.*}} at %{{.*}} : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  %4 = train.scatter_reduce mul %u at %i : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  // CHECK: train.scatter_reduce max %{{.*}} at %{{.*}} {batch = 1 : i64} : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<8x5x4xf32>
  %5 = train.scatter_reduce max %u at %i {batch = 1 : i64} : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<8x5x4xf32>
  // CHECK: train.top_k %{{.*}} : tensor<8x9xf32> -> tensor<8x2xf32>, tensor<8x2xi64>
  %6:2 = train.top_k %x : tensor<8x9xf32> -> tensor<8x2xf32>, tensor<8x2xi64>
  // CHECK: train.top_k %{{.*}} smallest : tensor<8x9xf32> -> tensor<8x0xf32>, tensor<8x0xi64>
  %7:2 = train.top_k %x smallest : tensor<8x9xf32> -> tensor<8x0xf32>, tensor<8x0xi64>
  return
}

// CHECK-LABEL: @reductions
func.func @reductions(%x: tensor<8x32x64xf32>, %w: tensor<64x16xf32>) {
  // CHECK: train.reduce_sum %{{.*}} axes [0, 2] keepdims true : tensor<8x32x64xf32>
  %0 = train.reduce_sum %x axes [0, 2] keepdims true : tensor<8x32x64xf32>
  // CHECK: train.reduce_max %{{.*}} axes [1] keepdims false : tensor<8x32x64xf32>
  %1 = train.reduce_max %x axes [1] keepdims false : tensor<8x32x64xf32>
  // CHECK: train.einsum "btk,kn->btn" %{{.*}}, %{{.*}} : tensor<8x32x64xf32>, tensor<64x16xf32>
  %2 = train.einsum "btk,kn->btn" %x, %w : tensor<8x32x64xf32>, tensor<64x16xf32>
  // CHECK: train.einsum "btk,kn->btn" %{{.*}}, %{{.*}} {rounds = [f8E4M3FN, f8E5M2]} : tensor<8x32x64xf32>, tensor<64x16xf32>
  %rounded = train.einsum "btk,kn->btn" %x, %w {rounds = [f8E4M3FN, f8E5M2]} : tensor<8x32x64xf32>, tensor<64x16xf32>
  return
}

// CHECK-LABEL: @norms
func.func @norms(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>) {
  // CHECK: train.softmax %{{.*}} axis 2 : tensor<8x32x64xf32>
  %0 = train.softmax %x axis 2 : tensor<8x32x64xf32>
  // CHECK: train.softmax_grad %{{.*}}, %{{.*}} axis 2 : tensor<8x32x64xf32>
  %1 = train.softmax_grad %0, %x axis 2 : tensor<8x32x64xf32>
  // CHECK: train.layer_norm %{{.*}} scale %{{.*}} bias %{{.*}} axis 2 epsilon 1.000000e-05 : tensor<8x32x64xf32>, tensor<64xf32>, tensor<64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>
  %2:3 = train.layer_norm %x scale %s bias %s axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32>, tensor<64xf32>, tensor<64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>
  // CHECK: train.layer_norm %{{.*}} axis 2 epsilon 1.000000e-05 : tensor<8x32x64xf32> ->
  %3:3 = train.layer_norm %x axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>
  // CHECK: train.layer_norm_grad %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} scale %{{.*}} axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<64xf32> -> tensor<8x32x64xf32>
  %4 = train.layer_norm_grad %x, %x, %m, %m scale %s axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<64xf32> -> tensor<8x32x64xf32>
  // CHECK: train.layer_norm_param_grad %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32> -> tensor<64xf32>, tensor<64xf32>
  %5:2 = train.layer_norm_param_grad %x, %x, %m, %m axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32> -> tensor<64xf32>, tensor<64xf32>
  // CHECK: train.rms_norm %{{.*}} scale %{{.*}} axis 2 epsilon 1.000000e-05 : tensor<8x32x64xf32>, tensor<64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>
  %6:2 = train.rms_norm %x scale %s axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32>, tensor<64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>
  // CHECK: train.rms_norm_grad %{{.*}}, %{{.*}}, %{{.*}} axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32> -> tensor<8x32x64xf32>
  %7 = train.rms_norm_grad %x, %x, %m axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32> -> tensor<8x32x64xf32>
  // CHECK: train.rms_norm_param_grad %{{.*}}, %{{.*}}, %{{.*}} axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32> -> tensor<64xf32>
  %8 = train.rms_norm_param_grad %x, %x, %m axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32> -> tensor<64xf32>
  // CHECK: train.batch_mean %{{.*}} : tensor<8x32x64xf32>
  %9 = train.batch_mean %x : tensor<8x32x64xf32>
  return
}

// CHECK-LABEL: @labels
func.func @labels(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %row: tensor<8xf32>) {
  // CHECK: train.softmax_cross_entropy %{{.*}}, %{{.*}} ignore -100 : tensor<8x96xf32>, tensor<8xi64> -> tensor<8xf32>, tensor<8xf32>
  %0:2 = train.softmax_cross_entropy %x, %l ignore -100 : tensor<8x96xf32>, tensor<8xi64> -> tensor<8xf32>, tensor<8xf32>
  // CHECK: train.softmax_cross_entropy_grad %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {split_axis = "tp"} : tensor<8x96xf32>, tensor<8xi64>, tensor<8xf32>, tensor<8xf32> -> tensor<8x96xf32>
  %1 = train.softmax_cross_entropy_grad %x, %l, %row, %row {split_axis = "tp"} : tensor<8x96xf32>, tensor<8xi64>, tensor<8xf32>, tensor<8xf32> -> tensor<8x96xf32>
  // CHECK: train.pick %{{.*}} at %{{.*}} : tensor<8x96xf32>, tensor<8xi64> -> tensor<8xf32>
  %2 = train.pick %x at %l : tensor<8x96xf32>, tensor<8xi64> -> tensor<8xf32>
  // CHECK: train.pick_grad %{{.*}} at %{{.*}} ignore 0 : tensor<8xf32>, tensor<8xi64> -> tensor<8x96xf32>
  %3 = train.pick_grad %row at %l ignore 0 : tensor<8xf32>, tensor<8xi64> -> tensor<8x96xf32>
  return
}

// CHECK-LABEL: @attention
func.func @attention(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %v: tensor<8x24x2x8xf32>, %o: tensor<8x32x4x8xf32>, %lse: tensor<8x4x32xf32>, %m: tensor<32x24xi1>, %cos: tensor<1x32x1x8xf32>) {
  // CHECK: train.attention %{{.*}}, %{{.*}}, %{{.*}} mask %{{.*}} scale 1.250000e-01 causal : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x8xf32>, tensor<32x24xi1> -> tensor<8x32x4x8xf32>, tensor<8x4x32xf32>
  %0:2 = train.attention %q, %k, %v mask %m scale 1.25e-01 causal : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x8xf32>, tensor<32x24xi1> -> tensor<8x32x4x8xf32>, tensor<8x4x32xf32>
  // CHECK: train.attention_grad %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} scale 1.250000e-01 : tensor<8x32x4x16xf32>
  %1:3 = train.attention_grad %q, %k, %v, %o, %lse, %o scale 1.25e-01 : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x8xf32>, tensor<8x32x4x8xf32>, tensor<8x4x32xf32>, tensor<8x32x4x8xf32> -> tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x8xf32>
  // CHECK: train.rotary %{{.*}}, %{{.*}}, %{{.*}} interleaved inverse : tensor<8x32x4x16xf32>, tensor<1x32x1x8xf32>, tensor<1x32x1x8xf32> -> tensor<8x32x4x16xf32>
  %2 = train.rotary %q, %cos, %cos interleaved inverse : tensor<8x32x4x16xf32>, tensor<1x32x1x8xf32>, tensor<1x32x1x8xf32> -> tensor<8x32x4x16xf32>
  return
}

// CHECK-LABEL: @windows
func.func @windows(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>) {
  // CHECK: train.conv %{{.*}}, %{{.*}} {dilations = array<i64: 1, 1>, group = 2 : i64, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 2, 2>} : tensor<8x4x9x9xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x5xf32>
  %0 = train.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x5xf32>
  // CHECK: train.conv_grad_input %{{.*}}, %{{.*}} {dilations
  %1 = train.conv_grad_input %y, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x6x5x5xf32>, tensor<6x2x3x3xf32> -> tensor<8x4x9x9xf32>
  // CHECK: train.conv_grad_weight %{{.*}}, %{{.*}} {dilations
  %2 = train.conv_grad_weight %x, %y {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<8x6x5x5xf32> -> tensor<6x2x3x3xf32>
  // CHECK: train.max_pool %{{.*}} {dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : tensor<8x4x9x9xf32> -> tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64>
  %3:2 = train.max_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : tensor<8x4x9x9xf32> -> tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64>
  // CHECK: train.max_pool_grad %{{.*}}, %{{.*}} : tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64> -> tensor<8x4x9x9xf32>
  %4 = train.max_pool_grad %p, %i : tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64> -> tensor<8x4x9x9xf32>
  // CHECK: train.avg_pool %{{.*}} {count_include_pad, kernel
  %5 = train.avg_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, count_include_pad} : tensor<8x4x9x9xf32> -> tensor<8x4x4x4xf32>
  // CHECK: train.avg_pool_grad %{{.*}} {kernel
  %6 = train.avg_pool_grad %p {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>} : tensor<8x4x4x4xf32> -> tensor<8x4x9x9xf32>
  return
}

// CHECK-LABEL: @clipping
func.func @clipping(%x: tensor<8x4xf32>, %s: tensor<12xf32>) {
  // CHECK: train.square_sum %{{.*}} : tensor<8x4xf32> -> tensor<1xf32>
  %0 = train.square_sum %x : tensor<8x4xf32> -> tensor<1xf32>
  // CHECK: train.clip_factor %{{.*}} max_norm 1.000000e+00 : tensor<12xf32> -> tensor<f32>, tensor<f32>
  %1:2 = train.clip_factor %s max_norm 1.0 : tensor<12xf32> -> tensor<f32>, tensor<f32>
  // CHECK: train.clip_factor %{{.*}} max_norm 1.000000e+00 scaled : tensor<12xf32> -> tensor<f32>, tensor<f32>
  %2:2 = train.clip_factor %s max_norm 1.0 scaled : tensor<12xf32> -> tensor<f32>, tensor<f32>
  // CHECK: train.loss_scale %{{.*}} : tensor<f32>
  %3 = train.loss_scale %2#0 : tensor<f32>
  return
}
