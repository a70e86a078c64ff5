// RUN: merak-opt %s --canonicalize-graph --raise-attention --canonicalize-graph | FileCheck %s

// Heads outside, a scale, a causal mask: GPT-2.
// CHECK-LABEL: @causal
// CHECK-NEXT: %[[OUT:.*]], %{{.*}} = train.attention %arg0, %arg1, %arg2 scale 2.500000e-01 causal
// CHECK-NEXT: return %[[OUT]]
func.func @causal(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x4x16xf32>, %v: tensor<2x3x4x16xf32>) -> tensor<2x3x4x16xf32> {
  %four = train.constant dense<4.0> : tensor<f32>
  %low = train.constant dense<-3.40282347E+38> : tensor<f32>
  %mask = train.constant dense<[[[[true, false, false], [true, true, false], [true, true, true]]]]> : tensor<1x1x3x3xi1>
  %qt = train.transpose %q perm [0, 2, 1, 3] : tensor<2x3x4x16xf32>
  %kt = train.transpose %k perm [0, 2, 3, 1] : tensor<2x3x4x16xf32>
  %vt = train.transpose %v perm [0, 2, 1, 3] : tensor<2x3x4x16xf32>
  %s = train.einsum "abyx,abxz->abyz" %qt, %kt : tensor<2x4x3x16xf32>, tensor<2x4x16x3xf32>
  %d = train.div %s, %four : tensor<2x4x3x3xf32>, tensor<f32>
  %m = train.select %mask, %d, %low : tensor<1x1x3x3xi1>, tensor<2x4x3x3xf32>, tensor<f32>
  %p = train.softmax %m axis 3 : tensor<2x4x3x3xf32>
  %o = train.einsum "abyx,abxz->abyz" %p, %vt : tensor<2x4x3x3xf32>, tensor<2x4x3x16xf32>
  %t = train.transpose %o perm [0, 2, 1, 3] : tensor<2x4x3x16xf32>
  return %t : tensor<2x3x4x16xf32>
}

// Weights that are dropped are needed one by one.
// CHECK-LABEL: @dropped
// CHECK-NOT: train.attention
// CHECK: train.softmax
// CHECK: train.dropout
// CHECK: return
func.func @dropped(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x4x16xf32>, %v: tensor<2x3x4x16xf32>) -> tensor<2x3x4x16xf32> {
  %s = train.einsum "bthd,bshd->bhts" %q, %k : tensor<2x3x4x16xf32>, tensor<2x3x4x16xf32>
  %p = train.softmax %s axis 3 : tensor<2x4x3x3xf32>
  %d = train.dropout %p ratio 1.0e-01 id 0 : tensor<2x4x3x3xf32>
  %o = train.einsum "bhts,bshd->bthd" %d, %v : tensor<2x4x3x3xf32>, tensor<2x3x4x16xf32>
  return %o : tensor<2x3x4x16xf32>
}

// An added mask of the data: BERT.
// CHECK-LABEL: @added
// CHECK-NEXT: train.attention %arg0, %arg1, %arg2 mask %arg3 scale 1.000000e+00 :
func.func @added(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x4x16xf32>, %v: tensor<2x3x4x16xf32>, %mask: tensor<2x1x1x3xf32>) -> tensor<2x3x4x16xf32> {
  %s = train.einsum "bthd,bshd->bhts" %q, %k : tensor<2x3x4x16xf32>, tensor<2x3x4x16xf32>
  %m = train.add %s, %mask : tensor<2x4x3x3xf32>, tensor<2x1x1x3xf32>
  %p = train.softmax %m axis 3 : tensor<2x4x3x3xf32>
  %o = train.einsum "bhts,bshd->bthd" %p, %v : tensor<2x4x3x3xf32>, tensor<2x3x4x16xf32>
  return %o : tensor<2x3x4x16xf32>
}

