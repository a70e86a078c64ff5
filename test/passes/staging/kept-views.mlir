// What the backward pass reads of views: the value behind them is kept, and the
// views are taken again.
// RUN: split-file %s %t
// RUN: merak-opt %t/all.mlir --differentiate --merak-cut-stages="global-batch=4" --merak-verify-stages | FileCheck %s --check-prefix=ALL
// RUN: merak-opt %t/all.mlir --differentiate --merak-cut-stages="mesh=tp=2 global-batch=4" --merak-verify-stages | FileCheck %s --check-prefix=ALL
// RUN: merak-opt %t/all.mlir --differentiate --merak-cut-stages="global-batch=4 recompute=full" --merak-verify-stages | FileCheck %s --check-prefix=AGAIN
// RUN: merak-opt %t/one.mlir --differentiate --merak-cut-stages="global-batch=4" --merak-verify-stages | FileCheck %s --check-prefix=ONE
// RUN: merak-opt %t/columns.mlir --differentiate --merak-cut-stages="global-batch=4" --merak-verify-stages | FileCheck %s --check-prefix=COLUMNS

// All three parts are read: the packed product is kept, once.
// ALL: pipe.value activation @[[PACKED:.*]] : tensor<4x24xf32>
// ALL-NOT: pipe.value activation {{.*}} : tensor<4x8xf32>
// ALL: pipe.action F
// ALL: %[[MADE:.*]] = train.einsum
// ALL: pipe.store %[[MADE]] to @[[PACKED]]
// ALL-NOT: to @act
// ALL: pipe.action B
// ALL: %[[KEPT:.*]] = pipe.load @[[PACKED]]
// ALL: train.slice %[[KEPT]] starts [0, 8]

// What is made again is the product; its parts stay views of it.
// AGAIN: pipe.action R
// AGAIN: %[[MADE:.*]] = train.einsum
// AGAIN-NOT: train.slice
// AGAIN: pipe.store %[[MADE]] to @[[PACKED:.*]] :
// AGAIN: pipe.action B
// AGAIN: %[[KEPT:.*]] = pipe.load @[[PACKED]]
// AGAIN: train.slice %[[KEPT]]

// One part of three is read: the whole would take more memory.
// ONE: pipe.action F
// ONE: %[[PART:.*]] = train.slice {{.*}} starts [0, 0]
// ONE: pipe.store %[[PART]] to @act
// ONE: pipe.action B
// ONE-NOT: train.slice

// Rows in pieces are written once, as both passes read them.
// COLUMNS: pipe.action F
// COLUMNS: %[[TURNED:.*]] = train.transpose
// COLUMNS: pipe.store %[[TURNED]] to @act
// COLUMNS: pipe.action B
// COLUMNS: pipe.load @act{{.*}} : tensor<24x4xf32>

//--- all.mlir
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w : tensor<8x24xf32> trainable
  func.func @model(%x: tensor<4x8xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w = train.read @w : tensor<8x24xf32>
    %h = train.einsum "bi,ij->bj" %x, %w : tensor<4x8xf32>, tensor<8x24xf32>
    %a = train.slice %h starts [0, 0] sizes [4, 8] steps [1, 1] : tensor<4x24xf32>
    %b = train.slice %h starts [0, 8] sizes [4, 8] steps [1, 1] : tensor<4x24xf32>
    %c = train.slice %h starts [0, 16] sizes [4, 8] steps [1, 1] : tensor<4x24xf32>
    %p = train.mul %a, %b : tensor<4x8xf32>, tensor<4x8xf32>
    %q = train.mul %c, %c : tensor<4x8xf32>, tensor<4x8xf32>
    %s = train.add %p, %q : tensor<4x8xf32>, tensor<4x8xf32>
    %loss = train.reduce_sum %s axes [0, 1] keepdims false : tensor<4x8xf32>
    return %loss : tensor<f32>
  }
}

//--- one.mlir
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w : tensor<8x24xf32> trainable
  func.func @model(%x: tensor<4x8xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w = train.read @w : tensor<8x24xf32>
    %h = train.einsum "bi,ij->bj" %x, %w : tensor<4x8xf32>, tensor<8x24xf32>
    %a = train.slice %h starts [0, 0] sizes [4, 8] steps [1, 1] : tensor<4x24xf32>
    %b = train.slice %h starts [0, 8] sizes [4, 8] steps [1, 1] : tensor<4x24xf32>
    %q = train.mul %a, %a : tensor<4x8xf32>, tensor<4x8xf32>
    %s = train.add %b, %q : tensor<4x8xf32>, tensor<4x8xf32>
    %loss = train.reduce_sum %s axes [0, 1] keepdims false : tensor<4x8xf32>
    return %loss : tensor<f32>
  }
}

//--- columns.mlir
module attributes {train.config = #train.config<mode = train, model = "", global_batch = 4>} {
  train.parameter @w : tensor<8x24xf32> trainable
  func.func @model(%x: tensor<4x8xf32> {train.name = "x"}) -> (tensor<f32> {train.name = "loss"}) {
    %w = train.read @w : tensor<8x24xf32>
    %h = train.einsum "bi,ij->bj" %x, %w : tensor<4x8xf32>, tensor<8x24xf32>
    %t = train.transpose %h perm [1, 0] : tensor<4x24xf32>
    %q = train.mul %t, %t : tensor<24x4xf32>, tensor<24x4xf32>
    %loss = train.reduce_sum %q axes [0, 1] keepdims false : tensor<24x4xf32>
    return %loss : tensor<f32>
  }
}
