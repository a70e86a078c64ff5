// Ops of the train dialect, in chapters.
#ifndef MERAK_TRAIN_OPS
#define MERAK_TRAIN_OPS

include "dialects/Train/TrainDialect.td"
include "dialects/Train/TrainInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

defvar Tensor = AnyRankedTensor;
defvar Rule = DeclareOpInterfaceMethods<ShardingRuleOpInterface>;
defvar RuleFlops = DeclareOpInterfaceMethods<ShardingRuleOpInterface, ["getFlops"]>;
defvar RuleFlopsLocal = DeclareOpInterfaceMethods<ShardingRuleOpInterface, ["getFlops", "localize"]>;
defvar RuleLocal = DeclareOpInterfaceMethods<ShardingRuleOpInterface, ["localize"]>;
defvar Grad = DeclareOpInterfaceMethods<DifferentiableOpInterface>;
defvar Decomposable = DeclareOpInterfaceMethods<DecomposableOpInterface>;
defvar Infer = DeclareOpInterfaceMethods<InferTypeOpInterface>;

class Train_Op<string mnemonic, list<Trait> traits = []>
    : Op<Train_Dialect, mnemonic, traits>;

//===----------------------------------------------------------------------===//
// Chapter: model, parameters, constants
//===----------------------------------------------------------------------===//

def Train_OnnxNodeOp : Train_Op<"onnx_node"> {
  let summary = "one ONNX node, as it stands in the file";
  let description = [{
    *Lifespan:* made by import, gone after `legalize-onnx`.
    *Constraints:* none; import is total. A missing optional input is `none`.

    ```mlir
    %0 = train.onnx_node "Gemm" opset 13(%x, %w, %b) {transB = 1 : i64} : (...) -> tensor<8x10xf32>
    ```
  }];
  let arguments = (ins Variadic<AnyType>:$inputs, StrAttr:$op_type, DefaultValuedStrAttr<StrAttr, "">:$domain,
                       I64Attr:$opset, DictionaryAttr:$onnx_attrs);
  let results = (outs Variadic<AnyType>:$outputs);
  let assemblyFormat = [{
    $op_type (`in` $domain^)? `opset` $opset `(` $inputs `)` $onnx_attrs attr-dict
    `:` functional-type($inputs, $outputs)
  }];
}

