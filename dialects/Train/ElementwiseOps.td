// Chapter: element-wise ops.
#ifndef MERAK_TRAIN_ELEMENTWISE_OPS
#define MERAK_TRAIN_ELEMENTWISE_OPS

include "dialects/Train/TrainBase.td"

let opDocGroup = Train_ElementwiseOps in {

// `formula` says what y is of x; `note` is added to the description. `linear`:
// the groups of operands that may be partial sums together, as ShardingRule has
// them: of a negation "{{0}}", of an addition "{{0, 1}}", of a product
// "{{0}, {1}}". Sums of what is left out are reduced before the op.
class Train_Unary<string mnemonic, string formula, list<Trait> traits = [Grad],
                  string note = "", TypeConstraint type = Tensor, string element = "f32",
                  string linear = "{}">
    : Train_Op<mnemonic, [Pure, SameOperandsAndResultType, Pointwise, Rule] # traits> {
  let summary = "element-wise " # formula;
  let description = [{
    `y = }] # formula # [{`, element by element.}] # note # [{

    *Constraints:* x and y have one type.

    ```mlir
    %y = train.}] # mnemonic # [{ %x : tensor<8x4x}] # element # [{>
    ```
  }];
  let arguments = (ins type:$x);
  let results = (outs type:$y);
  let assemblyFormat = "$x attr-dict `:` type($y)";
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation(), }] # linear # [{); }
  }];
}
def Train_NegOp : Train_Unary<"neg", "-x", [Grad, FollowsPrecision], linear = "{{0}}">;
def Train_ExpOp : Train_Unary<"exp", "e^x">;
def Train_LogOp : Train_Unary<"log", "ln(x)">;
def Train_SqrtOp : Train_Unary<"sqrt", "sqrt(x)">;
def Train_ReciprocalOp : Train_Unary<"reciprocal", "1 / x">;
def Train_AbsOp : Train_Unary<"abs", "|x|", [Grad, FollowsPrecision], " At 0 the gradient is 0.">;
def Train_SinOp : Train_Unary<"sin", "sin(x)">;
def Train_CosOp : Train_Unary<"cos", "cos(x)">;
def Train_TanhOp : Train_Unary<"tanh", "tanh(x)", [Grad, FollowsPrecision]>;
def Train_ErfOp : Train_Unary<"erf", "2 / sqrt(pi) * integral of e^(-t^2) from 0 to x", [Grad, FollowsPrecision]>;
def Train_SigmoidOp : Train_Unary<"sigmoid", "1 / (1 + e^-x)", [Grad, FollowsPrecision]>;
def Train_ReluOp : Train_Unary<"relu", "max(x, 0)", [Grad, FollowsPrecision], " At 0 the gradient is 0.">;
def Train_TanOp : Train_Unary<"tan", "tan(x)">;
def Train_AsinOp : Train_Unary<"asin", "arcsin(x)">;
def Train_AcosOp : Train_Unary<"acos", "arccos(x)">;
def Train_AtanOp : Train_Unary<"atan", "arctan(x)">;
def Train_SinhOp : Train_Unary<"sinh", "sinh(x)">;
def Train_CoshOp : Train_Unary<"cosh", "cosh(x)">;
def Train_FloorOp : Train_Unary<"floor", "floor(x)", [Grad], " The gradient is 0 wherever there is one.">;
def Train_RoundOp : Train_Unary<"round", "the integer nearest to x", [Grad],
                                " Halves go to the even neighbour. The gradient is 0 wherever there is one.">;
def Train_NotOp : Train_Unary<"not", "!x", [], " Of bool (i1).", Bools, "i1">;

def Train_StopGradientOp : Train_Unary<"stop_gradient", "x", [FollowsPrecision]> {
  let summary = "its operand, through which no gradient goes";
  let description = [{
    `y = x`, treated as a constant by `differentiate`, which then replaces it by
    its operand.

    *Constraints:* x and y have one type.

    *Lifespan:* made by `legalize-onnx`, gone after `differentiate`.

    ```mlir
    %y = train.stop_gradient %x : tensor<8x4xf32>
    ```
  }];
}

