#ifndef MERAK_DIST_OPS
#define MERAK_DIST_OPS
include "dialects/Dist/DistDialect.td"

class Dist_Trait<string name> : NativeOpTrait<name> {
  let cppNamespace = "::merak::dist";
}
def Conversion : Dist_Trait<"Conversion">;
def Collective : Dist_Trait<"Collective">;

class Dist_Op<string mnemonic, list<Trait> traits = []> : Op<Dist_Dialect, mnemonic, [Pure] # traits>;

def Dist_AllReduceOp : Dist_Op<"all_reduce", [Conversion, Collective, AllTypesMatch<["x", "y"]>]> {
  let summary = "reduces a partial value over mesh axes";
  let description = [{
    `reduction` is "sum" or "max".
    *Lifespan:* made when the strategy is applied, becomes an instruction in the
    memory phase.
  }];
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, StrAttr:$reduction);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes $reduction attr-dict `:` type($x)";
}
def Dist_AllGatherOp : Dist_Op<"all_gather", [Conversion, Collective]> {
  let summary = "joins the parts of one factor of a dimension";
  let description = [{
    The factor is given by the extents around it in the *global* view:
    dimension `dim` = major x factor x minor.
  }];
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes `dim` $dim `major` $major `minor` $minor attr-dict `:` type($x) `to` type($y)";
}
def Dist_ReduceScatterOp : Dist_Op<"reduce_scatter", [Conversion, Collective]> {
  let summary = "sums a partial value and keeps this device's part of one factor";
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes `dim` $dim `major` $major `minor` $minor attr-dict `:` type($x) `to` type($y)";
}
def Dist_AllToAllOp : Dist_Op<"all_to_all", [Conversion, Collective]> {
  let summary = "moves a split from one factor to another";
  let description = [{
    Joins the factor of `dim` and splits the factor of `to_dim`.
  }];
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor,
                       I64Attr:$to_dim, I64Attr:$to_major, I64Attr:$to_minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = [{
    $x `over` $axes `dim` $dim `major` $major `minor` $minor
    `to` $to_dim `major` $to_major `minor` $to_minor attr-dict `:` type($x) `to` type($y)
  }];
}
def Dist_AccumulateOp : Dist_Op<"accumulate", [AllTypesMatch<["x", "y"]>]> {
  let summary = "sums a value over the microbatches of a step";
  let description = [{
    *Lifespan:* made when layouts are applied; the stage phase turns it into an
    accumulating store and a load.
  }];
  let arguments = (ins AnyRankedTensor:$x);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x attr-dict `:` type($x)";
}
def Dist_ShardSliceOp : Dist_Op<"shard_slice", [Conversion]> {
  let summary = "this device's part of one factor of a dimension; no communication";
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes `dim` $dim `major` $major `minor` $minor attr-dict `:` type($x) `to` type($y)";
}
#endif