def Train_NoneOp : Train_Op<"none", [Pure]> {
  let summary = "no value: a missing optional input of a carrier";
  let description = [{*Lifespan:* made by import, gone after `legalize-onnx`.}];
  let results = (outs NoneType:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def Train_ParameterOp : Train_Op<"parameter", [Symbol]> {
  let summary = "a named initializer: a trained parameter or a frozen table";
  let description = [{
    Holds no bytes: `source` points at them. A missing source means absent
    weights (the plan can be compiled, not run). `value` holds what the compiler
    computed itself (a folded table), or the weights of a model in text form.
    *Constraints:* at most one of `source` and `value`; `value` has the type.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<Tensor>:$type, UnitAttr:$trainable,
                       OptionalAttr<Train_SourceAttr>:$source, OptionalAttr<ElementsAttr>:$value);
  let assemblyFormat = [{
    $sym_name `:` $type (`trainable` $trainable^)? (`from` $source^)? (`=` $value^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Train_ReadOp : Train_Op<"read", [Pure, DeclareOpInterfaceMethods<SymbolUserOpInterface>, Rule]> {
  let summary = "the value of a parameter in this step";
  let arguments = (ins FlatSymbolRefAttr:$parameter);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

def Train_ConstantOp : Train_Op<"constant", [Pure, ConstantLike, AllTypesMatch<["value", "result"]>, Rule]> {
  let summary = "a small constant";
  let description = [{
    Splats of any shape and tensors of at most 1024 elements; larger ones are
    `train.parameter` with a value.
  }];
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$value attr-dict";
  let hasFolder = 1;
}

def Train_UpdateOp : Train_Op<"update", [AllTypesMatch<["parameter_value", "gradient"]>, DeclareOpInterfaceMethods<SymbolUserOpInterface>, Rule]> {
  let summary = "the optimizer's step on one parameter";
  let description = [{
    `gradient` is the sum over all uses of the parameter, over the global batch.
    Every trained parameter has exactly one update.
    *Lifespan:* made by autodiff; the stage phase turns it into `pipe.update`.
  }];
  let arguments = (ins Tensor:$parameter_value, Tensor:$gradient, FlatSymbolRefAttr:$parameter);
  let assemblyFormat = "$parameter `:` $parameter_value `by` $gradient attr-dict `:` type($parameter_value) `,` type($gradient)";
}

//===----------------------------------------------------------------------===//
// Chapter: element-wise
//===----------------------------------------------------------------------===//

class Train_Unary<string mnemonic, list<Trait> traits = [Grad]>
    : Train_Op<mnemonic, [Pure, SameOperandsAndResultType, Pointwise, Rule] # traits> {
  let summary = "element-wise " # mnemonic;
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($y)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
  }];
}
def Train_NegOp : Train_Unary<"neg", [Grad, FollowsPrecision]>;
def Train_ExpOp : Train_Unary<"exp">;
def Train_LogOp : Train_Unary<"log">;
def Train_SqrtOp : Train_Unary<"sqrt">;
def Train_ReciprocalOp : Train_Unary<"reciprocal">;
def Train_AbsOp : Train_Unary<"abs", [Grad, FollowsPrecision]>;
def Train_SinOp : Train_Unary<"sin">;
def Train_CosOp : Train_Unary<"cos">;
def Train_TanhOp : Train_Unary<"tanh", [Grad, FollowsPrecision]>;
def Train_ErfOp : Train_Unary<"erf", [Grad, FollowsPrecision]>;
def Train_SigmoidOp : Train_Unary<"sigmoid", [Grad, FollowsPrecision]>;
def Train_ReluOp : Train_Unary<"relu", [Grad, FollowsPrecision]>;
def Train_TanOp : Train_Unary<"tan">;
def Train_AsinOp : Train_Unary<"asin">;
def Train_AcosOp : Train_Unary<"acos">;
def Train_AtanOp : Train_Unary<"atan">;
def Train_SinhOp : Train_Unary<"sinh">;
def Train_CoshOp : Train_Unary<"cosh">;
// Steps: their gradient is zero wherever there is one.
def Train_FloorOp : Train_Unary<"floor">;
def Train_RoundOp : Train_Unary<"round">; // halves to even
def Train_NotOp : Train_Unary<"not", []>;

def Train_StopGradientOp : Train_Unary<"stop_gradient", [FollowsPrecision]> {
  let summary = "its operand, through which no gradient goes";
  let description = [{
    Stands between import and `differentiate`, which treats the result as a
    constant and then replaces it by the operand.

    Example:
    ```mlir
    %y = train.stop_gradient %x : tensor<8x4xf32>
    ```
  }];
}

def Train_GeluOp : Train_Op<"gelu", [Pure, AllTypesMatch<["x", "y"]>, Pointwise, FollowsPrecision, Rule, Grad]> {
  let summary = "Gaussian error linear unit";
  let description = [{Exact (erf) form, or the tanh approximation.}];
  let arguments = (ins Tensor:$x, UnitAttr:$tanh);
  let results = (outs Tensor:$y);
  let assemblyFormat = "(`tanh` $tanh^)? $x attr-dict `:` type($y)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
  }];
}
def Train_GeluGradOp : Train_Op<"gelu_grad", [Pure, AllTypesMatch<["x", "dy", "dx"]>, Pointwise, Rule]> {
  let summary = "gradient of gelu: dy * gelu'(x)";
  let arguments = (ins Tensor:$dy, Tensor:$x, UnitAttr:$tanh);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "(`tanh` $tanh^)? $dy `,` $x attr-dict `:` type($dx)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
  }];
}

def Train_CastOp : Train_Op<"cast", [Pure, SameOperandsAndResultShape, Pointwise, Rule, Grad]> {
  let summary = "conversion of the element type; to bool: x != 0";
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x) `to` type($y)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
  }];
}