def Train_GeluOp : Train_Op<"gelu", [Pure, AllTypesMatch<["x", "y"]>, Pointwise, FollowsPrecision, Rule, Grad, EpilogueOpInterface]> {
  let summary = "Gaussian error linear unit";
  let description = [{
    `y = x / 2 * (1 + erf(x / sqrt(2)))`, with `tanh` its approximation
    `y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.

    *Constraints:* x and y have one type.

    ```mlir
    %y = train.gelu tanh %x : tensor<8x4xf32>
    ```
  }];
  let arguments = (ins Tensor:$x, UnitAttr:$tanh);
  let results = (outs Tensor:$y);
  let assemblyFormat = "(`tanh` $tanh^)? $x attr-dict `:` type($y)";
  let extraClassDeclaration = [{
    ::merak::Epilogue getEpilogue() { return getTanh() ? ::merak::Epilogue::Gelu : ::merak::Epilogue::None; }
  }];
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
  }];
}
def Train_GeluGradOp : Train_Op<"gelu_grad", [Pure, AllTypesMatch<["x", "dy", "dx"]>, Pointwise, Rule, EpilogueOpInterface]> {
  let summary = "gradient of gelu: dx = dy * gelu'(x)";
  let description = [{
    `dx = dy * gelu'(x)`, the derivative of the exact form or, with `tanh`, of
    the approximation.

    *Constraints:* dy, x and dx have one type.

    *Lifespan:* made by `differentiate`.

    ```mlir
    %dx = train.gelu_grad %dy, %x : tensor<8x4xf32>
    ```
  }];
  let arguments = (ins Tensor:$dy, Tensor:$x, UnitAttr:$tanh);
  let results = (outs Tensor:$dx);
  let assemblyFormat = "(`tanh` $tanh^)? $dy `,` $x attr-dict `:` type($dx)";
  let extraClassDeclaration = [{
    ::merak::Epilogue getEpilogue() { return getTanh() ? ::merak::Epilogue::GeluGradient : ::merak::Epilogue::None; }
  }];
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation(), {{0}}); }
  }];
}

def Train_CastOp : Train_Op<"cast", [Pure, SameOperandsAndResultShape, Pointwise, Rule, Grad, EpilogueOpInterface]> {
  let summary = "conversion of the element type; to bool: x != 0";
  let description = [{
    y has x's shape and another element type. Floats are rounded to the nearest
    float, and towards 0 to an integer; bool is 0 or 1.

    *Constraints:* x and y have one shape.

    ```mlir
    %y = train.cast %x : tensor<8x4xf32> to tensor<8x4xbf16>
    ```
  }];
  let arguments = (ins Tensor:$x);
  let results = (outs Tensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x) `to` type($y)";
  let extraClassDeclaration = [{ ::merak::Epilogue getEpilogue() { return ::merak::Epilogue::Cast; } }];
}

class Train_Binary<string mnemonic, string formula, list<Trait> traits = [Grad],
                   string note = "", TypeConstraint type = Tensor, string element = "f32",
                   string linear = "{}">
    : Train_Op<mnemonic, [Pure, Infer, Pointwise, Broadcasts, Rule] # traits> {
  let summary = "element-wise " # formula # ", with broadcasting";
  let description = [{
    `result = }] # formula # [{`, element by element; both operands are
    broadcast to the result's shape.}] # note # [{

    *Constraints:* lhs, rhs and the result have one element type; the result's
    shape is what the operands broadcast to.

    ```mlir
    %r = train.}] # mnemonic # [{ %lhs, %rhs : tensor<8x4x}] # element # [{>, tensor<4x}] # element # [{>
    ```
  }];
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let hasVerifier = 1;
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation(), }] # linear # [{); }
    ::llvm::LogicalResult $cppClass::verify() { return verifyOneElementType(getOperation(), getOperands()); }
    ::llvm::LogicalResult $cppClass::inferReturnTypes(::mlir::MLIRContext *, std::optional<::mlir::Location> location,
        ::mlir::ValueRange operands, ::mlir::DictionaryAttr, ::mlir::OpaqueProperties, ::mlir::RegionRange,
        ::llvm::SmallVectorImpl<::mlir::Type> &types) { return inferBroadcast(location, operands, {}, types); }
  }];
}
def Train_AddOp : Train_Binary<"add", "lhs + rhs", [Grad, FollowsPrecision, EpilogueOpInterface], linear = "{{0, 1}}"> {
  let extraClassDeclaration = [{ ::merak::Epilogue getEpilogue() { return ::merak::Epilogue::Bias; } }];
}
def Train_SubOp : Train_Binary<"sub", "lhs - rhs", [Grad, FollowsPrecision], linear = "{{0, 1}}">;
def Train_MulOp : Train_Binary<"mul", "lhs * rhs", [Grad, FollowsPrecision], linear = "{{0}, {1}}">;
def Train_DivOp : Train_Binary<"div", "lhs / rhs", [Grad, FollowsPrecision], " Of integers the quotient, rounded towards 0.",
                               linear = "{{0}}">;
def Train_PowOp : Train_Binary<"pow", "lhs ^ rhs">;
def Train_MaxOp : Train_Binary<"max", "max(lhs, rhs)", [Grad, FollowsPrecision], " Of equals lhs gets the gradient.">;
def Train_MinOp : Train_Binary<"min", "min(lhs, rhs)", [Grad, FollowsPrecision], " Of equals lhs gets the gradient.">;
def Train_AndOp : Train_Binary<"and", "lhs & rhs", [], " Of bool or of every bit.", Integers, "i1">;
def Train_OrOp : Train_Binary<"or", "lhs | rhs", [], " Of bool or of every bit.", Integers, "i1">;
def Train_XorOp : Train_Binary<"xor", "lhs ^ rhs", [], " Of bool or of every bit.", Integers, "i1">;
def Train_ShiftLeftOp : Train_Binary<"shift_left", "lhs << rhs", [],
                                     " An amount of the width or more leaves 0.", Integers, "i32">;
