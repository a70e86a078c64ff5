// Each message of a train op's verifier: neural network ops, windows, clipping.
// RUN: merak-opt %s --verify-diagnostics --split-input-file

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.softmax' op expected an axis of 'tensor<8x32x64xf32>', found 3}}
  %0 = train.softmax %x axis 3 : tensor<8x32x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.softmax_grad' op expected an axis of 'tensor<8x32x64xf32>', found -1}}
  %0 = train.softmax_grad %x, %x axis -1 : tensor<8x32x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.layer_norm' op expected an axis of 'tensor<8x32x64xf32>', found 3}}
  %0:3 = train.layer_norm %x axis 3 epsilon 1.0e-05 : tensor<8x32x64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.layer_norm' op expected 'rstd' of [8, 32], found 'tensor<32xf32>'}}
  %0:3 = train.layer_norm %x axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.layer_norm' op expected 'bias' of [64], found 'tensor<32xf32>'}}
  %0:3 = train.layer_norm %x scale %s bias %w axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32>, tensor<64xf32>, tensor<32xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.layer_norm' op expected one element type, found 'f32' and 'bf16'}}
  %0:3 = train.layer_norm %x axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32> -> tensor<8x32x64xbf16>, tensor<8x32xf32>, tensor<8x32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.layer_norm_grad' op expected 'dy' of [8, 32, 64], found 'tensor<8x32xf32>'}}
  %0 = train.layer_norm_grad %m, %x, %m, %m axis 2 : tensor<8x32xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32> -> tensor<8x32x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.layer_norm_param_grad' op expected 'dbias' of [64], found 'tensor<32xf32>'}}
  %0:2 = train.layer_norm_param_grad %x, %x, %m, %m axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32> -> tensor<64xf32>, tensor<32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.rms_norm' op expected 'scale' of [64], found 'tensor<32xf32>'}}
  %0:2 = train.rms_norm %x scale %w axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32>, tensor<32xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.rms_norm_grad' op expected 'rstd' of [8, 32], found 'tensor<32xf32>'}}
  %0 = train.rms_norm_grad %x, %x, %w axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<32xf32> -> tensor<8x32x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x64xf32>, %s: tensor<64xf32>, %m: tensor<8x32xf32>, %w: tensor<32xf32>) {
  // expected-error @+1 {{'train.rms_norm_param_grad' op expected 'dscale' of [64], found 'tensor<32xf32>'}}
  %0 = train.rms_norm_param_grad %x, %x, %m axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32> -> tensor<32xf32>
  return
}

// -----

func.func @f(%x: tensor<f32>) {
  // expected-error @+1 {{'train.batch_mean' op expected a first dimension of samples, found 'tensor<f32>'}}
  %0 = train.batch_mean %x : tensor<f32>
  return
}

// -----

func.func @f(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %r: tensor<8xf32>, %q: tensor<7xf32>, %k: tensor<7xi64>, %s: tensor<f32>, %i: tensor<i64>) {
  // expected-error @+1 {{'train.softmax_cross_entropy' op expected a last dimension of columns, found 'tensor<f32>'}}
  %0:2 = train.softmax_cross_entropy %s, %i : tensor<f32>, tensor<i64> -> tensor<f32>, tensor<f32>
  return
}

// -----

func.func @f(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %r: tensor<8xf32>, %q: tensor<7xf32>, %k: tensor<7xi64>, %s: tensor<f32>, %i: tensor<i64>) {
  // expected-error @+1 {{'train.softmax_cross_entropy' op expected 'labels' of [8], found 'tensor<7xi64>'}}
  %0:2 = train.softmax_cross_entropy %x, %k : tensor<8x96xf32>, tensor<7xi64> -> tensor<8xf32>, tensor<8xf32>
  return
}

// -----

func.func @f(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %r: tensor<8xf32>, %q: tensor<7xf32>, %k: tensor<7xi64>, %s: tensor<f32>, %i: tensor<i64>) {
  // expected-error @+1 {{'train.softmax_cross_entropy' op operand #1 must be ranked tensor of integer values}}
  %0:2 = train.softmax_cross_entropy %x, %r : tensor<8x96xf32>, tensor<8xf32> -> tensor<8xf32>, tensor<8xf32>
  return
}

// -----

func.func @f(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %r: tensor<8xf32>, %q: tensor<7xf32>, %k: tensor<7xi64>, %s: tensor<f32>, %i: tensor<i64>) {
  // expected-error @+1 {{'train.softmax_cross_entropy_grad' op expected 'dlogits' of [8, 96], found 'tensor<8x95xf32>'}}
  %0 = train.softmax_cross_entropy_grad %x, %l, %r, %r : tensor<8x96xf32>, tensor<8xi64>, tensor<8xf32>, tensor<8xf32> -> tensor<8x95xf32>
  return
}

// -----

