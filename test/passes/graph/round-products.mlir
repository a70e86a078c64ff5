// RUN: merak-opt %s --lower-precision=low=bf16 --round-products --split-input-file | FileCheck %s
// RUN: merak-opt %s --lower-precision=low=bf16 --round-products --split-input-file --remarks-filter=precision -o /dev/null 2>&1 | FileCheck %s --check-prefix=TOLD
// RUN: merak-opt %s --lower-precision=low=bf16 --round-products --differentiate --split-input-file | FileCheck %s --check-prefix=GRAD

// Products of data with weights are rounded, however the weight is made and on
// whichever side it stands. The last one, of activations, and of a vector keep
// bf16.
// TOLD: fp8: 3 of 6 products in 8 bits; 1 after which nothing is multiplied, 2 not of data with a weight
// CHECK: module attributes {train.config = #train.config<mode = train, model = "", low_precision = f8E4M3FN>}
// CHECK-LABEL: func.func @model
module {
  train.parameter @a : tensor<4x4xf32> trainable
  train.parameter @b : tensor<4x4xf32> trainable
  train.parameter @c : tensor<2x4x4xf32> trainable
  train.parameter @v : tensor<4xf32> trainable
  train.parameter @last : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %a = train.read @a : tensor<4x4xf32>
    // CHECK: %[[A:.*]] = train.einsum "ab,bc->ac" %{{.*}}, %{{.*}} {rounds = [f8E4M3FN, f8E4M3FN]}
    %0 = train.einsum "ab,bc->ac" %x, %a : tensor<8x4xf32>, tensor<4x4xf32>
    %b = train.read @b : tensor<4x4xf32>
    %t = train.transpose %b perm [1, 0] : tensor<4x4xf32>
    // CHECK: train.einsum "cb,ab->ac" %{{.*}}, %{{.*}} {rounds = [f8E4M3FN, f8E4M3FN]}
    %1 = train.einsum "cb,ab->ac" %t, %0 : tensor<4x4xf32>, tensor<8x4xf32>
    %c = train.read @c : tensor<2x4x4xf32>
    %s = train.slice %c starts [1, 0, 0] sizes [1, 4, 4] steps [1, 1, 1] : tensor<2x4x4xf32>
    %r = train.reshape %s : tensor<1x4x4xf32> to tensor<4x4xf32>
    // CHECK: train.einsum "ab,bc->ac" %{{.*}}, %{{.*}} {rounds = [f8E4M3FN, f8E4M3FN]}
    %2 = train.einsum "ab,bc->ac" %1, %r : tensor<8x4xf32>, tensor<4x4xf32>
    // CHECK: train.einsum "ab,cb->ac" %{{[^{]*}} : tensor<8x4xbf16>
    %3 = train.einsum "ab,cb->ac" %2, %0 : tensor<8x4xf32>, tensor<8x4xf32>
    %v = train.read @v : tensor<4xf32>
    // CHECK: train.einsum "ab,b->a" %{{[^{]*}} : tensor<8x4xbf16>
    %4 = train.einsum "ab,b->a" %2, %v : tensor<8x4xf32>, tensor<4xf32>
    %5 = train.reshape %4 : tensor<8xf32> to tensor<8x1xf32>
    %6 = train.add %3, %5 : tensor<8x8xf32>, tensor<8x1xf32>
    %7 = train.slice %6 starts [0, 0] sizes [8, 4] steps [1, 1] : tensor<8x8xf32>
    %last = train.read @last : tensor<4x4xf32>
    // CHECK: train.einsum "ab,bc->ac" %{{[^{]*}} : tensor<8x4xbf16>
    %y = train.einsum "ab,bc->ac" %7, %last : tensor<8x4xf32>, tensor<4x4xf32>
    %l = train.reduce_sum %y axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}

// -----

// Gradients: the incoming one in the type of the larger range, on its side; those
// of the last product in bf16.
// TOLD: fp8: 1 of 2 products in 8 bits; 1 after which nothing is multiplied
// GRAD-LABEL: func.func @step
// GRAD: train.einsum "ab,bc->ac" {{.*}} {rounds = [f8E4M3FN, f8E4M3FN]
// GRAD: train.einsum "ac,cd->ad" {{.*}} {train.id
// GRAD: train.einsum "ad,cd->ac" {{.*}} {train
// GRAD: train.einsum "ac,ad->cd" {{.*}} {train
// GRAD: train.einsum "ac,bc->ab" {{.*}} {rounds = [f8E5M2, f8E4M3FN]
// GRAD: train.einsum "ab,ac->bc" {{.*}} {rounds = [f8E4M3FN, f8E5M2]
module {
  train.parameter @before : tensor<8x4xf32> trainable
  train.parameter @a : tensor<4x4xf32> trainable
  train.parameter @b : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %before = train.read @before : tensor<8x4xf32>
    %0 = train.add %x, %before : tensor<8x4xf32>, tensor<8x4xf32>
    %a = train.read @a : tensor<4x4xf32>
    %1 = train.einsum "ab,bc->ac" %0, %a : tensor<8x4xf32>, tensor<4x4xf32>
    %b = train.read @b : tensor<4x4xf32>
    %2 = train.einsum "ac,cd->ad" %1, %b : tensor<8x4xf32>, tensor<4x4xf32>
    %l = train.reduce_sum %2 axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}

// -----

// Of parameters alone, and nothing but a last one: the module's type stays.
// TOLD: fp8: 0 of 2 products in 8 bits; 1 after which nothing is multiplied, 1 not of data with a weight
// CHECK: low_precision = bf16>
// CHECK-NOT: rounds
module {
  train.parameter @a : tensor<4x4xf32> trainable
  train.parameter @b : tensor<4x4xf32> trainable
  func.func @model(%x: tensor<8x4xf32>) -> tensor<f32> {
    %a = train.read @a : tensor<4x4xf32>
    %b = train.read @b : tensor<4x4xf32>
    %0 = train.einsum "ab,bc->ac" %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
    %1 = train.einsum "ab,bc->ac" %x, %0 : tensor<8x4xf32>, tensor<4x4xf32>
    %l = train.reduce_sum %1 axes [0, 1] keepdims false : tensor<8x4xf32>
    return %l : tensor<f32>
  }
}