def Train_ShiftRightOp : Train_Binary<"shift_right", "lhs >> rhs", [],
                                      " Of a signed type it keeps the sign; an amount of the width or more leaves nothing else.", Integers, "i32">;

def Train_CompareOp : Train_Op<"compare", [Pure, Infer, Pointwise, Broadcasts, FollowsPrecision, Rule]> {
  let summary = "element-wise comparison; the result is bool (i1)";
  let description = [{
    Whether lhs is equal to (`eq`), not equal to (`ne`), less than (`lt`), at
    most (`le`), greater than (`gt`) or at least (`ge`) rhs, element by element;
    both are broadcast to the result's shape. Nothing but `ne` holds for a NaN.

    *Constraints:* lhs and rhs have one element type; the result's shape is what
    they broadcast to and its element type is i1.

    ```mlir
    %r = train.compare gt %lhs, %rhs : tensor<8x4xf32>, tensor<f32>
    ```
  }];
  let arguments = (ins Train_ComparePredicate:$predicate, Tensor:$lhs, Tensor:$rhs);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$predicate $lhs `,` $rhs attr-dict `:` type($lhs) `,` type($rhs)";
  let hasVerifier = 1;
  let extraClassDefinition = [{
    ::merak::ShardingRule $cppClass::getShardingRule() { return elementwiseRule(getOperation()); }
    ::llvm::LogicalResult $cppClass::verify() { return verifyOneElementType(getOperation(), getOperands()); }
    ::llvm::LogicalResult $cppClass::inferReturnTypes(::mlir::MLIRContext *context, std::optional<::mlir::Location> location,
        ::mlir::ValueRange operands, ::mlir::DictionaryAttr, ::mlir::OpaqueProperties, ::mlir::RegionRange,
        ::llvm::SmallVectorImpl<::mlir::Type> &types) {
      return inferBroadcast(location, operands, ::mlir::IntegerType::get(context, 1), types); }
  }];
}

def Train_SelectOp : Train_Op<"select", [Pure, Infer, Pointwise, Broadcasts, FollowsPrecision, Rule, Grad]> {
  let summary = "condition ? lhs : rhs, element-wise with broadcasting";
  let description = [{
    lhs where the condition holds, else rhs; all three are broadcast to the
    result's shape.

    *Constraints:* lhs, rhs and the result have one element type, the condition's
    is i1; the result's shape is what the operands broadcast to.

    ```mlir
    %r = train.select %condition, %lhs, %rhs : tensor<8x1xi1>, tensor<8x4xf32>, tensor<f32>
    ```
  }];
  let arguments = (ins Bools:$condition, Tensor:$lhs, Tensor:$rhs);
  let results = (outs Tensor:$result);
  let assemblyFormat = "$condition `,` $lhs `,` $rhs attr-dict `:` type($condition) `,` type($lhs) `,` type($rhs)";
  let hasVerifier = 1;
  let extraClassDefinition = [{
    ::llvm::LogicalResult $cppClass::verify() {
      return verifyOneElementType(getOperation(), getOperands().drop_front()); }
    ::llvm::LogicalResult $cppClass::inferReturnTypes(::mlir::MLIRContext *context, std::optional<::mlir::Location> location,
        ::mlir::ValueRange operands, ::mlir::DictionaryAttr, ::mlir::OpaqueProperties, ::mlir::RegionRange,
        ::llvm::SmallVectorImpl<::mlir::Type> &types) {
      return inferBroadcast(location, operands,
          ::llvm::cast<::mlir::ShapedType>(operands[1].getType()).getElementType(), types); }
  }];
}

def Train_DropoutOp : Train_Op<"dropout", [Pure, AllTypesMatch<["x", "y"]>, FollowsPrecision, LacksDouble, RuleFlops, Grad]> {
  let summary = "elements dropped at random, the others scaled up";
  let description = [{
    `y = x / (1 - ratio)` where the mask keeps an element, else 0. The mask is a
    function of the run's seed, the step, `id` and the row-major index of the
    element in the global tensor (see runtime/core/Philox.h), so that it is the
    same in every layout, when it is computed again, and in the gradient. Ops
    that must not share a mask differ in `id`.

    A local tensor is a strided box of the global one: `extents` are its sizes
    and `strides` the steps of the global index, both row major in the order of
    local elements; the box begins at the sum of the rank's coordinates on
    `axes` times `scales`.

    *Constraints:* x and y have one type; 0 <= ratio < 1; 0 <= id < 2^32; as
    many extents as strides and as many axes as scales.

    *Lifespan:* `localize` sets the box.

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

} // opDocGroup

#endif