func.func @f(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %r: tensor<8xf32>, %q: tensor<7xf32>, %k: tensor<7xi64>, %s: tensor<f32>, %i: tensor<i64>) {
  // expected-error @+1 {{'train.pick' op expected 'y' of [8], found 'tensor<7xf32>'}}
  %0 = train.pick %x at %l : tensor<8x96xf32>, tensor<8xi64> -> tensor<7xf32>
  return
}

// -----

func.func @f(%x: tensor<8x96xf32>, %l: tensor<8xi64>, %r: tensor<8xf32>, %q: tensor<7xf32>, %k: tensor<7xi64>, %s: tensor<f32>, %i: tensor<i64>) {
  // expected-error @+1 {{'train.pick_grad' op expected 'dy' of [8], found 'tensor<7xf32>'}}
  %0 = train.pick_grad %q at %l : tensor<7xf32>, tensor<8xi64> -> tensor<8x96xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention' op expected [samples, time, heads, depth], found 'tensor<8x32x64xf32>'}}
  %0:2 = train.attention %flat, %k, %k scale 1.0 : tensor<8x32x64xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention' op expected key heads that divide the 4 query heads, found 3}}
  %0:2 = train.attention %q, %k3, %k3 scale 1.0 : tensor<8x32x4x16xf32>, tensor<8x24x3x16xf32>, tensor<8x24x3x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention' op expected 'k' of [8, 24, 2, 16], found 'tensor<7x24x2x16xf32>'}}
  %0:2 = train.attention %q, %k7, %k7 scale 1.0 : tensor<8x32x4x16xf32>, tensor<7x24x2x16xf32>, tensor<7x24x2x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention' op expected 'v' of [8, 24, 2, 16], found 'tensor<8x23x2x16xf32>'}}
  %0:2 = train.attention %q, %k, %v scale 1.0 : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x23x2x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention' op expected a mask that broadcasts to [8, 4, 32, 24], found 'tensor<31x24xi1>'}}
  %0:2 = train.attention %q, %k, %k mask %m scale 1.0 : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x16xf32>, tensor<31x24xi1> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>) {
  // expected-error @+1 {{'train.attention' op expected 'queries' and 'split_axis' together, with 'causal'}}
  %0:2 = train.attention %q, %k, %k scale 1.0 {queries = 64 : i64, split_axis = "tp"} : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>) {
  // expected-error @+1 {{'train.attention' op expected a part of 48 queries that divides them, found 32}}
  %0:2 = train.attention %q, %k, %k scale 1.0 causal {queries = 48 : i64, split_axis = "tp"} : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention' op expected 'lse' of [8, 4, 32], found 'tensor<8x32x4x16xf32>'}}
  %0:2 = train.attention %q, %k, %k scale 1.0 : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x32x4x16xf32>
  return
}

// -----

func.func @f(%q: tensor<8x32x4x16xf32>, %k: tensor<8x24x2x16xf32>, %lse: tensor<8x4x32xf32>, %k3: tensor<8x24x3x16xf32>, %k7: tensor<7x24x2x16xf32>, %v: tensor<8x23x2x16xf32>, %m: tensor<31x24xi1>, %flat: tensor<8x32x64xf32>) {
  // expected-error @+1 {{'train.attention_grad' op expected 'dk' of [8, 24, 2, 16], found 'tensor<8x32x4x16xf32>'}}
  %0:3 = train.attention_grad %q, %k, %k, %q, %lse, %q scale 1.0 : tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>, tensor<8x24x2x16xf32>, tensor<8x32x4x16xf32>, tensor<8x4x32xf32>, tensor<8x32x4x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x32x4x16xf32>, tensor<8x24x2x16xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x4x16xf32>, %c: tensor<1x32x1x8xf32>, %d: tensor<2x32x1x8xf32>, %odd: tensor<8x32x4x15xf32>) {
  // expected-error @+1 {{'train.rotary' op expected [samples, time, heads, even depth], found 'tensor<8x32x4x15xf32>'}}
  %0 = train.rotary %odd, %c, %c : tensor<8x32x4x15xf32>, tensor<1x32x1x8xf32>, tensor<1x32x1x8xf32> -> tensor<8x32x4x15xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x4x16xf32>, %c: tensor<1x32x1x8xf32>, %d: tensor<2x32x1x8xf32>, %odd: tensor<8x32x4x15xf32>) {
  // expected-error @+1 {{'train.rotary' op expected 'cos' of [8, 32, 1, 8], found 'tensor<2x32x1x8xf32>'}}
  %0 = train.rotary %x, %d, %d : tensor<8x32x4x16xf32>, tensor<2x32x1x8xf32>, tensor<2x32x1x8xf32> -> tensor<8x32x4x16xf32>
  return
}

// -----

