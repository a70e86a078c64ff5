// Each message of a dist op's verifier and of the attributes.
// RUN: merak-opt %s --verify-diagnostics --split-input-file

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_reduce' op expected at least one axis}}
  %0 = dist.all_reduce %x over [] sum : tensor<8x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_reduce' op expected each axis once, found ["tp", "tp"]}}
  %0 = dist.all_reduce %x over ["tp", "tp"] max : tensor<8x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_gather' op expected a dimension of 'tensor<8x64xf32>', found 2}}
  %0 = dist.all_gather %x over ["tp"] dim 2 major 1 minor 1 : tensor<8x64xf32> to tensor<8x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_gather' op expected a result like 'tensor<8x64xf32>' but for the dimension that is converted, found 'tensor<9x128xf32>'}}
  %0 = dist.all_gather %x over ["tp"] dim 1 major 1 minor 1 : tensor<8x64xf32> to tensor<9x128xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_gather' op expected parts that make up dimension 1 of size 96, found parts of size 64}}
  %0 = dist.all_gather %x over ["tp"] dim 1 major 1 minor 1 : tensor<8x64xf32> to tensor<8x96xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_gather' op expected extents that divide dimension 1 of 'tensor<8x64xf32>', found major 3 and minor 16}}
  %0 = dist.all_gather %x over ["tp"] dim 1 major 3 minor 16 : tensor<8x64xf32> to tensor<8x128xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.reduce_scatter' op expected parts that make up dimension 1 of size 64, found parts of size 128}}
  %0 = dist.reduce_scatter %x over ["tp"] dim 1 major 1 minor 1 : tensor<8x64xf32> to tensor<8x128xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.shard_slice' op expected extents that divide dimension 1 of 'tensor<8x32xf32>', found major 0 and minor 1}}
  %0 = dist.shard_slice %x over ["tp"] dim 1 major 0 minor 1 : tensor<8x64xf32> to tensor<8x32xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.all_to_all' op expected as many elements before and after, found 'tensor<8x64xf32>' and 'tensor<16x64xf32>'}}
  %0 = dist.all_to_all %x over ["tp"] dim 0 major 1 minor 1 to 1 major 1 minor 1 : tensor<8x64xf32> to tensor<16x64xf32>
  return
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{failed to verify that all of {x, y} have same type}}
  %0 = "dist.accumulate"(%x) : (tensor<8x64xf32>) -> tensor<8x32xf32>
  return
}

// -----

// expected-error @+1 {{expected each axis of a mesh once, found "dp" again}}
module attributes {dist.example = #dist.mesh<pp = 2, dp = 2, dp = 4>} {
}

// -----

// expected-error @+1 {{expected a size of at least 1 of mesh axis "tp", found 0}}
module attributes {dist.example = #dist.mesh<pp = 2, tp = 0>} {
}

// -----

// expected-error @+1 {{expected a factor of at least 0, found -4}}
module attributes {dist.example = #dist.layout<[8, -4]>} {
}

// -----

// expected-error @+1 {{expected each axis of a layout once, found "tp" again}}
module attributes {dist.example = #dist.layout<[8 over (tp), 4 over (dp, tp)]>} {
}

// -----

// expected-error @+1 {{expected each axis of a layout once, found "dp" again}}
module attributes {dist.example = #dist.layout<[8 over (dp)] partial(dp)>} {
}

// -----

func.func @f(%x: tensor<8x64xf32>) {
  // expected-error @+1 {{'dist.place' op expected parts that make up dimension 0 of size 20, found parts of size 8}}
  %0 = dist.place %x over ["mb"] dim 0 major 1 minor 1 : tensor<8x64xf32> to tensor<20x64xf32>
  return
}
