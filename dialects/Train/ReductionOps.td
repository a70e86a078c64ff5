// Chapter: reductions and contractions.
#ifndef MERAK_TRAIN_REDUCTION_OPS
#define MERAK_TRAIN_REDUCTION_OPS

include "dialects/Train/TrainBase.td"

let opDocGroup = Train_ReductionOps in {

class Train_Reduce<string mnemonic, string what, list<Trait> traits, string note = "">
    : Train_Op<mnemonic, [Pure, Infer, Rule] # traits> {
  let summary = what # " over axes";
  let description = [{
    The }] # what # [{ over the dimensions `axes`, which y lacks, or has with size
    1 if `keepdims` is true.}] # note # [{

    *Constraints:* at least one axis, each within x and none twice; y has x's
    element type and the reduced shape.

    ```mlir
    %y = train.}] # mnemonic # [{ %x axes [1] keepdims false : tensor<8x64xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, DenseI64ArrayAttr:$axes, BoolAttr:$keepdims);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x `axes` $axes `keepdims` $keepdims attr-dict `:` type($x)";
}
def Train_ReduceSumOp : Train_Reduce<"reduce_sum", "sum", [AddsInPlace, Grad, EpilogueOpInterface]> {
  let extraClassDeclaration = [{ ::merak::Epilogue getEpilogue() { return ::merak::Epilogue::Sum; } }];
}
def Train_ReduceMaxOp : Train_Reduce<"reduce_max", "maximum", [Grad], " Ties share the gradient equally.">;

def Train_EinsumOp : Train_Op<"einsum", [Pure, Infer, Contraction, AddsInPlace, WidensResult, LowPrecision, RuleFlops, Grad]> {
  let summary = "contraction of two tensors";
  let description = [{
    Every matrix product is one. The equation names the dimensions of lhs, rhs
    and the result by one letter each; letters that the result lacks are summed
    over: `"btk,kn->btn"` is `result[b,t,n] = sum over k of lhs[b,t,k] * rhs[k,n]`.

    *Constraints:* as many letters for an operand as it has dimensions, none
    twice; equal letters have equal sizes; letters of the result stand once there
    and occur in an operand; lhs, rhs and the result have one element type.
    `rounds` names two types of 8 bits, f8E4M3FN or f8E5M2: each operand is
    multiplied by a power of two that brings the largest magnitude of the part
    that a rank has to the end of the type's range, rounded to the type, and
    divided by it again, before the product; what is not finite becomes not a
    number.

    ```mlir
    %r = train.einsum "btk,kn->btn" %lhs, %rhs : tensor<8x32x64xf32>, tensor<64x16xf32>
    %s = train.einsum "btk,kn->btn" %lhs, %rhs {rounds = [f8E4M3FN, f8E4M3FN]} : tensor<8x32x64xf32>, tensor<64x16xf32>
    ```
  }];
  let arguments = (ins StrAttr:$equation, Tensor:$lhs, Tensor:$rhs, OptionalAttr<TypeArrayAttr>:$rounds);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$equation $lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    struct Letters { std::string lhs, rhs, out; };
    Letters getLetters();
  }];
}

} // opDocGroup

#endif
