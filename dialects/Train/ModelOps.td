// Chapter: model, parameters, constants.
#ifndef MERAK_TRAIN_MODEL_OPS
#define MERAK_TRAIN_MODEL_OPS

include "dialects/Train/TrainBase.td"

let opDocGroup = Train_ModelOps in {

def Train_OnnxNodeOp : Train_Op<"onnx_node"> {
  let summary = "one ONNX node, as it stands in the file";
  let description = [{
    Carries the operator's name, its domain (none: ONNX's own), the opset that
    the model imports and all attributes, so that import needs to understand
    none of them. A missing optional input is a `train.none`.

    *Constraints:* none; import is total.

    *Lifespan:* made by import, gone after `legalize-onnx`.

    ```mlir
    %y = train.onnx_node "Gemm" opset 13(%x, %w, %b) {transB = 1 : i64} : (tensor<8x4xf32>, tensor<10x4xf32>, tensor<10xf32>) -> tensor<8x10xf32>
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
  let description = [{
    Holds the place of an input that a node leaves out before one that it has.

    *Constraints:* none.

    *Lifespan:* made by import, gone after `legalize-onnx`.

    ```mlir
    %0 = train.none : none
    ```
  }];
  let results = (outs NoneType:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def Train_ParameterOp : Train_Op<"parameter", [Symbol]> {
  let summary = "a named initializer: a trained parameter or a frozen table";
  let description = [{
    Holds no bytes: `source` says in which file they lie. Without a source and a
    value the weights are absent: the plan can be compiled, not run. `value`
    holds what the compiler computed itself (a folded table), or the weights of
    a model in text form. `trainable`: an optimizer changes it.

    *Constraints:* at most one of `source` and `value`; `value` has the type.

    ```mlir
    train.parameter @"wte.weight" : tensor<96x64xf32> trainable from <"model.onnx.data" at 4096 length 24576>
    train.parameter @table : tensor<2xi64> = dense<[3, 5]> : tensor<2xi64>
    ```
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
  let description = [{
    The whole parameter, as it is before this step's update.

    *Constraints:* `parameter` names a `train.parameter` of the result's type.

    *Lifespan:* made by import; outlining of stages turns it into `pipe.load`.

    ```mlir
    train.parameter @w : tensor<64x32xf32> trainable
    %0 = train.read @w : tensor<64x32xf32>
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$parameter);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$parameter attr-dict `:` type($result)";
}

def Train_ConstantOp : Train_Op<"constant", [Pure, ConstantLike, AllTypesMatch<["value", "result"]>, Rule]> {
  let summary = "a small constant";
  let description = [{
    Splats of any shape and tensors of few elements; `finish-graph` makes larger
    ones a `train.parameter` with a value.

    *Constraints:* value and result have one type.

    ```mlir
    %0 = train.constant dense<0.5> : tensor<8x4xf32>
    ```
  }];
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$value attr-dict";
  let hasFolder = 1;
}

def Train_UpdateOp : Train_Op<"update", [Rule, DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "the optimizer's step on one parameter";
  let description = [{
    `gradient` is the sum over all uses of the parameter, over the global batch.
    Every trained parameter has exactly one update. With `ids` the gradient is
    row-sparse, as `coalesce` makes it: the optimizer takes its step on these rows
    of the parameter and of its states and leaves all others as they are.

    *Constraints:* `parameter` names a `train.parameter` of the type of
    `parameter_value`. Without `ids` that is the type of `gradient`; with them the
    gradient has the dimensions of ids, then those of the parameter behind its
    first one, and its element type.

    *Lifespan:* made by `differentiate`, `ids` by `sparse-updates`; outlining of
    stages turns it into `pipe.update`.

    ```mlir
    train.parameter @w : tensor<64x32xf32> trainable
    train.update @w : %w by %dw : tensor<64x32xf32>, tensor<64x32xf32>
    train.update @w : %w by %rows at %ids : tensor<64x32xf32>, tensor<8x32xf32>, tensor<8xi64>
    ```
  }];
  let arguments = (ins Tensor:$parameter_value, Tensor:$gradient, Optional<Integers>:$ids, FlatSymbolRefAttr:$parameter);
  let assemblyFormat = [{
    $parameter `:` $parameter_value `by` $gradient (`at` $ids^)? attr-dict `:` type(operands)
  }];
  let hasVerifier = 1;
}

def Train_TrackOp : Train_Op<"track", [AllTypesMatch<["running", "updated"]>, Rule]> {
  let summary = "the running average of a statistic, one microbatch further";
  let description = [{
    `updated = running * keep + statistic[0, ...] * (1 - keep)`: what the
    parameter holds afterwards. `statistic` [n, ...] comes from `batch_mean` and
    is equal at all n samples of a microbatch; `running` and `updated` [...].
    `variance`: it is one of n * `each` numbers and is unbiased first, by
    n * each / (n * each - 1).

    The forward pass stores it once a microbatch, in their order; after the
    step the replicas average theirs. Recomputation leaves it out.

    *Constraints:* 0 <= keep <= 1 and each >= 1; `running` has the statistic's
    element type and its shape without the first dimension, `updated` the type
    of `running`.

    *Lifespan:* made by `legalize-onnx`, gone after `lower-batch-statistics`.

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

} // opDocGroup

#endif
