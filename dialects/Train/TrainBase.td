// What the definitions of all train ops share: names for interfaces and types,
// the op classes, and the chapters of the page made from them.
#ifndef MERAK_TRAIN_BASE
#define MERAK_TRAIN_BASE

include "dialects/Train/TrainDialect.td"
include "dialects/Train/TrainInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

defvar Tensor = AnyRankedTensor;
defvar Bools = RankedTensorOf<[I1]>;
// Bits, ids, labels and positions: integers of any width and signedness.
defvar Integers = RankedTensorOf<[AnyInteger]>;

defvar Rule = DeclareOpInterfaceMethods<ShardingRuleOpInterface>;
defvar RuleFlops = DeclareOpInterfaceMethods<ShardingRuleOpInterface, ["getFlops"]>;
defvar RuleFlopsLocal = DeclareOpInterfaceMethods<ShardingRuleOpInterface, ["getFlops", "localize"]>;
defvar RuleLocal = DeclareOpInterfaceMethods<ShardingRuleOpInterface, ["localize"]>;
defvar Grad = DeclareOpInterfaceMethods<DifferentiableOpInterface>;
defvar Decomposable = DeclareOpInterfaceMethods<DecomposableOpInterface>;
defvar Infer = DeclareOpInterfaceMethods<InferTypeOpInterface>;

def Train_ModelOps : OpDocGroup {
  let summary = "Model, parameters, constants";
  let description = [{What a model is made of, and how it reads its weights.}];
}
def Train_ElementwiseOps : OpDocGroup {
  let summary = "Element-wise";
  let description = [{
    One result element from one element of each operand. *Broadcasting* is
    NumPy's: shapes are compared from their last dimension, a missing dimension
    counts as 1, and a dimension of size 1 stretches to the size of the others.
  }];
}
def Train_ShapeOps : OpDocGroup {
  let summary = "Shape";
  let description = [{Elements are moved, repeated or left out; none is computed.}];
}
def Train_TableOps : OpDocGroup {
  let summary = "Tables";
  let description = [{
    Rows of a table, chosen by integer ids. Shapes are written as lists that `+`
    joins: `table[:axis]` are the dimensions before the axis, `table[axis+1:]`
    those behind it.
  }];
}
def Train_ReductionOps : OpDocGroup {
  let summary = "Reductions and contractions";
  let description = [{Sums, maxima and every matrix product.}];
}
def Train_NetworkOps : OpDocGroup {
  let summary = "Neural network ops";
  let description = [{
    Ops that later phases want to see whole. A `_grad` op stands for what its
    forward op's gradient computes.
  }];
}
def Train_WindowOps : OpDocGroup {
  let summary = "Windows";
  let description = [{
    Tensors are [N, C, spatial...] with n >= 1 spatial dimensions. `kernel`,
    `strides` and `dilations` have n entries, `pads` 2n: those before each
    dimension, then those behind. A dimension of size s gives

        floor((s + before + behind - (dilation * (kernel - 1) + 1)) / stride) + 1

    windows.
  }];
}
def Train_UpdateOps : OpDocGroup {
  let summary = "Gradient clipping";
  let description = [{The norm of all gradients and what to scale them by.}];
}

class Train_Op<string mnemonic, list<Trait> traits = []>
    : Op<Train_Dialect, mnemonic, traits>;

#endif
