#ifndef MERAK_DIST_OPS
#define MERAK_DIST_OPS
include "dialects/Dist/DistDialect.td"

class Dist_Op<string mnemonic, list<Trait> traits = []> : Op<Dist_Dialect, mnemonic, [Pure] # traits>;

def Dist_AllReduceOp : Dist_Op<"all_reduce", [AllTypesMatch<["x", "y"]>]> {
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
def Dist_AllGatherOp : Dist_Op<"all_gather"> {
  let summary = "joins the parts of one factor of a dimension";
  let description = [{
    The factor is given by the extents around it in the *global* view:
    dimension `dim` = major x factor x minor.
  }];
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes `dim` $dim `major` $major `minor` $minor attr-dict `:` type($x) `to` type($y)";
}
def Dist_ShardSliceOp : Dist_Op<"shard_slice"> {
  let summary = "this device's part of one factor of a dimension; no communication";
  let arguments = (ins AnyRankedTensor:$x, StrArrayAttr:$axes, I64Attr:$dim, I64Attr:$major, I64Attr:$minor);
  let results = (outs AnyRankedTensor:$y);
  let assemblyFormat = "$x `over` $axes `dim` $dim `major` $major `minor` $minor attr-dict `:` type($x) `to` type($y)";
}
#endif
