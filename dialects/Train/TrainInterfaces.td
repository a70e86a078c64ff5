// What planning, autodiff and partitioning ask of an op.
#ifndef MERAK_TRAIN_INTERFACES
#define MERAK_TRAIN_INTERFACES

include "mlir/IR/OpBase.td"

// Traits.h says what they mean.
class Train_Trait<string name> : NativeOpTrait<name> {
  let cppNamespace = "::merak::train";
}
def Pointwise : Train_Trait<"Pointwise">;
def Broadcasts : Train_Trait<"Broadcasts">;
def ViewLike : Train_Trait<"ViewLike">;
def Contraction : Train_Trait<"Contraction">;
def AddsInPlace : Train_Trait<"AddsInPlace">;
def WidensResult : Train_Trait<"WidensResult">;
def LowPrecision : Train_Trait<"LowPrecision">;
def FollowsPrecision : Train_Trait<"FollowsPrecision">;
def AnyPrecision : Train_Trait<"AnyPrecision">;
def LacksDouble : Train_Trait<"LacksDouble">;

def ShardingRuleOpInterface : OpInterface<"ShardingRuleOpInterface"> {
  let cppNamespace = "::merak::train";
  let description = [{
    The op's iteration factors, declared once: feeds propagation, the strategies
    a search enumerates, SPMD partitioning and microbatching.
  }];
  let methods = [
    InterfaceMethod<"The rule for the op's current shapes.",
      "::merak::ShardingRule", "getShardingRule", (ins)>,
    InterfaceMethod<[{Floating-point operations for the current shapes.}],
      "double", "getFlops", (ins), "", [{
        double elements = 0;
        for (::mlir::Value result : $_op->getResults())
          if (auto type = ::llvm::dyn_cast<::mlir::RankedTensorType>(result.getType()))
            elements += static_cast<double>(type.getNumElements());
        return elements;
      }]>,
    InterfaceMethod<[{
        Changes attributes of a clone that has local operands and results so
        that it computes the local part. `$_op` is the clone; the arguments are
        the global types.}],
      "void", "localize", (ins "::mlir::TypeRange":$globalOperands, "::mlir::TypeRange":$globalResults), "", [{ return; }]>
  ];
}

def DifferentiableOpInterface : OpInterface<"DifferentiableOpInterface"> {
  let cppNamespace = "::merak::train";
  let methods = [
    InterfaceMethod<[{
        Builds the gradients of the operands. `resultGrads[i]` is null where a
        result has no gradient; `wanted[j]` says which operands need one. Leaves
        `operandGrads[j]` null where there is none (integers, masks).}],
      "void", "buildGradient", (ins "::mlir::OpBuilder &":$builder,
        "::llvm::ArrayRef<::mlir::Value>":$resultGrads, "::llvm::ArrayRef<bool>":$wanted,
        "::llvm::SmallVectorImpl<::mlir::Value> &":$operandGrads)>
  ];
}

def EpilogueOpInterface : OpInterface<"EpilogueOpInterface"> {
  let cppNamespace = "::merak::train";
  let description = [{
    What the kernel of a neighbouring matrix product can do of the op, so that no
    other kernel reads and writes the result once more. Which products, in what
    order and how far away: `passes/Planning/Epilogues.h`.
  }];
  let methods = [
    InterfaceMethod<"What the op is to a product, with its present attributes.",
      "::merak::Epilogue", "getEpilogue">
  ];
}

def DecomposableOpInterface : OpInterface<"DecomposableOpInterface"> {
  let cppNamespace = "::merak::train";
  let methods = [
    InterfaceMethod<[{
        Builds the op out of ops whose factors are parallel, sum or max, and
        returns the replacement of each result.}],
      "::llvm::SmallVector<::mlir::Value>", "decompose", (ins "::mlir::OpBuilder &":$builder)>
  ];
}

#endif
