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
    "backward_weight", "update") says which.
  }];
  let useDefaultAttributePrinterParser = 1;
}

def Train_ComparePredicate : I32EnumAttr<"ComparePredicate", "comparison", [
  I32EnumAttrCase<"eq", 0>, I32EnumAttrCase<"ne", 1>, I32EnumAttrCase<"lt", 2>,
  I32EnumAttrCase<"le", 3>, I32EnumAttrCase<"gt", 4>, I32EnumAttrCase<"ge", 5>]> {
  let cppNamespace = "::merak::train";
}

// Where the bytes of an initializer lie. Kind "file": `path` relative to the
// model's folder; "absent": declared only; "constant": in the attribute
// `value` of the parameter.
def Train_SourceAttr : AttrDef<Train_Dialect, "Source"> {
  let mnemonic = "source";
  let summary = "where the bytes of an initializer lie";
  let parameters = (ins StringRefParameter<"">:$path, "uint64_t":$offset, "uint64_t":$length);
  let assemblyFormat = "`<` $path `at` $offset `length` $length `>`";
}

#endif
