// Chapter: convolutions and pools.
#ifndef MERAK_TRAIN_WINDOW_OPS
#define MERAK_TRAIN_WINDOW_OPS

include "dialects/Train/TrainBase.td"

let opDocGroup = Train_WindowOps in {

def Train_ConvOp : Train_Op<"conv", [Pure, Contraction, LowPrecision, LacksDouble, RuleFlopsLocal, Grad]> {
  let summary = "convolution";
  let description = [{
    x [N, G * C, spatial...], w [G * O, C, kernel...], y [N, G * O, windows...],
    where G is `group`: channel o of group g of y is the sum, over the group's C
    channels and the window, of x times w. Outside of x is zero. `localize` sets
    `group` to the groups that are here.

    *Constraints:* x, w and y have the same number of spatial dimensions, at least
    one; strides and dilations have an entry of at least 1 for each, pads two that
    are not negative; group >= 1; the shapes above, with the windows that strides,
    pads and dilations give.

    ```mlir
    %y = train.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 1 : i64} : tensor<8x3x32x32xf32>, tensor<16x3x3x3xf32> -> tensor<8x16x16x16xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, Tensor:$w, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads,
                       DenseI64ArrayAttr:$dilations, I64Attr:$group);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `,` $w attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_ConvGradInputOp : Train_Op<"conv_grad_input", [Pure, Contraction, LacksDouble, RuleFlopsLocal, Grad]> {
  let summary = "gradient of a convolution with respect to its input: a transposed convolution";
  let description = [{
    dx gets, at each element of x, the sum over the windows that hold it of dy
    times the weight there. dx, w and dy have the shapes of x, w and y of `conv`
    with the same attributes.

    *Constraints:* those of `conv`, of dx, w and dy.

    ```mlir
    %dx = train.conv_grad_input %dy, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 1 : i64} : tensor<8x16x16x16xf32>, tensor<16x3x3x3xf32> -> tensor<8x3x32x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Tensor:$w, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads,
                       DenseI64ArrayAttr:$dilations, I64Attr:$group);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `,` $w attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_ConvGradWeightOp : Train_Op<"conv_grad_weight", [Pure, Contraction, AddsInPlace, WidensResult, RuleFlopsLocal]> {
  let summary = "gradient of a convolution with respect to its weight";
  let description = [{
    dw gets, for each place in the window, the sum over samples and windows of x
    there times dy. x, dw and dy have the shapes of x, w and y of `conv` with the
    same attributes.

    *Constraints:* those of `conv`, of x, dw and dy.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dw = train.conv_grad_weight %x, %dy {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>, group = 1 : i64} : tensor<8x3x32x32xf32>, tensor<8x16x16x16xf32> -> tensor<16x3x3x3xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, Tensor:$dy, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads,
                       DenseI64ArrayAttr:$dilations, I64Attr:$group);
  let results = (outs Tensor:$dw);
  let assemblyFormat = "$x `,` $dy attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}

def Train_MaxPoolOp : Train_Op<"max_pool", [Pure, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "maximum in windows, and the flat spatial position of the first maximum";
  let description = [{
    x [N, C, spatial...]; y and index [N, C, windows...]. y is the largest element
    of a window that lies within x; index its row-major position among the spatial
    dimensions of x, of equals the first.

    *Constraints:* x and y have the same number of spatial dimensions, at least
    one; kernel, strides and dilations have an entry of at least 1 for each, pads
    two that are not negative; y has x's samples and channels and the windows that
    these give; index has y's shape and holds integers.

    ```mlir
    %y, %index = train.max_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} : tensor<8x16x16x16xf32> -> tensor<8x16x8x8xf32>, tensor<8x16x8x8xi64>
    ```
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
                       DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations);
  let results = (outs Tensor:$y, Integers:$index);
  let assemblyFormat = "$x attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_MaxPoolGradOp : Train_Op<"max_pool_grad", [Pure, LacksDouble, Rule, Grad]> {
  let summary = "gradient of max_pool: each element where its maximum was found";
  let description = [{
    dy and index [N, C, windows...], dx [N, C, spatial...]: dx is, at each flat
    spatial position, the sum of the elements of dy whose index it is.

    *Constraints:* dy and dx have the same samples, channels and number of spatial
    dimensions, at least one; index has dy's shape and holds integers.

    ```mlir
    %dx = train.max_pool_grad %dy, %index : tensor<8x16x8x8xf32>, tensor<8x16x8x8xi64> -> tensor<8x16x16x16xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Integers:$index);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `,` $index attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_AvgPoolOp : Train_Op<"avg_pool", [Pure, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "average in windows";
  let description = [{
    x [N, C, spatial...], y [N, C, windows...]: the sum of the elements of x in a
    window, divided by their number, or with `count_include_pad` by the size of
    the window.

    *Constraints:* x and y have the same number of spatial dimensions, at least
    one; kernel and strides have an entry of at least 1 for each, pads two that
    are not negative; y has x's samples and channels and the windows that these
    give.

    ```mlir
    %y = train.avg_pool %x {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>} : tensor<8x16x16x16xf32> -> tensor<8x16x8x8xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
                       DenseI64ArrayAttr:$pads, UnitAttr:$count_include_pad);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_AvgPoolGradOp : Train_Op<"avg_pool_grad", [Pure, LacksDouble, Rule]> {
  let summary = "gradient of avg_pool";
  let description = [{
    Each element of dy, divided as `avg_pool` divides, added to all elements of its
    window. dx and dy have the shapes of x and y of `avg_pool` with the same
    attributes.

    *Constraints:* those of `avg_pool`, of dx and dy.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dx = train.avg_pool_grad %dy {kernel = array<i64: 2, 2>, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>} : tensor<8x16x8x8xf32> -> tensor<8x16x16x16xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
                       DenseI64ArrayAttr:$pads, UnitAttr:$count_include_pad);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}

} // opDocGroup

#endif
