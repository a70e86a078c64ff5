// What all instructions of a plan have in common.
#ifndef MERAK_PLAN_INTERFACES
#define MERAK_PLAN_INTERFACES

include "mlir/IR/OpBase.td"

def InstructionOpInterface : OpInterface<"InstructionOpInterface"> {
  let cppNamespace = "::merak::plan";
  let description = [{
    An instruction reads the views `inputs` and writes the views `outputs` on
    stream `stream`. Memory planning, event insertion and the writer see
    instructions only through this.
  }];
  let methods = [
    InterfaceMethod<"Views that are read.", "::mlir::ArrayAttr", "getInputs", (ins)>,
    InterfaceMethod<"Views that are written.", "::mlir::ArrayAttr", "getOutputs", (ins)>,
    InterfaceMethod<"Replaces the views that are read.", "void", "setInputsAttr", (ins "::mlir::ArrayAttr":$views)>,
    InterfaceMethod<"Replaces the views that are written.", "void", "setOutputsAttr", (ins "::mlir::ArrayAttr":$views)>,
    InterfaceMethod<"Stream that runs it.", "uint64_t", "getStream", (ins)>,
    InterfaceMethod<"Moves it to another stream.", "void", "setStream", (ins "uint64_t":$stream)>,
    InterfaceMethod<"Whether outputs are added to.", "bool", "accumulates", (ins), "", [{
      return $_op->hasAttr("accumulate");
    }]>
  ];
}

#endif
