// Each message of a train op's verifier: model, element-wise, shape, tables,
// reductions.
// RUN: merak-opt %s --verify-diagnostics --split-input-file

// expected-error @+1 {{'train.parameter' op expected a source or a value, found both}}
train.parameter @w : tensor<2xf32> from <"m.data" at 0 length 8> = dense<1.0> : tensor<2xf32>

// -----

// expected-error @+1 {{'train.parameter' op expected a value of type 'tensor<3xf32>', found 'tensor<2xf32>'}}
train.parameter @w : tensor<3xf32> = dense<1.0> : tensor<2xf32>

// -----

func.func @f() {
  // expected-error @+1 {{'train.read' op expected a parameter, found no symbol @w}}
  %0 = train.read @w : tensor<2xf32>
  return
}

// -----

train.parameter @w : tensor<3xf32>
func.func @f() {
  // expected-error @+1 {{'train.read' op expected type 'tensor<3xf32>' of the parameter, found 'tensor<2xf32>'}}
  %0 = train.read @w : tensor<2xf32>
  return
}

// -----

func.func @f(%w: tensor<2xf32>) {
  // expected-error @+1 {{'train.update' op expected a parameter, found no symbol @w}}
  train.update @w : %w by %w : tensor<2xf32>, tensor<2xf32>
  return
}

// -----

train.parameter @w : tensor<2xf32>
func.func @f(%w: tensor<2xf32>, %g: tensor<2xbf16>) {
  // expected-error @+1 {{'train.update' op expected a gradient of the parameter's type, 'tensor<2xf32>', found 'tensor<2xbf16>'}}
  train.update @w : %w by %g : tensor<2xf32>, tensor<2xbf16>
  return
}

// -----

train.parameter @w : tensor<9x4xf32>
func.func @f(%w: tensor<9x4xf32>, %g: tensor<3x5xf32>, %i: tensor<3xi64>) {
  // expected-error @+1 {{'train.update' op expected 'gradient' of [3, 4], found 'tensor<3x5xf32>'}}
  train.update @w : %w by %g at %i : tensor<9x4xf32>, tensor<3x5xf32>, tensor<3xi64>
  return
}

// -----

func.func @f(%g: tensor<3xf32>, %i: tensor<3xi64>) {
  // expected-error @+1 {{'train.coalesce' op expected slices for each of the ids, found 'tensor<3xf32>' and 'tensor<3xi64>'}}
  %0, %1 = train.coalesce %g at %i size 9 : tensor<3xf32>, tensor<3xi64> to tensor<3xf32>
  return
}

// -----

func.func @f(%i: tensor<3xi64>) {
  // expected-error @+1 {{'train.split_ids' op expected a table of at least one row, found 0}}
  %0, %1 = train.split_ids %i by %i size 0 : tensor<3xi64>, tensor<3xi64>
  return
}

// -----

func.func @f(%g: tensor<3x4xf32>, %i: tensor<3xi64>) {
  // expected-error @+1 {{'train.coalesce' op expected a table of at least one row, found 0}}
  %0, %1 = train.coalesce %g at %i size 0 : tensor<3x4xf32>, tensor<3xi64> to tensor<3x4xf32>
  return
}

// -----

func.func @f(%g: tensor<3x4xf32>, %i: tensor<3xi64>) {
  // expected-error @+1 {{'train.coalesce' op expected 'rows' of [3, 4], found 'tensor<3x5xf32>'}}
  %0, %1 = train.coalesce %g at %i size 9 : tensor<3x4xf32>, tensor<3xi64> to tensor<3x5xf32>
  return
}

// -----

func.func @f(%m: tensor<8x16xf32>, %r: tensor<16xf32>) {
  // expected-error @+1 {{'train.track' op expected to keep a part in [0, 1], found 1.500000e+00}}
  %0 = train.track %m, %r keep 1.5 each 64 : tensor<8x16xf32>, tensor<16xf32>
  return
}

// -----

func.func @f(%m: tensor<8x16xf32>, %r: tensor<16xf32>) {
  // expected-error @+1 {{'train.track' op expected at least one number a sample, found 0}}
  %0 = train.track %m, %r keep 0.5 each 0 : tensor<8x16xf32>, tensor<16xf32>
  return
}

// -----