class Train_Binary<string mnemonic, list<Trait> traits = [Grad]>
    : Train_Op<mnemonic, [Pure, Infer, Pointwise, Broadcasts, Rule] # traits> {
  let summary = "element-wise " # mnemonic # " with NumPy broadcasting";
  let arguments = (ins Tensor:$lhs, Tensor:$rhs);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
    ::llvm::LogicalResult $cppClass::inferReturnTypes(::mlir::MLIRContext *, std::optional<::mlir::Location> location,
        ::mlir::ValueRange operands, ::mlir::DictionaryAttr, ::mlir::OpaqueProperties, ::mlir::RegionRange,
        ::llvm::SmallVectorImpl<::mlir::Type> &types) { return inferBroadcast(location, operands, {}, types); }
  }];
}
def Train_AddOp : Train_Binary<"add", [Grad, FollowsPrecision]>;
def Train_SubOp : Train_Binary<"sub", [Grad, FollowsPrecision]>;
def Train_MulOp : Train_Binary<"mul", [Grad, FollowsPrecision]>;
def Train_DivOp : Train_Binary<"div", [Grad, FollowsPrecision]>;
def Train_PowOp : Train_Binary<"pow">;
def Train_MaxOp : Train_Binary<"max", [Grad, FollowsPrecision]>;
def Train_MinOp : Train_Binary<"min", [Grad, FollowsPrecision]>;
def Train_AndOp : Train_Binary<"and", []>;
def Train_OrOp : Train_Binary<"or", []>;
def Train_XorOp : Train_Binary<"xor", []>;
// Of integers, by 0 to width - 1 bits; a right shift of a signed type keeps
// the sign.
def Train_ShiftLeftOp : Train_Binary<"shift_left", []>;
def Train_ShiftRightOp : Train_Binary<"shift_right", []>;

def Train_CompareOp : Train_Op<"compare", [Pure, Infer, Pointwise, Broadcasts, FollowsPrecision, Rule]> {
  let summary = "element-wise comparison; the result is bool (i1)";
  let arguments = (ins Train_ComparePredicate:$predicate, Tensor:$lhs, Tensor:$rhs);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$predicate $lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
    ::llvm::LogicalResult $cppClass::inferReturnTypes(::mlir::MLIRContext *context, std::optional<::mlir::Location> location,
        ::mlir::ValueRange operands, ::mlir::DictionaryAttr, ::mlir::OpaqueProperties, ::mlir::RegionRange,
        ::llvm::SmallVectorImpl<::mlir::Type> &types) {
      return inferBroadcast(location, operands, ::mlir::IntegerType::get(context, 1), types); }
  }];
}

def Train_SelectOp : Train_Op<"select", [Pure, Infer, Pointwise, Broadcasts, FollowsPrecision, Rule, Grad]> {
  let summary = "condition ? lhs : rhs, element-wise with broadcasting";
  let arguments = (ins Tensor:$condition, Tensor:$lhs, Tensor:$rhs);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$condition `,` $lhs `,` $rhs attr-dict `:` type($condition) `,` type($lhs) `,` type($rhs)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
    ::llvm::LogicalResult $cppClass::inferReturnTypes(::mlir::MLIRContext *, std::optional<::mlir::Location> location,
        ::mlir::ValueRange operands, ::mlir::DictionaryAttr, ::mlir::OpaqueProperties, ::mlir::RegionRange,
        ::llvm::SmallVectorImpl<::mlir::Type> &types) {
      return inferBroadcast(location, operands,
          ::llvm::cast<::mlir::ShapedType>(operands[1].getType()).getElementType(), types); }
  }];
}

