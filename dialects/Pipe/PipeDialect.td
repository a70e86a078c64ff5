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

def Pipe_ValueKind : I32EnumAttr<"ValueKind", "what a named value is", [
  I32EnumAttrCase<"input", 0>,      // data; the box of (rank, microbatch) is read before the action
  I32EnumAttrCase<"parameter", 1>,  // trained
  I32EnumAttrCase<"constant", 2>,   // frozen table
  I32EnumAttrCase<"state", 3>,      // optimizer moment
  I32EnumAttrCase<"gradient", 4>,   // lives a step; stores add over microbatches
  I32EnumAttrCase<"step", 5>,       // the same for prologue results and the loss
  I32EnumAttrCase<"activation", 6>, // one copy per microbatch in flight
  I32EnumAttrCase<"result", 7>]> {  // output of a forward-only plan
  let cppNamespace = "::merak::pipe";
}
#endif