func.func @f(%m: tensor<8x12xf32>, %r: tensor<16xf32>) {
  // expected-error @+1 {{'train.track' op expected a statistic of [samples] and 'tensor<16xf32>', found 'tensor<8x12xf32>'}}
  %0 = train.track %m, %r keep 0.5 each 64 : tensor<8x12xf32>, tensor<16xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<3xf32>) {
  // expected-error @+1 {{shapes do not broadcast: 'tensor<8x4xf32>' and 'tensor<3xf32>'}}
  %0 = train.add %x, %y : tensor<8x4xf32>, tensor<3xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4xbf16>) {
  // expected-error @+1 {{'train.mul' op expected one element type, found 'f32' and 'bf16'}}
  %0 = train.mul %x, %y : tensor<8x4xf32>, tensor<4xbf16>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4xi64>) {
  // expected-error @+1 {{'train.compare' op expected one element type, found 'f32' and 'i64'}}
  %0 = train.compare lt %x, %y : tensor<8x4xf32>, tensor<4xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %c: tensor<8x1xi1>, %y: tensor<4xf64>) {
  // expected-error @+1 {{'train.select' op expected one element type, found 'f32' and 'f64'}}
  %0 = train.select %c, %x, %y : tensor<8x1xi1>, tensor<8x4xf32>, tensor<4xf64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.select' op operand #0 must be ranked tensor of 1-bit signless integer values}}
  %0 = train.select %x, %x, %x : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.not' op operand #0 must be ranked tensor of 1-bit signless integer values}}
  %0 = train.not %x : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.xor' op operand #0 must be ranked tensor of integer values}}
  %0 = train.xor %x, %x : tensor<8x4xf32>, tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.cast' op requires the same shape for all operands and results}}
  %0 = train.cast %x : tensor<8x4xf32> to tensor<4x8xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.dropout' op expected a ratio in [0, 1), found 1.000000e+00}}
  %0 = train.dropout %x ratio 1.0 id 0 : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.dropout' op expected an id of 32 bits, found 4294967296}}
  %0 = train.dropout %x ratio 0.5 id 4294967296 : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.dropout' op expected a stride for each extent and a scale for each axis, found 1 strides for 2 extents and 0 scales for 1 axes}}
  %0 = train.dropout %x ratio 0.5 id 0 {extents = array<i64: 8, 4>, strides = array<i64: 1>, axes = ["dp"]} : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.reshape' op expected as many elements of one type, found 'tensor<8x4xf32>' and 'tensor<8x3xf32>'}}
  %0 = train.reshape %x : tensor<8x4xf32> to tensor<8x3xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected 2 permutation entries, found 1}}
  %0 = train.transpose %x perm [0] : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected each of 0 to 1 once in the permutation, found 2}}
  %0 = train.transpose %x perm [0, 2] : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected each of 0 to 1 once in the permutation, found 1}}
  %0 = train.transpose %x perm [1, 1] : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.expand' op expected a broadcast, found 'tensor<8x4xf32>' to 'tensor<8x8xf32>'}}
  %0 = train.expand %x : tensor<8x4xf32> to tensor<8x8xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.slice' op expected 2 starts, sizes and steps, found 1, 2 and 2}}
  %0 = train.slice %x starts [0] sizes [8, 4] steps [1, 1] : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.slice' op expected a slice within dimension 1 of size 4, found start 1, size 2, step 3}}
  %0 = train.slice %x starts [0, 1] sizes [8, 2] steps [1, 3] : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected 2 entries in low, high and interior, found 2, 1 and 2}}
  %0 = train.pad %x low [0, 0] high [0] interior [0, 0] value 0.0 : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.pad' op expected paddings that are not negative, found -1}}
  %0 = train.pad %x low [0, -1] high [0, 0] interior [0, 0] value 0.0 : tensor<8x4xf32>
  return
}

// -----

func.func @f() {
  // expected-error @+2 {{expected at least one operand}}
  // expected-error @+1 {{'train.concat' op failed to infer returned types}}
  %0 = "train.concat"() {axis = 0 : i64} : () -> tensor<0xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{axis 2 is out of range of 'tensor<8x4xf32>'}}
  %0 = train.concat %x, %x axis 2 : tensor<8x4xf32>, tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4xf32>) {
  // expected-error @+1 {{ranks differ: 'tensor<8x4xf32>' and 'tensor<4xf32>'}}
  %0 = train.concat %x, %y axis 0 : tensor<8x4xf32>, tensor<4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<8x5xf32>) {
  // expected-error @+1 {{dimension 1 differs: 'tensor<8x4xf32>' and 'tensor<8x5xf32>'}}
  %0 = train.concat %x, %y axis 0 : tensor<8x4xf32>, tensor<8x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<8x4xf64>) {
  // expected-error @+1 {{'train.concat' op expected one element type, found 'f32' and 'f64'}}
  %0 = train.concat %x, %y axis 0 : tensor<8x4xf32>, tensor<8x4xf64>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{axis 3 is out of range of 'tensor<8x5x4xf32>'}}
  %0 = train.gather %t[%i] axis 3 : tensor<8x5x4xf32>, tensor<8x3xi64>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{expected a table and ids that agree in 2 dimensions before axis 2, found 'tensor<8x5x4xf32>' and 'tensor<8x3xi64>'}}
  %0 = train.gather %t[%i] axis 2 {batch = 2 : i64} : tensor<8x5x4xf32>, tensor<8x3xi64>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>, %f: tensor<3xf32>) {
  // expected-error @+1 {{'train.gather' op operand #1 must be ranked tensor of integer values}}
  %0 = train.gather %t[%f] axis 0 : tensor<8x5x4xf32>, tensor<3xf32>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{'train.gather' op expected at least the 5 rows that are here, found 4}}
  %0 = train.gather %t[%i] axis 1 {batch = 1 : i64, rows = 4 : i64} : tensor<8x5x4xf32>, tensor<8x3xi64>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{'train.scatter_add' op expected 'dy' of [8, 3, 4], found 'tensor<8x5x4xf32>'}}
  %0 = train.scatter_add %t at %i axis 0 : tensor<8x5x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{axis 2 is out of range of 'tensor<9x4xf32>'}}
  %0 = train.scatter_add %u at %i axis 2 : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{'train.scatter_add' op expected one element type, found 'f32' and 'f64'}}
  %0 = train.scatter_add %u at %i axis 0 : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf64>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{'train.scatter_add' op expected at least the 9 rows that are here, found 8}}
  %0 = train.scatter_add %u at %i axis 0 {rows = 8 : i64} : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x4xf32>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{'train.scatter_reduce' op expected 'updates' of [8, 3, 5], found 'tensor<8x3x4xf32>'}}
  %0 = train.scatter_reduce max %u at %i : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x5xf32>
  return
}