func.func @f(%x: tensor<8x32x4x16xf32>, %c: tensor<1x32x1x8xf32>, %d: tensor<2x32x1x8xf32>, %odd: tensor<8x32x4x15xf32>) {
  // expected-error @+1 {{'train.rotary' op expected 'sin' of [1, 32, 1, 8], found 'tensor<2x32x1x8xf32>'}}
  %0 = train.rotary %x, %c, %d : tensor<8x32x4x16xf32>, tensor<1x32x1x8xf32>, tensor<2x32x1x8xf32> -> tensor<8x32x4x16xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.square_sum' op expected a result of one element, found 'tensor<2xf32>'}}
  %0 = train.square_sum %x : tensor<8x4xf32> -> tensor<2xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4xf32>) {
  // expected-error @+1 {{'train.clip_factor' op expected a list of squares, found 'tensor<8x4xf32>'}}
  %0:2 = train.clip_factor %x max_norm 1.0 : tensor<8x4xf32> -> tensor<f32>, tensor<f32>
  return
}

// -----

func.func @f(%s: tensor<12xf32>) {
  // expected-error @+1 {{'train.clip_factor' op expected a norm above 0, found 0.000000e+00}}
  %0:2 = train.clip_factor %s max_norm 0.0 : tensor<12xf32> -> tensor<f32>, tensor<f32>
  return
}

// -----

func.func @f(%s: tensor<12xf32>) {
  // expected-error @+1 {{'train.clip_factor' op expected 'factor' of [], found 'tensor<1xf32>'}}
  %0:2 = train.clip_factor %s max_norm 1.0 : tensor<12xf32> -> tensor<f32>, tensor<1xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv' op expected [samples, channels, spatial...], found 'tensor<8x4xf32>'}}
  %0 = train.conv %flat, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv' op expected at least one group, found 0}}
  %0 = train.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 0 : i64} : tensor<8x4x9x9xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv' op expected a weight for 2 groups of the channels of 'tensor<8x4x9x9xf32>', found 'tensor<6x3x3x3xf32>'}}
  %0 = train.conv %x, %w3 {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<6x3x3x3xf32> -> tensor<8x6x5x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv' op expected a window of 2 spatial dimensions, found 2 of the kernel, 1 strides, 4 pads and 2 dilations}}
  %0 = train.conv %x, %w {strides = array<i64: 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv' op expected strides and dilations of at least 1 and pads that are not negative}}
  %0 = train.conv %x, %w {strides = array<i64: 2, 0>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv' op expected 'y' of [8, 6, 5, 5], found 'tensor<8x6x5x4xf32>'}}
  %0 = train.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<6x2x3x3xf32> -> tensor<8x6x5x4xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv_grad_input' op expected 'dy' of [8, 6, 4, 5], found 'tensor<8x6x5x5xf32>'}}
  %0 = train.conv_grad_input %y, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x6x5x5xf32>, tensor<6x2x3x3xf32> -> tensor<8x4x8x9xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.conv_grad_weight' op expected a weight for 2 groups of the channels of 'tensor<8x4x9x9xf32>', found 'tensor<6x4x3x3xf32>'}}
  %0 = train.conv_grad_weight %x, %y {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 2 : i64} : tensor<8x4x9x9xf32>, tensor<8x6x5x5xf32> -> tensor<6x4x3x3xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.max_pool' op expected a kernel of at least one element}}
  %0:2 = train.max_pool %x {kernel = array<i64: 2, 0>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : tensor<8x4x9x9xf32> -> tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.max_pool' op expected 'index' of [8, 4, 4, 4], found 'tensor<8x4x4x5xi64>'}}
  %0:2 = train.max_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : tensor<8x4x9x9xf32> -> tensor<8x4x4x4xf32>, tensor<8x4x4x5xi64>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.max_pool_grad' op expected the samples and channels of 'tensor<8x4x4x4xf32>', found 'tensor<8x5x9x9xf32>'}}
  %0 = train.max_pool_grad %p, %i : tensor<8x4x4x4xf32>, tensor<8x4x4x4xi64> -> tensor<8x5x9x9xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.avg_pool' op expected 'y' of [8, 4, 4, 4], found 'tensor<8x4x4x5xf32>'}}
  %0 = train.avg_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>} : tensor<8x4x9x9xf32> -> tensor<8x4x4x5xf32>
  return
}

// -----

func.func @f(%x: tensor<8x4x9x9xf32>, %w: tensor<6x2x3x3xf32>, %y: tensor<8x6x5x5xf32>, %p: tensor<8x4x4x4xf32>, %i: tensor<8x4x4x4xi64>, %flat: tensor<8x4xf32>, %w3: tensor<6x3x3x3xf32>) {
  // expected-error @+1 {{'train.avg_pool_grad' op expected 'dy' of [8, 4, 5, 4], found 'tensor<8x4x4x4xf32>'}}
  %0 = train.avg_pool_grad %p {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>} : tensor<8x4x4x4xf32> -> tensor<8x4x10x9xf32>
  return
}
