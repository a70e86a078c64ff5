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

def Pipe_Dialect : Dialect {
  let name = "pipe";
  let cppNamespace = "::merak::pipe";
  let summary = "stage programs, their actions and schedules";
}

// P prologue, F forward, R recompute, B gradients of activations, W gradients
// of weights, S exchange of gradients that several stages hold parts of (tied
// weights), U update.
def Pipe_Action : I32EnumAttr<"Action", "action of a stage", [
  I32EnumAttrCase<"P", 0>, I32EnumAttrCase<"F", 1>, I32EnumAttrCase<"R", 2>,
  I32EnumAttrCase<"B", 3>, I32EnumAttrCase<"W", 4>, I32EnumAttrCase<"U", 5>,
  I32EnumAttrCase<"S", 6>]> {
  let cppNamespace = "::merak::pipe";
}

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