def Train_DropoutOp : Train_Op<"dropout", [Pure, AllTypesMatch<["x", "y"]>, FollowsPrecision, LacksDouble, RuleFlops, Grad]> {
  let summary = "elements dropped at random, the others scaled up";
  let description = [{
    y = x / (1 - ratio) where the mask keeps an element, else 0. The mask is a
    function of the run's seed, the step, `id` and the row-major index of the
    element in the global tensor (see runtime/core/Philox.h), so that it is the
    same in every layout, when it is computed again, and in the gradient.

    A local tensor is a strided box of the global one: `extents` are its sizes
    and `strides` the steps of the global index, both row major in the order of
    local elements; the box begins at the sum of the rank's coordinates on
    `axes` times `scales`.
    *Lifespan:* the box is set by `localize`.
    *Constraints:* 0 <= ratio < 1; ops that must not share a mask differ in
    `id`, 0 <= id < 2^32.

    ```mlir
    %y = train.dropout %x ratio 1.0e-01 id 3 : tensor<8x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, F64Attr:$ratio, I64Attr:$id,
                       OptionalAttr<DenseI64ArrayAttr>:$extents, OptionalAttr<DenseI64ArrayAttr>:$strides,
                       OptionalAttr<StrArrayAttr>:$axes, OptionalAttr<DenseI64ArrayAttr>:$scales);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `ratio` $ratio `id` $id attr-dict `:` type($y)";
  let hasVerifier = 1;
}

//===----------------------------------------------------------------------===//
// Chapter: shape
//===----------------------------------------------------------------------===//

def Train_ReshapeOp : Train_Op<"reshape", [Pure, ViewLike, FollowsPrecision, Rule, Grad]> {
  let summary = "the same elements in row-major order with another shape";
  let description = [{*Constraints:* equal element type and element count.}];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x) `to` type($y)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Train_TransposeOp : Train_Op<"transpose", [Pure, Infer, ViewLike, FollowsPrecision, Rule, Grad]> {
  let summary = "permuted dimensions: result dimension i is operand dimension perm[i]";
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$perm);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `perm` $perm attr-dict `:` type($x)";
  let hasFolder = 1;
}

def Train_ExpandOp : Train_Op<"expand", [Pure, ViewLike, FollowsPrecision, Rule, Grad]> {
  let summary = "NumPy broadcast to a larger shape";
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x) `to` type($y)";
  let hasVerifier = 1;
}

def Train_SliceOp : Train_Op<"slice", [Pure, Infer, ViewLike, FollowsPrecision, RuleLocal, Grad]> {
  let summary = "a box of the operand";
  let description = [{
    One start, size and step per dimension; steps are positive.
    *Constraints:* start + (size - 1) * step < dimension.
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$starts, DenseI64ArrayAttr:$sizes,
                       DenseI64ArrayAttr:$steps);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `starts` $starts `sizes` $sizes `steps` $steps attr-dict `:` type($x)";
  let hasVerifier = 1;
}

def Train_PadOp : Train_Op<"pad", [Pure, Infer, FollowsPrecision, RuleLocal, Grad]> {
  let summary = "constant padding, `interior` elements between neighbours";
  let description = [{
    With value 0 it is the adjoint of `slice` (interior = step - 1).
    *Constraints:* paddings are not negative.
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                       DenseI64ArrayAttr:$interior, F64Attr:$value);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `low` $low `high` $high `interior` $interior `value` $value attr-dict `:` type($x)";
}

def Train_ConcatOp : Train_Op<"concat", [Pure, Infer, FollowsPrecision, Rule, Grad]> {
  let summary = "concatenation along one axis";
  let arguments = (ins Variadic<Tensor>:$inputs, I64Attr:$axis);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$inputs `axis` $axis attr-dict `:` type($inputs)";
}

def Train_GatherOp : Train_Op<"gather", [Pure, Infer, LowPrecision, RuleLocal, Grad]> {
  let summary = "slices of a table along one axis, chosen by integer ids";
  let description = [{
    Result shape: table[:axis] + ids[batch:] + table[axis+1:]. The first `batch`
    dimensions, up to the axis, are those of both: each of their elements has a
    table and ids of its own. `rows` is the global
    size of the axis and `first_row` the local offset's axes: when the axis is
    split, ids outside the local rows give zeros and the result is a partial sum.

    ```mlir
    %y = train.gather %t[%i] axis 1 {batch = 1 : i64} : tensor<8x5x4xf32>, tensor<8x2xi64>
    ```
  }];
  let arguments = (ins Tensor:$table, Tensor:$ids, I64Attr:$axis, OptionalAttr<I64Attr>:$rows,
                       OptionalAttr<StrAttr>:$split_axis, DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$table `[` $ids `]` `axis` $axis attr-dict `:` type($table) `,` type($ids)";
}

def Train_ScatterAddOp : Train_Op<"scatter_add", [Pure, AddsInPlace, RuleLocal, Grad]> {
  let summary = "adjoint of gather: sums slices into a zero table";
  let arguments = (ins Tensor:$dy, Tensor:$ids, I64Attr:$axis, OptionalAttr<I64Attr>:$rows,
                       OptionalAttr<StrAttr>:$split_axis, DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Tensor:$table);
  let assemblyFormat = "$dy `at` $ids `axis` $axis attr-dict `:` type($dy) `,` type($ids) `to` type($table)";
}

def Train_ScatterReduceOp : Train_Op<"scatter_reduce", [Pure, Rule, Grad]> {
  let summary = "the product, largest or smallest of the rows with one id";
  let description = [{
    updates [batch, n, rest], ids [batch, n] (not negative), table [batch, rows,
    rest]. `batch` dimensions are those of all, `reduction` is "mul", "max" or
    "min". A row that no id names is zero.

    ```mlir
    %t = train.scatter_reduce "max" %u at %i : tensor<5x4xf32>, tensor<5xi64> to tensor<9x4xf32>
    ```
  }];
  let arguments = (ins Tensor:$updates, Tensor:$ids, StrAttr:$reduction,
                       DefaultValuedAttr<I64Attr, "0">:$batch);
  let results = (outs Tensor:$table);
  let assemblyFormat = "$reduction $updates `at` $ids attr-dict `:` type($updates) `,` type($ids) `to` type($table)";
}

def Train_TopKOp : Train_Op<"top_k", [Pure, Rule, Grad]> {
  let summary = "the k largest (or smallest) elements along the last dimension";
  let description = [{
    values and indices (i64) have x's shape with k as their last dimension, in
    order; of equal elements the first comes first, a NaN counts as largest.
    The gradient adds to the chosen elements.
  }];
  let arguments = (ins Tensor:$x, UnitAttr:$smallest);
  let results = (outs Tensor:$values, Tensor:$indices);
  let assemblyFormat = "$x (`smallest` $smallest^)? attr-dict `:` type(operands) `->` type(results)";
}

//===----------------------------------------------------------------------===//
// Chapter: reductions and contractions
//===----------------------------------------------------------------------===//

class Train_Reduce<string mnemonic, list<Trait> traits> : Train_Op<mnemonic, [Pure, Infer, Rule] # traits> {
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$axes, BoolAttr:$keepdims);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `axes` $axes `keepdims` $keepdims attr-dict `:` type($x)";
}
def Train_ReduceSumOp : Train_Reduce<"reduce_sum", [AddsInPlace, Grad]> { let summary = "sum over axes"; }
def Train_ReduceMaxOp : Train_Reduce<"reduce_max", [Grad]> { let summary = "maximum over axes"; }

def Train_EinsumOp : Train_Op<"einsum", [Pure, Infer, Contraction, AddsInPlace, LowPrecision, RuleFlops, Grad]> {
  let summary = "contraction of two tensors";
  let description = [{
    Every matrix product is one: `"btk,kn->btn"`. One letter a dimension, at
    most once per tensor, explicit output.
    *Constraints:* equal letters have equal sizes; output letters occur in an
    operand; letters in one operand only are summed if not in the output.
  }];
  let arguments = (ins StrAttr:$equation, Tensor:$lhs, Tensor:$rhs);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$equation $lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let extraClassDeclaration = [{
    struct Letters { std::string lhs, rhs, out; };
    Letters getLetters();
  }];
}

//===----------------------------------------------------------------------===//
// Chapter: neural network ops that later phases want to see whole
//===----------------------------------------------------------------------===//

def Train_SoftmaxOp : Train_Op<"softmax", [Pure, AllTypesMatch<["x", "y"]>, LacksDouble, Rule, Grad, Decomposable]> {
  let summary = "softmax along one axis";
  let arguments = (ins Tensor:$x, I64Attr:$axis);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `axis` $axis attr-dict `:` type($x)";
}
def Train_SoftmaxGradOp : Train_Op<"softmax_grad", [Pure, AllTypesMatch<["dy", "y", "dx"]>, Rule, Decomposable]> {
  let summary = "gradient of softmax: y * (dy - sum(dy * y))";
  let arguments = (ins Tensor:$y, Tensor:$dy, I64Attr:$axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$y `,` $dy `axis` $axis attr-dict `:` type($dx)";
}

def Train_LayerNormOp : Train_Op<"layer_norm", [Pure, AttrSizedOperandSegments, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "layer normalization over the dimensions from `axis` on";
  let description = [{
    y = (x - mean) * rstd * scale + bias, population variance. mean and rstd
    have the shape x[:axis]; scale and bias the shape x[axis:].
  }];
  let arguments = (ins Tensor:$x, Optional<Tensor>:$scale, Optional<Tensor>:$bias, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs Tensor:$y, Tensor:$mean, Tensor:$rstd);
  let assemblyFormat = [{
    $x (`scale` $scale^)? (`bias` $bias^)? `axis` $axis `epsilon` $epsilon attr-dict
    `:` type(operands) `->` type(results)
  }];
}
def Train_LayerNormGradOp : Train_Op<"layer_norm_grad", [Pure, Rule]> {
  let summary = "gradient of layer normalization with respect to x";
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$mean, Tensor:$rstd, Optional<Tensor>:$scale, I64Attr:$axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = [{
    $dy `,` $x `,` $mean `,` $rstd (`scale` $scale^)? `axis` $axis attr-dict `:` type(operands) `->` type(results)
  }];
}
def Train_LayerNormParamGradOp : Train_Op<"layer_norm_param_grad", [Pure, AddsInPlace, Rule]> {
  let summary = "gradients of scale and bias of a layer normalization";
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$mean, Tensor:$rstd, I64Attr:$axis);
  let results = (outs Tensor:$dscale, Tensor:$dbias);
  let assemblyFormat = "operands `axis` $axis attr-dict `:` type(operands) `->` type(results)";
}
def Train_RmsNormOp : Train_Op<"rms_norm", [Pure, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "RMS normalization over the dimensions from `axis` on";
  let arguments = (ins Tensor:$x, Optional<Tensor>:$scale, I64Attr:$axis, F64Attr:$epsilon);
  let results = (outs Tensor:$y, Tensor:$rstd);
  let assemblyFormat = "$x (`scale` $scale^)? `axis` $axis `epsilon` $epsilon attr-dict `:` type(operands) `->` type(results)";
}
def Train_RmsNormGradOp : Train_Op<"rms_norm_grad", [Pure, Rule]> {
  let summary = "gradient of RMS normalization with respect to x";
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$rstd, Optional<Tensor>:$scale, I64Attr:$axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `,` $x `,` $rstd (`scale` $scale^)? `axis` $axis attr-dict `:` type(operands) `->` type(results)";
}
def Train_RmsNormParamGradOp : Train_Op<"rms_norm_param_grad", [Pure, AddsInPlace, Rule]> {
  let summary = "gradient of the scale of an RMS normalization";
  let arguments = (ins Tensor:$dy, Tensor:$x, Tensor:$rstd, I64Attr:$axis);
  let results = (outs Tensor:$dscale);
  let assemblyFormat = "operands `axis` $axis attr-dict `:` type(operands) `->` type(results)";
}

def Train_SoftmaxCrossEntropyOp : Train_Op<"softmax_cross_entropy", [Pure, AnyPrecision, LacksDouble, Rule, Grad, Decomposable]> {
  let summary = "cross entropy per row: lse(logits) - logits[label]";
  let description = [{
    logits [..., V], labels [...] integers; loss and lse [...]. Rows whose label
    is `ignore_index` have loss 0. The mean over rows is written with reduce_sum
    and a count, so that it stays a mean over the global batch.
  }];
  let arguments = (ins Tensor:$logits, Tensor:$labels, OptionalAttr<I64Attr>:$ignore_index);
  let results = (outs Tensor:$loss, Tensor:$lse);
  let assemblyFormat = "$logits `,` $labels (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
}
def Train_SoftmaxCrossEntropyGradOp : Train_Op<"softmax_cross_entropy_grad", [Pure, RuleLocal]> {
  let summary = "dlogits = (exp(logits - lse) - onehot(label)) * dloss";
  let arguments = (ins Tensor:$logits, Tensor:$labels, Tensor:$lse, Tensor:$dloss,
                       OptionalAttr<I64Attr>:$ignore_index, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$dlogits);
  let assemblyFormat = "operands (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
}
def Train_PickOp : Train_Op<"pick", [Pure, LacksDouble, RuleLocal, Grad]> {
  let summary = "x[..., label]; 0 where the label is not among the columns";
  let arguments = (ins Tensor:$x, Tensor:$labels, OptionalAttr<I64Attr>:$ignore_index, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `at` $labels (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
}
def Train_PickGradOp : Train_Op<"pick_grad", [Pure, RuleLocal]> {
  let summary = "adjoint of pick";
  let arguments = (ins Tensor:$dy, Tensor:$labels, OptionalAttr<I64Attr>:$ignore_index, OptionalAttr<StrAttr>:$split_axis);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `at` $labels (`ignore` $ignore_index^)? attr-dict `:` type(operands) `->` type(results)";
}

def Train_AttentionOp : Train_Op<"attention", [Pure, Contraction, LowPrecision, LacksDouble, RuleFlops, Grad]> {
  let summary = "scaled dot-product attention";
  let description = [{
    q [b, tq, h, d]; k, v [b, tk, hk, d] with hk dividing h (grouped queries);
    out as q, lse [b, h, tq] (f32). mask: bool (true attends) or float (added),
    broadcastable to [b, h, tq, tk]. causal: key j <= query i + tk - tq.
  }];
  let arguments = (ins Tensor:$q, Tensor:$k, Tensor:$v, Optional<Tensor>:$mask, F64Attr:$scale, UnitAttr:$causal);
  let results = (outs Tensor:$out, Tensor:$lse);
  let assemblyFormat = [{
    $q `,` $k `,` $v (`mask` $mask^)? `scale` $scale (`causal` $causal^)? attr-dict `:` type(operands) `->` type(results)
  }];
}
def Train_AttentionGradOp : Train_Op<"attention_grad", [Pure, Contraction, RuleFlops]> {
  let summary = "gradients of q, k and v of an attention";
  let arguments = (ins Tensor:$q, Tensor:$k, Tensor:$v, Tensor:$out, Tensor:$lse, Tensor:$dout,
                       Optional<Tensor>:$mask, F64Attr:$scale, UnitAttr:$causal);
  let results = (outs Tensor:$dq, Tensor:$dk, Tensor:$dv);
  let assemblyFormat = [{
    $q `,` $k `,` $v `,` $out `,` $lse `,` $dout (`mask` $mask^)? `scale` $scale (`causal` $causal^)? attr-dict
    `:` type(operands) `->` type(results)
  }];
}

def Train_RotaryOp : Train_Op<"rotary", [Pure, FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "rotary position embedding; `inverse` is its adjoint";
  let description = [{x [b, t, h, d]; cos and sin [1|b, t, 1, d/2].}];
  let arguments = (ins Tensor:$x, Tensor:$cos, Tensor:$sin, UnitAttr:$interleaved, UnitAttr:$inverse);
  let results = (outs Tensor:$y);
  let assemblyFormat = [{
    $x `,` $cos `,` $sin (`interleaved` $interleaved^)? (`inverse` $inverse^)? attr-dict `:` type(operands) `->` type(results)
  }];
}

def Train_BatchMeanOp : Train_Op<"batch_mean", [Pure, SameOperandsAndResultType, Rule, Grad]> {
  let summary = "mean over the samples that a rank computes together, at each of them";
  let description = [{
    y[i, ...] is the mean of x[j, ...] over the samples j of i's microbatch on
    i's replica. So its value depends on how the batch is split, as batch
    normalization does under gradient accumulation and data parallelism; a
    split dimension 0 needs no communication.
    *Lifespan:* `lower-batch-statistics` makes a sum of it, of local shapes.

    ```mlir
    %m = train.batch_mean %x : tensor<8x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($y)";
}

def Train_TrackOp : Train_Op<"track", [AllTypesMatch<["running", "updated"]>, Rule]> {
  let summary = "the running average of a statistic, one microbatch further";
  let description = [{
    updated = running * keep + statistic[0, ...] * (1 - keep): what the
    parameter holds afterwards. `statistic` [n, ...] comes from batch_mean and
    is equal at all samples of a microbatch. `variance`: it is one of
    n * `each` numbers and is unbiased first, by n * each / (n * each - 1).
    The forward pass stores it once a microbatch, in their order; after the
    step the replicas average theirs. Recomputation leaves it out.
    *Lifespan:* made by `legalize-onnx`, gone after `lower-batch-statistics`.
    *Constraints:* `running` is a train.read until stages are cut; its shape is
    the statistic's without the first dimension.

    ```mlir
    %u = train.track %m, %r keep 9.0e-01 each 64 : tensor<8x16xf32>, tensor<16xf32>
    ```
  }];
  let arguments = (ins Tensor:$statistic, Tensor:$running, F64Attr:$keep, I64Attr:$each,
                       UnitAttr:$variance);
  let results = (outs Tensor:$updated);
  let assemblyFormat = [{
    $statistic `,` $running `keep` $keep `each` $each (`variance` $variance^)? attr-dict
    `:` type($statistic) `,` type($running)
  }];
  let hasVerifier = 1;
}

class Train_Windowed<string mnemonic, list<Trait> traits> : Train_Op<mnemonic, [Pure] # traits>;
def Train_ConvOp : Train_Windowed<"conv", [Contraction, LowPrecision, LacksDouble, RuleFlopsLocal, Grad]> {
  let summary = "convolution, N C spatial; pads are begins then ends";
  let arguments = (ins Tensor:$x, Tensor:$w, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads,
                       DenseI64ArrayAttr:$dilations, I64Attr:$group);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `,` $w attr-dict `:` type(operands) `->` type(results)";
}
def Train_ConvGradInputOp : Train_Windowed<"conv_grad_input", [Contraction, LacksDouble, RuleFlopsLocal, Grad]> {
  let summary = "gradient of a convolution with respect to its input: a transposed convolution";
  let arguments = (ins Tensor:$dy, Tensor:$w, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads,
                       DenseI64ArrayAttr:$dilations, I64Attr:$group);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `,` $w attr-dict `:` type(operands) `->` type(results)";
}
def Train_ConvGradWeightOp : Train_Windowed<"conv_grad_weight", [Contraction, AddsInPlace, RuleFlopsLocal]> {
  let summary = "gradient of a convolution with respect to its weight";
  let arguments = (ins Tensor:$x, Tensor:$dy, DenseI64ArrayAttr:$strides, DenseI64ArrayAttr:$pads,
                       DenseI64ArrayAttr:$dilations, I64Attr:$group);
  let results = (outs Tensor:$dw);
  let assemblyFormat = "$x `,` $dy attr-dict `:` type(operands) `->` type(results)";
}
def Train_MaxPoolOp : Train_Windowed<"max_pool", [FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "maximum in windows, and the flat spatial position of the first maximum";
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
                       DenseI64ArrayAttr:$pads, DenseI64ArrayAttr:$dilations);
  let results = (outs Tensor:$y, Tensor:$index);
  let assemblyFormat = "$x attr-dict `:` type(operands) `->` type(results)";
}
def Train_MaxPoolGradOp : Train_Windowed<"max_pool_grad", [LacksDouble, Rule, Grad]> {
  let summary = "gradient of max_pool";
  let arguments = (ins Tensor:$dy, Tensor:$index);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy `,` $index attr-dict `:` type(operands) `->` type(results)";
}
def Train_AvgPoolOp : Train_Windowed<"avg_pool", [FollowsPrecision, LacksDouble, Rule, Grad]> {
  let summary = "average in windows";
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
                       DenseI64ArrayAttr:$pads, UnitAttr:$count_include_pad);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type(operands) `->` type(results)";
}
def Train_AvgPoolGradOp : Train_Windowed<"avg_pool_grad", [LacksDouble, Rule]> {
  let summary = "gradient of avg_pool";
  let arguments = (ins Tensor:$dy, DenseI64ArrayAttr:$kernel, DenseI64ArrayAttr:$strides,
                       DenseI64ArrayAttr:$pads, UnitAttr:$count_include_pad);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "$dy attr-dict `:` type(operands) `->` type(results)";
}

//===----------------------------------------------------------------------===//
// Chapter: the update
//===----------------------------------------------------------------------===//

def Train_SquareSumOp : Train_Op<"square_sum", [Pure, Rule]> {
  let summary = "sum of squares as a tensor of one element";
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type(operands) `->` type(results)";
}
def Train_ClipFactorOp : Train_Op<"clip_factor", [Pure, Rule]> {
  let summary = "global norm from squares [P], and min(1, max_norm / (norm + 1e-6))";
  let arguments = (ins Tensor:$squares, F64Attr:$max_norm);
  let results = (outs Tensor:$norm, Tensor:$factor);
  let assemblyFormat = "$squares `max_norm` $max_norm attr-dict `:` type(operands) `->` type(results)";
}

#endif