// A condition that removes keys, and one that is no triangle.
// CHECK-LABEL: @removed
// CHECK: %[[NOT:.*]] = train.not %arg3
// CHECK: train.attention %arg0, %arg1, %arg2 mask %[[NOT]] scale
// CHECK-SAME: tensor<2x1x1x3xi1>
func.func @removed(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x4x16xf32>, %v: tensor<2x3x4x16xf32>, %mask: tensor<2x1x1x3xi1>) -> tensor<2x3x4x16xf32> {
  %low = train.constant dense<0xFF800000> : tensor<f32>
  %s = train.einsum "bthd,bshd->bhts" %q, %k : tensor<2x3x4x16xf32>, tensor<2x3x4x16xf32>
  %m = train.select %mask, %low, %s : tensor<2x1x1x3xi1>, tensor<f32>, tensor<2x4x3x3xf32>
  %p = train.softmax %m axis 3 : tensor<2x4x3x3xf32>
  %o = train.einsum "bhts,bshd->bthd" %p, %v : tensor<2x4x3x3xf32>, tensor<2x3x4x16xf32>
  return %o : tensor<2x3x4x16xf32>
}

// Two query heads for each key head: the repetition is grouped attention.
// CHECK-LABEL: @grouped
// CHECK-NEXT: train.attention %arg0, %arg1, %arg2 scale
// CHECK-SAME: tensor<2x3x4x16xf32>, tensor<2x3x2x16xf32>, tensor<2x3x2x16xf32>
func.func @grouped(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x2x16xf32>, %v: tensor<2x3x2x16xf32>) -> tensor<2x3x4x16xf32> {
  %k1 = train.reshape %k : tensor<2x3x2x16xf32> to tensor<2x3x2x1x16xf32>
  %k2 = train.expand %k1 : tensor<2x3x2x1x16xf32> to tensor<2x3x2x2x16xf32>
  %k3 = train.reshape %k2 : tensor<2x3x2x2x16xf32> to tensor<2x3x4x16xf32>
  %v1 = train.reshape %v : tensor<2x3x2x16xf32> to tensor<2x3x2x1x16xf32>
  %v2 = train.expand %v1 : tensor<2x3x2x1x16xf32> to tensor<2x3x2x2x16xf32>
  %v3 = train.reshape %v2 : tensor<2x3x2x2x16xf32> to tensor<2x3x4x16xf32>
  %s = train.einsum "bthd,bshd->bhts" %q, %k3 : tensor<2x3x4x16xf32>, tensor<2x3x4x16xf32>
  %p = train.softmax %s axis 3 : tensor<2x4x3x3xf32>
  %o = train.einsum "bhts,bshd->bthd" %p, %v3 : tensor<2x4x3x3xf32>, tensor<2x3x4x16xf32>
  return %o : tensor<2x3x4x16xf32>
}

// A learned bias needs a gradient: the attention stays written out.
train.parameter @bias : tensor<1x4x3x3xf32> trainable
// CHECK-LABEL: @learned
// CHECK-NOT: train.attention
// CHECK: train.softmax
func.func @learned(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x4x16xf32>, %v: tensor<2x3x4x16xf32>) -> tensor<2x3x4x16xf32> {
  %bias = train.read @bias : tensor<1x4x3x3xf32>
  %s = train.einsum "bthd,bshd->bhts" %q, %k : tensor<2x3x4x16xf32>, tensor<2x3x4x16xf32>
  %m = train.add %s, %bias : tensor<2x4x3x3xf32>, tensor<1x4x3x3xf32>
  %p = train.softmax %m axis 3 : tensor<2x4x3x3xf32>
  %o = train.einsum "bhts,bshd->bthd" %p, %v : tensor<2x4x3x3xf32>, tensor<2x3x4x16xf32>
  return %o : tensor<2x3x4x16xf32>
}

// A softmax over the queries is something else.
// CHECK-LABEL: @wrong_axis
// CHECK-NOT: train.attention
// CHECK: return
func.func @wrong_axis(%q: tensor<2x3x4x16xf32>, %k: tensor<2x3x4x16xf32>, %v: tensor<2x3x4x16xf32>) -> tensor<2x3x4x16xf32> {
  %s = train.einsum "bthd,bshd->bhts" %q, %k : tensor<2x3x4x16xf32>, tensor<2x3x4x16xf32>
  %p = train.softmax %s axis 2 : tensor<2x4x3x3xf32>
  %o = train.einsum "bhts,bshd->bthd" %p, %v : tensor<2x4x3x3xf32>, tensor<2x3x4x16xf32>
  return %o : tensor<2x3x4x16xf32>
}
