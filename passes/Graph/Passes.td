// Passes of the graph phase behind the conversion from ONNX: to the training step.
#ifndef MERAK_GRAPH_PASSES
#define MERAK_GRAPH_PASSES

include "mlir/Pass/PassBase.td"

def CanonicalizeGraph : Pass<"canonicalize-graph", "::mlir::ModuleOp"> {
  let summary = "fold constants, reshapes and transposes, so that patterns have one form";
  let description = [{
    Transposes go into einsum equations, reshapes that only join leading
    dimensions go behind the ops that do not look at them, ops on constants are
    evaluated, neutral operands dropped, equal ops merged.
  }];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def RaiseNorms : Pass<"raise-norms", "::mlir::ModuleOp"> {
  let summary = "layer norm and RMS norm written out become one op each";
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def RaiseActivations : Pass<"raise-activations", "::mlir::ModuleOp"> {
  let summary = "the erf and the tanh form of GELU become one op";
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def RaiseCrossEntropy : Pass<"raise-cross-entropy", "::mlir::ModuleOp"> {
  let summary = "picked log-softmax becomes softmax_cross_entropy";
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def RaiseRotary : Pass<"raise-rotary", "::mlir::ModuleOp"> {
  let summary = "x * cos + rotate_half(x) * sin becomes rotary";
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def RaiseAttention : Pass<"raise-attention", "::mlir::ModuleOp"> {
  let summary = "softmax(q k^T * scale + mask) v becomes attention";
  let description = [{
    A constant lower-triangular mask becomes the flag `causal`, repeated key and
    value heads become grouped queries. A mask that depends on a trained
    parameter (a learned relative bias) has a gradient: such an attention is
    left as it is.
  }];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def FinishGraph : Pass<"finish-graph", "::mlir::ModuleOp"> {
  let summary = "tables out of the function, one read per use of a parameter";
  let description = [{
    Constants that repeat along a dimension keep one copy and a train.expand, so
    that the dimension can be split; what is then larger than 1024 elements
    becomes a frozen train.parameter with a value. Every use of a parameter has
    its own train.read beside it.
  }];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def LowerPrecision : Pass<"lower-precision", "::mlir::ModuleOp"> {
  let summary = "16 bits for the bulk of the computation, f32 where digits matter";
  let description = [{
    Input: `func @model`, forward ops only, in the types of the model. Output:
    the same with train.cast, so that matrix products, convolutions, attention
    and gathered rows are in 16 bits, and so is what follows them element by
    element: everywhere in the type `low`, or, with `low=model`, in bf16 where
    the model says so. Parameters, losses, sums and statistics are f32. What a
    model has in f16 is then computed in f32, and so is in any case what
    parameters in f64 reach, with a warning. A constant that is too large for f16
    keeps what follows it in f32. With `low=model` a model in f32 without
    conversions stays as it is.

    ```mlir
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xf32>, tensor<4x2xf32>
    ```
    becomes
    ```mlir
    %0 = train.cast %x : tensor<8x4xf32> to tensor<8x4xbf16>
    %1 = train.cast %w : tensor<4x2xf32> to tensor<4x2xbf16>
    %y = train.einsum "ab,bc->ac" %0, %1 : tensor<8x4xbf16>, tensor<4x2xbf16>
    ```
  }];
  let options = [Option<"low", "low", "std::string", "\"bf16\"", "bf16 or f16: of all of the model; model: what it says">,
                 Option<"train", "train", "bool", "true", "else roundings to f16 and types of outputs stay">];
  let statistics = [Statistic<"valuesLowered", "valuesLowered", "values in 16 bits">];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def RoundProducts : Pass<"round-products", "::mlir::ModuleOp"> {
  let summary = "operands of products with weights in 8 bits";
  let description = [{
    Input: what `lower-precision` makes with low=bf16. Output: the same, with
    `rounds` on the products of bf16 that multiply data with what is made of
    parameters (of two dimensions or more), unless no product, convolution or
    attention comes after them: these make the logits. Products of activations
    keep 16 bits. `low_precision` of `train.config` becomes f8E4M3FN if there
    are any.

    ```mlir
    %y = train.einsum "ab,bc->ac" %x, %w : tensor<8x4xbf16>, tensor<4x2xbf16>
    ```
    becomes
    ```mlir
    %y = train.einsum "ab,bc->ac" %x, %w {rounds = [f8E4M3FN, f8E4M3FN]} : tensor<8x4xbf16>, tensor<4x2xbf16>
    ```
  }];
  let statistics = [Statistic<"productsRounded", "productsRounded", "products in 8 bits">];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def Differentiate : Pass<"differentiate", "::mlir::ModuleOp"> {
  let summary = "append gradients and updates to the forward function";
  let description = [{
    Input: `func @model(...) -> loss`. Output: `func @step` with a role on every
    op and one train.update per trained parameter. In inference the function is
    only renamed.
  }];
  let options = [Option<"train", "train", "bool", "true", "build gradients and updates">];
  let statistics = [Statistic<"opsRemoved", "opsRemoved", "unused gradient ops removed">];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def SparseUpdates : Pass<"sparse-updates", "::mlir::ModuleOp"> {
  let summary = "row-sparse gradients of tables that are only looked up";
  let description = [{
    Input: `func @step` with gradients and updates. Where the gradient of a table
    is what lookups of its rows add to (`train.scatter_add` along axis 0, several
    of them one after the other), it becomes the rows that were looked up with
    their ids, and the update one of these rows alone. A table that anything else
    reads, such as one that is the last product's weight too, keeps its gradient;
    a remark says why.

    `lazy`: rows without a gradient stay as they are, as under sparse optimizers
    of frameworks. `exact`: where the optimizer of the step would change such rows,
    the update carries `train.replayed`: rows take the steps that they were left out
    of before they are looked up. And only tables that have at least as many rows as
    a step has ids.

    `delayed`: coalesces carry `train.delayed`, the inputs that hold the table's ids
    with their types, unless rows are owed steps or ids are computed.

    ```mlir
    %dt = train.scatter_add %dy at %ids axis 0 : tensor<8x16xf32>, tensor<8xi64> to tensor<96x16xf32>
    train.update @t : %t by %dt : tensor<96x16xf32>, tensor<96x16xf32>
    ```
    becomes
    ```mlir
    %rows, %unique = train.coalesce %dy at %ids size 96 : tensor<8x16xf32>, tensor<8xi64> to tensor<8x16xf32>
    train.update @t : %t by %rows at %unique : tensor<96x16xf32>, tensor<8x16xf32>, tensor<8xi64>
    ```
  }];
  let options = [Option<"mode", "mode", "std::string", "\"lazy\"", "lazy or exact">,
                 Option<"rests", "rests", "bool", "false",
                        "the optimizer asked for leaves rows without a gradient as they are">,
                 Option<"given", "given", "bool", "false", "it goes before one that the model brings">,
                 ListOption<"touched", "touched", "std::string",
                            "NAME=SHARE, the part of a table's rows that a step looks up">,
                 Option<"data", "data", "std::string", "\"\"",
                        "training data, in which that is counted where it is not given">,
                 Option<"delayed", "delayed", "bool", "false",
                        "rows that no lookup of the next step needs may be updated beside it">];
  let statistics = [Statistic<"sparseTables", "sparseTables", "tables with row-sparse gradients">];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

#endif
