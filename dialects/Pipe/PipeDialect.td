// Stages, actions, named values and transfers of a pipelined training step.
#ifndef MERAK_PIPE_DIALECT
#define MERAK_PIPE_DIALECT
include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"
include "dialects/Dist/DistDialect.td"
include "dialects/Pipe/PipeAttrs.td"

// What each is stands at pipe.value.
def Pipe_ValueKind : I32EnumAttr<"ValueKind", "what a named value is", [
  I32EnumAttrCase<"input", 0>, I32EnumAttrCase<"parameter", 1>, I32EnumAttrCase<"constant", 2>,
  I32EnumAttrCase<"state", 3>, I32EnumAttrCase<"gradient", 4>, I32EnumAttrCase<"step", 5>,
  I32EnumAttrCase<"activation", 6>, I32EnumAttrCase<"result", 7>,
  I32EnumAttrCase<"carried", 8>]> {
  let cppNamespace = "::merak::pipe";
}
#endif
