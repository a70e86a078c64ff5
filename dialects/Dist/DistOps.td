// Conversions between layouts, collectives among them.
#ifndef MERAK_DIST_OPS
#define MERAK_DIST_OPS
include "dialects/Dist/DistDialect.td"
include "mlir/IR/EnumAttr.td"

class Dist_Trait<string name> : NativeOpTrait<name> {
  let cppNamespace = "::merak::dist";
}
def Conversion : Dist_Trait<"Conversion">;
def Collective : Dist_Trait<"Collective">;

// Here and not beside the attributes: dialects that include those would define
// it again.
def Dist_Reduction : I32EnumAttr<"Reduction", "how values of several devices become one", [
  I32EnumAttrCase<"sum", 0>, I32EnumAttrCase<"max", 1>]> {
  let cppNamespace = "::merak::dist";
}

class Dist_Op<string mnemonic, list<Trait> traits = []> : Op<Dist_Dialect, mnemonic, [Pure] # traits>;

def Dist_AllReduceOp : Dist_Op<"all_reduce", [Conversion, Collective, AllTypesMatch<["x", "y"]>]> {
  let summary = "reduces a partial value over mesh axes";
  let description = [{
    y is the sum (`sum`) or the largest (`max`), element by element, of the x of
    all devices whose coordinates differ only on `axes`.

    *Constraints:* at least one axis, none twice; x and y have one type.

    *Lifespan:* made when the strategy is applied, becomes an instruction in the
    memory phase.

    ```mlir
    %y = dist.all_reduce %x over ["tp"] sum : tensor<8x64xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, Dist_Reduction:$kind);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes $kind attr-dict `:` type($x)";
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    ::llvm::StringRef getReduction() { return stringifyReduction(getKind()); }
  }];
}

// Conversions of one factor of dimension `dim`, which is major x factor x minor.
class Dist_FactorOp<string mnemonic, list<Trait> traits = []> : Dist_Op<mnemonic, [Conversion] # traits> {
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes `dim` $dim `major` $major `minor` $minor attr-dict `:` type($x) `to` type($y)";
  let hasVerifier = 1;
}
def Dist_AllGatherOp : Dist_FactorOp<"all_gather", [Collective]> {
  let summary = "joins the parts of one factor of a dimension";
  let description = [{
    Dimension `dim` of x is major x part x minor; y has in its place major x
    factor x minor, where the factor is the parts of all devices along `axes`,
    one behind the other. Before `localize` x and y have the global type, in
    which the dimension is major x factor x minor, and differ in layout only.

    *Constraints:* at least one axis, none twice; x and y have one element type
    and differ in dimension `dim` only, of which y is a multiple of x; major and
    minor are at least 1 and their product divides that dimension of x.

    *Lifespan:* made when the strategy is applied, becomes an instruction in the
    memory phase.

    ```mlir
    %y = dist.all_gather %x over ["tp"] dim 1 major 3 minor 16 : tensor<8x96xf32> to tensor<8x192xf32>
    ```
  }];
}
def Dist_ReduceScatterOp : Dist_FactorOp<"reduce_scatter", [Collective]> {
  let summary = "sums a partial value and keeps this device's part of one factor";
  let description = [{
    Dimension `dim` of x is major x factor x minor. y is this device's part, major
    x part x minor, of the sum of the x of all devices along `axes`. Before
    `localize` x and y have the global type and differ in layout only.

    *Constraints:* at least one axis, none twice; x and y have one element type
    and differ in dimension `dim` only, of which x is a multiple of y; major and
    minor are at least 1 and their product divides that dimension of y.

    *Lifespan:* made when the strategy is applied, becomes an instruction in the
    memory phase.

    ```mlir
    %y = dist.reduce_scatter %x over ["tp"] dim 1 major 1 minor 16 : tensor<8x64xf32> to tensor<8x32xf32>
    ```
  }];
}
def Dist_AllToAllOp : Dist_Op<"all_to_all", [Conversion, Collective]> {
  let summary = "moves a split from one factor to another";
  let description = [{
    Joins the factor of `dim`, as `all_gather` does, and keeps this device's part
    of the factor of `to_dim`, as `shard_slice` does, without any device holding
    the whole. major and minor stand around the joined factor in x, to_major and
    to_minor around the split one in y. Before `localize` x and y have the global
    type and differ in layout only.

    *Constraints:* at least one axis, none twice; x and y have one element type
    and differ in the dimensions `dim` and `to_dim` only, have as many elements,
    and y is a multiple of x in `dim`, unless that is `to_dim`; extents are at
    least 1; major times minor divides dimension `dim` of x, to_major times
    to_minor dimension `to_dim` of y.

    *Lifespan:* made when the strategy is applied, becomes an instruction in the
    memory phase.

    ```mlir
    %y = dist.all_to_all %x over ["tp"] dim 0 major 1 minor 1 to 1 major 1 minor 16 : tensor<4x64xf32> to tensor<8x32xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor,
                       I64Attr:$to_dim, I64Attr:$to_major, I64Attr:$to_minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = [{
    $x `over` $axes `dim` $dim `major` $major `minor` $minor
    `to` $to_dim `major` $to_major `minor` $to_minor attr-dict `:` type($x) `to` type($y)
  }];
  let hasVerifier = 1;
}
def Dist_AccumulateOp : Dist_Op<"accumulate", [AllTypesMatch<["x", "y"]>]> {
  let summary = "sums a value over the microbatches of a step";
  let description = [{
    y is the sum of the x of all microbatches: complete once the last of them has
    run, so who reads y stands in an action that runs once a step.

    *Constraints:* x and y have one type.

    *Lifespan:* made when layouts are applied; the stage phase turns it into an
    accumulating store and a load.

    ```mlir
    %y = dist.accumulate %x : tensor<64x32xf32>
    ```
  }];
  let arguments = (ins AnyRankedTensor:$x);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x)";
}
def Dist_ShardSliceOp : Dist_FactorOp<"shard_slice"> {
  let summary = "this device's part of one factor of a dimension; no communication";
  let description = [{
    Dimension `dim` of x is major x factor x minor; y has in its place major x
    part x minor, the part that the device's coordinates on `axes` choose. Before
    `localize` x and y have the global type and differ in layout only.

    *Constraints:* at least one axis, none twice; x and y have one element type
    and differ in dimension `dim` only, of which x is a multiple of y; major and
    minor are at least 1 and their product divides that dimension of y.

    *Lifespan:* made when the strategy is applied, becomes a view or a copy in the
    memory phase.

    ```mlir
    %y = dist.shard_slice %x over ["tp"] dim 1 major 1 minor 16 : tensor<8x64xf32> to tensor<8x32xf32>
    ```
  }];
}
def Dist_PlaceOp : Dist_FactorOp<"place"> {
  let summary = "this device's part of one factor of a dimension, among zeros";
  let description = [{
    Dimension `dim` of x is major x part x minor; y has in its place major x
    factor x minor, in which the part lies where the device's coordinates on
    `axes` say and all else is zero: the adjoint of `shard_slice`, a summand of
    the whole. Over "mb" the sum is that of `accumulate`, which puts the parts of
    all microbatches side by side. Before `localize` x and y have the global type
    and differ in layout only.

    *Constraints:* at least one axis, none twice; x and y have one element type
    and differ in dimension `dim` only, of which y is a multiple of x; major and
    minor are at least 1 and their product divides that dimension of x.

    *Lifespan:* made when the strategy is applied, becomes an instruction in the
    memory phase.

    ```mlir
    %y = dist.place %x over ["mb"] dim 0 major 1 minor 1 : tensor<4x64xf32> to tensor<8x64xf32>
    ```
  }];
}
#endif
