// The training graph: thin ops with ONNX semantics, one global batch.
#ifndef MERAK_TRAIN_DIALECT
#define MERAK_TRAIN_DIALECT

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"

def Train_Dialect : Dialect {
  let name = "train";
  let cppNamespace = "::merak::train";
  let summary = "the training graph of a model, before it is partitioned";
  let description = [{
    Ops on ranked tensors with static shapes, with the semantics of ONNX and
    NumPy broadcasting. The graph is written for one global batch. After the
    graph phase a step function holds forward, backward and gradient ops; the
    discardable attribute `train.role` ("forward", "backward_input",
    "backward_weight", "update") says which. `localize`, in the shard phase,
    makes all shapes those of one rank; what an op says of its shapes holds
    before and after it.

    What kind an op is, passes ask of these traits (`dialects/Train/Traits.h`)
    and interfaces; each op's entry lists those that it has.

    | trait or interface | the op |
    |---|---|
    | `Pointwise` | makes each result element from one element of each operand |
    | `Broadcasts` | has operands that broadcast to the result's shape |
    | `ViewLike` | only moves elements of its first operand |
    | `Contraction` | is a product: tensor parallelism divides its flops, recomputation avoids it |
    | `AddsInPlace` | has a kernel that can add to what the output holds |
    | `LowPrecision` | runs on matrix units in 16 bits under mixed precision |
    | `FollowsPrecision` | computes in the type that its operands have |
    | `AnyPrecision` | takes 16 bits and has f32 results |
    | `LacksDouble` | has no kernel in f64 |
    | `ShardingRuleOpInterface` | declares its iteration factors: how it may be split |
    | `DifferentiableOpInterface` | builds the gradients of its operands |
    | `DecomposableOpInterface` | can be written with ops of parallel, sum and max factors |
  }];
  let useDefaultAttributePrinterParser = 1;
}

def Train_ComparePredicate : I32EnumAttr<"ComparePredicate", "comparison", [
  I32EnumAttrCase<"eq", 0>, I32EnumAttrCase<"ne", 1>, I32EnumAttrCase<"lt", 2>,
  I32EnumAttrCase<"le", 3>, I32EnumAttrCase<"gt", 4>, I32EnumAttrCase<"ge", 5>]> {
  let cppNamespace = "::merak::train";
}

def Train_ScatterReduction : I32EnumAttr<"ScatterReduction", "what becomes of rows with one id", [
  I32EnumAttrCase<"mul", 0>, I32EnumAttrCase<"max", 1>, I32EnumAttrCase<"min", 2>]> {
  let cppNamespace = "::merak::train";
}

def Train_SourceAttr : AttrDef<Train_Dialect, "Source"> {
  let mnemonic = "source";
  let summary = "where the bytes of an initializer lie";
  let description = [{
    `length` bytes from `offset` on in the file `path`, relative to the model's
    folder: `#train.source<"model.onnx.data" at 4096 length 24576>`.
  }];
  let parameters = (ins StringRefParameter<"">:$path, "uint64_t":$offset, "uint64_t":$length);
  let assemblyFormat = "`<` $path `at` $offset `length` $length `>`";
}

#endif
