// Chapter: neural network ops that later phases want to see whole.
#ifndef MERAK_TRAIN_NETWORK_OPS
#define MERAK_TRAIN_NETWORK_OPS

include "dialects/Train/TrainBase.td"

let opDocGroup = Train_NetworkOps in {

def Train_SoftmaxOp : Train_Op<"softmax", [Pure, AllTypesMatch<["x", "y"]>, LacksDouble, Rule, Grad, Decomposable]> {
  let summary = "softmax along one axis";
  let description = [{
    `y = e^(x - m) / sum(e^(x - m))`, where m and the sum go along `axis` and m is
    the maximum. Where the axis is split it is replaced by its decomposition.

    *Constraints:* x and y have one type; 0 <= axis < rank.

    ```mlir
    %y = train.softmax %x axis 3 : tensor<8x4x32x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, I64Attr:$axis);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `axis` $axis attr-dict `:` type($x)";
  let hasVerifier = 1;
}
def Train_SoftmaxGradOp : Train_Op<"softmax_grad", [Pure, AllTypesMatch<["dy", "y", "dx"]>, Rule, Decomposable]> {
  let summary = "gradient of softmax";
  let description = [{
    `dx = y * (dy - sum(dy * y))`, where y is the softmax and the sum goes along
    `axis`. Where the axis is split it is replaced by its decomposition.

    *Constraints:* y, dy and dx have one type; 0 <= axis < rank.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dx = train.softmax_grad %y, %dy axis 3 : tensor<8x4x32x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$y, Tensor:$dy, I64Attr:$axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$y `,` $dy `axis` $axis attr-dict `:` type($dx)";
  let hasVerifier = 1;
}

def Train_LayerNormOp : Train_Op<"layer_norm", [Pure, AttrSizedOperandSegments, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "layer normalization over the dimensions from `axis` on";
  let description = [{
    `y = (x - mean) * rstd * scale + bias` with `rstd = 1 / sqrt(variance +
    epsilon)`, population variance. mean and rstd have the shape `x[:axis]`;
    scale and bias, where there are, the shape `x[axis:]`.

    *Constraints:* 0 <= axis < rank of x; y has x's type; the shapes above.

    ```mlir
    %y, %mean, %rstd = train.layer_norm %x scale %s bias %b axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32>, tensor<64xf32>, tensor<64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, Optional<Tensor>:$scale, Optional<Tensor>:$bias, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs Tensor:$y, Tensor:$mean, Tensor:$rstd);
  let assemblyFormat = [{
    $x (`scale` $scale^)? (`bias` $bias^)? `axis` $axis `epsilon` $epsilon attr-dict
    `:` type(operands) `->` type(results)
  }];
  let hasVerifier = 1;
}
def Train_LayerNormGradOp : Train_Op<"layer_norm_grad", [Pure, Rule]> {
  let summary = "gradient of layer normalization with respect to x";
  let description = [{
    With `g = dy * scale` and `n = (x - mean) * rstd`, and means over the
    normalized dimensions: `dx = rstd * (g - mean(g) - n * mean(g * n))`. mean and
    rstd have the shape `x[:axis]`, scale, where there is one, `x[axis:]`.

    *Constraints:* 0 <= axis < rank of x; dy and dx have x's shape; the shapes
    above.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dx = train.layer_norm_grad %dy, %x, %mean, %rstd scale %s axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32>, tensor<64xf32> -> tensor<8x32x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$mean, Tensor:$rstd, Optional<Tensor>:$scale, I64Attr:$axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = [{
    $dy `,` $x `,` $mean `,` $rstd (`scale` $scale^)? `axis` $axis attr-dict `:` type(operands) `->` type(results)
  }];
  let hasVerifier = 1;
}
def Train_LayerNormParamGradOp : Train_Op<"layer_norm_param_grad", [Pure, AddsInPlace, Rule]> {
  let summary = "gradients of scale and bias of a layer normalization";
  let description = [{
    `dscale = sum(dy * (x - mean) * rstd)` and `dbias = sum(dy)` over the
    dimensions before `axis`. mean and rstd have the shape `x[:axis]`, dscale and
    dbias `x[axis:]`.

    *Constraints:* 0 <= axis < rank of x; dy has x's shape; the shapes above.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dscale, %dbias = train.layer_norm_param_grad %dy, %x, %mean, %rstd axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<8x32xf32> -> tensor<64xf32>, tensor<64xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$mean, Tensor:$rstd, I64Attr:$axis);
  let results = (outs Tensor:$dscale, Tensor:$dbias);
  let assemblyFormat = "operands `axis` $axis attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_RmsNormOp : Train_Op<"rms_norm", [Pure, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "RMS normalization over the dimensions from `axis` on";
  let description = [{
    `y = x * rstd * scale` with `rstd = 1 / sqrt(mean(x^2) + epsilon)`, the mean
    over the dimensions from `axis` on. rstd has the shape `x[:axis]`, scale,
    where there is one, `x[axis:]`.

    *Constraints:* 0 <= axis < rank of x; y has x's type; the shapes above.

    ```mlir
    %y, %rstd = train.rms_norm %x scale %s axis 2 epsilon 1.0e-05 : tensor<8x32x64xf32>, tensor<64xf32> -> tensor<8x32x64xf32>, tensor<8x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, Optional<Tensor>:$scale, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs Tensor:$y, Tensor:$rstd);
  let assemblyFormat = "$x (`scale` $scale^)? `axis` $axis `epsilon` $epsilon attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_RmsNormGradOp : Train_Op<"rms_norm_grad", [Pure, Rule]> {
  let summary = "gradient of RMS normalization with respect to x";
  let description = [{
    With `g = dy * scale` and `n = x * rstd`, and the mean over the normalized
    dimensions: `dx = rstd * (g - n * mean(g * n))`. rstd has the shape
    `x[:axis]`, scale, where there is one, `x[axis:]`.

    *Constraints:* 0 <= axis < rank of x; dy and dx have x's shape; the shapes
    above.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dx = train.rms_norm_grad %dy, %x, %rstd scale %s axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32>, tensor<64xf32> -> tensor<8x32x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$rstd, Optional<Tensor>:$scale, I64Attr:$axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `,` $x `,` $rstd (`scale` $scale^)? `axis` $axis attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_RmsNormParamGradOp : Train_Op<"rms_norm_param_grad", [Pure, AddsInPlace, Rule]> {
  let summary = "gradient of the scale of an RMS normalization";
  let description = [{
    `dscale = sum(dy * x * rstd)` over the dimensions before `axis`. rstd has the
    shape `x[:axis]`, dscale `x[axis:]`.

    *Constraints:* 0 <= axis < rank of x; dy has x's shape; the shapes above.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dscale = train.rms_norm_param_grad %dy, %x, %rstd axis 2 : tensor<8x32x64xf32>, tensor<8x32x64xf32>, tensor<8x32xf32> -> tensor<64xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$rstd, I64Attr:$axis);
  let results = (outs Tensor:$dscale);
  let assemblyFormat = "operands `axis` $axis attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}

def Train_SoftmaxCrossEntropyOp : Train_Op<"softmax_cross_entropy", [Pure, AnyPrecision, LacksDouble, Rule, Grad, Decomposable]> {
  let summary = "cross entropy per row";
  let description = [{
    logits [rows..., v]; labels, loss and lse [rows...]: `lse = ln(sum(e^logits))`
    over the columns, `loss = lse - logits[label]`. Rows whose label is `ignore`
    have loss 0. The mean over rows is written with `reduce_sum` and a count, so
    that it stays a mean over the global batch. Where the columns are split the
    op is replaced by its decomposition.

    *Constraints:* labels are integers; logits have a last dimension; labels, loss
    and lse have the shape of the others.

    ```mlir
    %loss, %lse = train.softmax_cross_entropy %logits, %labels ignore -100 : tensor<8x32x96xf32>, tensor<8x32xi64> -> tensor<8x32xf32>, tensor<8x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$logits, Integers:$labels, OptionalAttr<I64Attr>:$ignore_index);
  let results = (outs Tensor:$loss, Tensor:$lse);
  let assemblyFormat = "$logits `,` $labels (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_SoftmaxCrossEntropyGradOp : Train_Op<"softmax_cross_entropy_grad", [Pure, RuleLocal]> {
  let summary = "gradient of a cross entropy with respect to the logits";
  let description = [{
    `dlogits = (e^(logits - lse) - onehot(label)) * dloss`; 0 in rows whose label
    is `ignore`. logits and dlogits [rows..., v]; labels, lse and dloss [rows...].
    `split_axis`: the mesh axis whose coordinate says which columns are here.

    *Constraints:* labels are integers; logits have a last dimension, dlogits
    their shape; labels, lse and dloss have the shape of the other dimensions.

    *Lifespan:* made by `differentiate`; `localize` sets `split_axis`.

    ```mlir
    %dlogits = train.softmax_cross_entropy_grad %logits, %labels, %lse, %dloss : tensor<8x96xf32>, tensor<8xi64>, tensor<8xf32>, tensor<8xf32> -> tensor<8x96xf32>
    ```
  }];
  let arguments = (ins Tensor:$logits, Integers:$labels, Tensor:$lse, Tensor:$dloss,
                       OptionalAttr<I64Attr>:$ignore_index, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$dlogits);
  let assemblyFormat = "operands (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_PickOp : Train_Op<"pick", [Pure, LacksDouble, RuleLocal, Grad]> {
  let summary = "one column of each row: y = x[..., label]";
  let description = [{
    x [rows..., v], labels and y [rows...]. 0 where the label is not among the
    columns or is `ignore`: where the columns are split, y is a partial sum.
    `split_axis`: the mesh axis whose coordinate says which columns are here.

    *Constraints:* labels are integers; x has a last dimension; labels and y have
    the shape of the others.

    *Lifespan:* `localize` sets `split_axis`.

    ```mlir
    %y = train.pick %x at %labels : tensor<8x96xf32>, tensor<8xi64> -> tensor<8xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, Integers:$labels, OptionalAttr<I64Attr>:$ignore_index, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `at` $labels (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_PickGradOp : Train_Op<"pick_grad", [Pure, RuleLocal]> {
  let summary = "adjoint of pick";
  let description = [{
    dx [rows..., v] is dy [rows...] in the column that the row's label names, else
    0; all of a row is 0 where the label is `ignore`. `split_axis`: the mesh axis
    whose coordinate says which columns are here.

    *Constraints:* labels are integers; dx has a last dimension; labels and dy
    have the shape of the others.

    *Lifespan:* made by `differentiate`; `localize` sets `split_axis`.

    ```mlir
    %dx = train.pick_grad %dy at %labels : tensor<8xf32>, tensor<8xi64> -> tensor<8x96xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Integers:$labels, OptionalAttr<I64Attr>:$ignore_index, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `at` $labels (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}

def Train_AttentionOp : Train_Op<"attention", [Pure, Contraction, LowPrecision, LacksDouble, RuleFlops, Grad]> {
  let summary = "scaled dot-product attention";
  let description = [{
    `out = softmax(scale * q k^T + mask) v` for each sample and head: q [b, tq, h,
    d], k [b, tk, hk, d] and v [b, tk, hk, e], where hk divides h and each key
    head serves h / hk neighbouring query heads; out [b, tq, h, e], and lse [b, h,
    tq], the logarithm of the sum that softmax divides by. mask: bool (true
    attends) or float (added), broadcast to [b, h, tq, tk]. `causal`: query i sees
    the keys j <= i + tk - tq. Of `queries` in all only a part may be here: the
    coordinate on the mesh axis `split_axis` says which, query i is then i + tq *
    coordinate, and sees as many keys as that one of all.

    *Constraints:* the shapes above; `queries` and `split_axis` together, with
    `causal`; `queries` a multiple of tq.

    *Lifespan:* `localize` sets `queries` and `split_axis`.

    ```mlir
    %out, %lse = train.attention %q, %k, %v mask %m scale 1.25e-01 causal : tensor<8x32x4x16xf32>, tensor<8x32x2x16xf32>, tensor<8x32x2x16xf32>, tensor<32x32xi1> -> tensor<8x32x4x16xf32>, tensor<8x4x32xf32>
    ```
  }];
  let arguments = (ins Tensor:$q, Tensor:$k, Tensor:$v, Optional<Tensor>:$mask, F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$queries, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$out, Tensor:$lse);
  let assemblyFormat = [{
    $q `,` $k `,` $v (`mask` $mask^)? `scale` $scale (`causal` $causal^)? attr-dict `:` type(operands) `->` type(results)
  }];
  let hasVerifier = 1;
}
def Train_AttentionGradOp : Train_Op<"attention_grad", [Pure, Contraction, RuleFlops]> {
  let summary = "gradients of q, k and v of an attention";
  let description = [{
    Computes the scores again from q, k and lse. Shapes are those of `attention`:
    dout as out; dq, dk and dv as q, k and v. The gradients of the query heads
    that share a key head are added up in dk and dv. `queries` and `split_axis` as
    of `attention`: dk and dv are then summands.

    *Constraints:* those of `attention`; dout as out, dq, dk and dv as q, k and v.

    *Lifespan:* made by `differentiate`; `localize` sets `queries` and
    `split_axis`.

    ```mlir
    %dq, %dk, %dv = train.attention_grad %q, %k, %v, %out, %lse, %dout scale 1.25e-01 causal : tensor<8x32x4x16xf32>, tensor<8x32x2x16xf32>, tensor<8x32x2x16xf32>, tensor<8x32x4x16xf32>, tensor<8x4x32xf32>, tensor<8x32x4x16xf32> -> tensor<8x32x4x16xf32>, tensor<8x32x2x16xf32>, tensor<8x32x2x16xf32>
    ```
  }];
  let arguments = (ins Tensor:$q, Tensor:$k, Tensor:$v, Tensor:$out, Tensor:$lse, Tensor:$dout,
                       Optional<Tensor>:$mask, F64Attr:$scale, UnitAttr:$causal,
                       OptionalAttr<I64Attr>:$queries, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$dq, Tensor:$dk, Tensor:$dv);
  let assemblyFormat = [{
    $q `,` $k `,` $v `,` $out `,` $lse `,` $dout (`mask` $mask^)? `scale` $scale (`causal` $causal^)? attr-dict
    `:` type(operands) `->` type(results)
  }];
  let hasVerifier = 1;
}

def Train_RotaryOp : Train_Op<"rotary", [Pure, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "rotary position embedding; `inverse` is its adjoint";
  let description = [{
    x and y [b, t, h, d]; cos and sin [b, t, 1, d/2], or [1, t, 1, d/2] for all
    samples. Pair i of a head (x1, x2) is turned by the angle i of its position:
    `(x1 cos - x2 sin, x2 cos + x1 sin)`. Pairs are elements i and i + d/2, with
    `interleaved` 2i and 2i + 1. `inverse` turns back.

    *Constraints:* y has x's type; cos and sin have one shape; the shapes above.

    ```mlir
    %y = train.rotary %x, %cos, %sin : tensor<8x32x4x16xf32>, tensor<1x32x1x8xf32>, tensor<1x32x1x8xf32> -> tensor<8x32x4x16xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, Tensor:$cos, Tensor:$sin, UnitAttr:$interleaved, UnitAttr:$inverse);
  let results = (outs Tensor:$y);
  let assemblyFormat = [{
    $x `,` $cos `,` $sin (`interleaved` $interleaved^)? (`inverse` $inverse^)? attr-dict `:` type(operands) `->` type(results)
  }];
  let hasVerifier = 1;
}

def Train_BatchMeanOp : Train_Op<"batch_mean", [Pure, SameOperandsAndResultType, Rule, Grad]> {
  let summary = "mean over the samples that a rank computes together, at each of them";
  let description = [{
    `y[i, ...]` is the mean of `x[j, ...]` over the samples j of i's microbatch on
    i's replica. So its value depends on how the batch is split, as batch
    normalization does under gradient accumulation and data parallelism; a
    split dimension 0 needs no communication.

    *Constraints:* x and y have one type and a first dimension.

    *Lifespan:* `lower-batch-statistics` makes a sum of it, of local shapes.

    ```mlir
    %m = train.batch_mean %x : tensor<8x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($y)";
  let hasVerifier = 1;
}

} // opDocGroup

let opDocGroup = Train_UpdateOps in {

def Train_LossScaleOp : Train_Op<"loss_scale", [Pure, SameOperandsAndResultType, Rule]> {
  let summary = "times the scale of the loss";
  let description = [{
    `y = x * s` with the run's scale s of the step, the run-time scalar
    `grad_scale`: what gradients begin with where they would be too small for f16.
    All gradients of the step are s times what they are else, until `clip_factor`
    takes s out of the factor that updates multiply them by.

    *Constraints:* x and y have one type.

    *Lifespan:* made by `differentiate`, one in a step.

    ```mlir
    %y = train.loss_scale %one : tensor<f32>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($y)";
}

def Train_SquareSumOp : Train_Op<"square_sum", [Pure, Rule]> {
  let summary = "sum of squares as a tensor of one element";
  let description = [{
    `y = sum(x * x)` over all elements: what a gradient adds to the square of the
    global norm.

    *Constraints:* y has one element.

    *Lifespan:* made by outlining of stages, in the action U.

    ```mlir
    %y = train.square_sum %x : tensor<64x32xf32> -> tensor<1xf32>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}
def Train_ClipFactorOp : Train_Op<"clip_factor", [Pure, Rule]> {
  let summary = "the global norm of the gradients, and what to scale them by";
  let description = [{
    squares [p], the sums of squares of p gradients: `norm = sqrt(sum(squares))`
    and `factor = min(1, max_norm / (norm + 1e-6))`, both scalars. `scaled`: the
    gradients are those of a scaled loss (`loss_scale`); norm is the one without
    the scale, and factor takes it out of them.

    *Constraints:* squares has one dimension, norm and factor none; max_norm > 0.

    *Lifespan:* made by outlining of stages, in the action U.

    ```mlir
    %norm, %factor = train.clip_factor %squares max_norm 1.0 : tensor<12xf32> -> tensor<f32>, tensor<f32>
    ```
  }];
  let arguments = (ins Tensor:$squares, F64Attr:$max_norm, UnitAttr:$scaled);
  let results = (outs Tensor:$norm, Tensor:$factor);
  let assemblyFormat = "$squares `max_norm` $max_norm (`scaled` $scaled^)? attr-dict `:` type(operands) `->` type(results)";
  let hasVerifier = 1;
}

} // opDocGroup

#endif
