// The plan dialect: one rank's program, as plan.proto has it.
#ifndef MERAK_PLAN_DIALECT
#define MERAK_PLAN_DIALECT

include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "dialects/Dist/DistDialect.td"
include "dialects/Pipe/PipeAttrs.td"

def Plan_Dialect : Dialect {
  let name = "plan";
  let cppNamespace = "::merak::plan";
  let summary = "the program of a class of ranks";
  let description = [{
    Mirrors `runtime/plan/plan.proto` one to one, so that what is printed is what
    is written. Buffers are symbols; operands are strided views of them.
  }];
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::merak::dist::DistDialect", "::merak::pipe::PipeDialect"];
}

def Plan_ViewAttr : AttrDef<Plan_Dialect, "View"> {
  let mnemonic = "view";
  let summary = "a strided view of a buffer; offset and strides in elements";
  let description = [{
    `#plan.view<@x[4, 32] by [1, 4] at 128>`: without `by` row-major and dense,
    without `at` from the buffer's first element.

    *Constraints:* one stride per dimension; offset, sizes and strides are not
    negative.
  }];
  let parameters = (ins "::mlir::FlatSymbolRefAttr":$buffer, "int64_t":$offset,
                        ArrayRefParameter<"int64_t">:$shape, ArrayRefParameter<"int64_t">:$strides);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
  let extraClassDeclaration = [{
    // Row major without gaps; dimensions of size 1 may have any stride.
    bool isDense() const;
    int64_t getNumElements() const;
  }];
}
def Plan_Views : TypedArrayAttrBase<Plan_ViewAttr, "array of views">;

def Plan_Category : I32EnumAttr<"Category", "what memory is used for", [
  I32EnumAttrCase<"parameters", 0>, I32EnumAttrCase<"gradients", 1>, I32EnumAttrCase<"optimizer", 2>,
  I32EnumAttrCase<"activations", 3>, I32EnumAttrCase<"communication", 4>, I32EnumAttrCase<"workspace", 5>]> {
  let cppNamespace = "::merak::plan";
}

// Numbers are those of the schema; codegen/PlanWriter asserts it.
def Plan_Collective : I32EnumAttr<"Collective", "collective", [
  I32EnumAttrCase<"all_reduce", 1>, I32EnumAttrCase<"all_gather", 2>, I32EnumAttrCase<"reduce_scatter", 3>,
  I32EnumAttrCase<"all_to_all", 4>, I32EnumAttrCase<"broadcast", 5>]> {
  let cppNamespace = "::merak::plan";
}
def Plan_Reduction : I32EnumAttr<"Reduction", "how a collective combines", [
  I32EnumAttrCase<"sum", 1>, I32EnumAttrCase<"max", 2>]> {
  let cppNamespace = "::merak::plan";
}

// A scalar argument: {value}, {runtime}, or {coordinate, scale}.
def Plan_ScalarAttr : AttrDef<Plan_Dialect, "Scalar"> {
  let mnemonic = "scalar";
  let summary = "a scalar argument of an instruction";
  let description = [{
    `#plan.scalar<3>`, `#plan.scalar<0.5>` literals; `#plan.scalar<"lr">` a
    run-time scalar; `#plan.scalar<"tp" * 48>` this rank's coordinate times 48.

    *Constraints:* an integer, a float or a name; only a name has a scale.
  }];
  let parameters = (ins "::mlir::Attribute":$value, "int64_t":$scale);
  let hasCustomAssemblyFormat = 1;
  let genVerifyDecl = 1;
}
def Plan_Scalars : TypedArrayAttrBase<Plan_ScalarAttr, "array of scalars">;

#endif