// -----

func.func @f(%t: tensor<8x5x4xf32>, %i: tensor<8x3xi64>, %u: tensor<8x3x4xf32>) {
  // expected-error @+1 {{expected a table and ids that agree in 1 dimensions before axis 1, found 'tensor<9x5xf32>' and 'tensor<8x3xi64>'}}
  %0 = train.scatter_reduce min %u at %i {batch = 1 : i64} : tensor<8x3x4xf32>, tensor<8x3xi64> to tensor<9x5xf32>
  return
}

// -----

func.func @f(%s: tensor<f32>) {
  // expected-error @+1 {{'train.top_k' op expected a last dimension to choose along, found 'tensor<f32>' and 'tensor<f32>'}}
  %0:2 = train.top_k %s : tensor<f32> -> tensor<f32>, tensor<i64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.top_k' op expected 'values' of [8, 4], found 'tensor<8x5xf32>'}}
  %0:2 = train.top_k %x : tensor<8x4xf32> -> tensor<8x5xf32>, tensor<8x5xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.top_k' op expected 'indices' of [8, 2], found 'tensor<8x3xi64>'}}
  %0:2 = train.top_k %x : tensor<8x4xf32> -> tensor<8x2xf32>, tensor<8x3xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected at least one axis}}
  %0 = train.reduce_sum %x axes [] keepdims true : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected axes of 'tensor<8x4xf32>', each once, found 2}}
  %0 = train.reduce_sum %x axes [0, 2] keepdims true : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{expected axes of 'tensor<8x4xf32>', each once, found 1}}
  %0 = train.reduce_max %x axes [1, 1] keepdims false : tensor<8x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{equation "abc,bd->ad" does not fit operand of type 'tensor<8x4xf32>'}}
  %0 = train.einsum "abc,bd->ad" %x, %y : tensor<8x4xf32>, tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{letter 'a' is a duplicate in one operand}}
  %0 = train.einsum "aa,bd->ad" %x, %y : tensor<8x4xf32>, tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{letter 'b' has sizes 4 and 6}}
  %0 = train.einsum "ab,db->ad" %x, %y : tensor<8x4xf32>, tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{output letter 'z' is in no operand}}
  %0 = train.einsum "ab,bd->az" %x, %y : tensor<8x4xf32>, tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{letter 'a' is a duplicate in the result}}
  %0 = train.einsum "ab,bd->aa" %x, %y : tensor<8x4xf32>, tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xbf16>) {
  // expected-error @+1 {{'train.einsum' op expected one element type, found 'f32' and 'bf16'}}
  %0 = train.einsum "ab,bd->ad" %x, %y : tensor<8x4xf32>, tensor<4x6xbf16>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{'train.einsum' op rounds each operand to f8E4M3FN or f8E5M2, found [f8E4M3FN, bf16]}}
  %0 = train.einsum "ab,bd->ad" %x, %y {rounds = [f8E4M3FN, bf16]} : tensor<8x4xf32>, tensor<4x6xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) {
  // expected-error @+1 {{'train.einsum' op rounds each operand to f8E4M3FN or f8E5M2, found [f8E4M3FN]}}
  %0 = train.einsum "ab,bd->ad" %x, %y {rounds = [f8E4M3FN]} : tensor<8x4xf32>, tensor<4x6xf32>
  return
}
