#ifndef MERAK_PIPE_OPS
#define MERAK_PIPE_OPS
include "dialects/Pipe/PipeDialect.td"

// Not by including its definition: with it come the enums of train.
def Train_OptimizerAttr : Attr<CPred<"::llvm::isa<::merak::train::OptimizerAttr>($_self)">, "#train.optimizer"> {
  let storageType = "::merak::train::OptimizerAttr";
  let returnType = "::merak::train::OptimizerAttr";
  let convertFromStorage = "$_self";
}

class Pipe_Op<string mnemonic, list<Trait> traits = []> : Op<Pipe_Dialect, mnemonic, traits>;

def Pipe_StageOp : Pipe_Op<"stage", [Symbol, SymbolTable, NoTerminator, IsolatedFromAbove, SingleBlock]> {
  let summary = "the program of one pipeline stage";
  let description = [{
    Holds `pipe.value` declarations and one `pipe.action` per kind and chunk.
    With several chunks the stage has several parts of the model: chunk c of
    stage s of p is part c*p+s. After the schedule phase `schedule` is the
    ordered list of actions, e.g. `<F0, F1, B0, W0, B1, W1, U>`; `F0.1` is chunk 1.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$index, OptionalAttr<Pipe_ScheduleAttr>:$schedule);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `index` $index (`schedule` $schedule^)? attr-dict-with-keyword $body";
}

def Pipe_ValueOp : Pipe_Op<"value", [Symbol]> {
  let summary = "a named value of a stage that outlives an action";
  let description = [{
    `type` is global before the shard phase and local after it; `layout` says
    which part of the global tensor the value is. `tensor` is the name a user
    knows: the parameter, the model input, "<parameter>.exp_avg", the output.
    For a gradient it is the parameter it belongs to.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<AnyRankedTensor>:$type, Pipe_ValueKind:$kind,
                       OptionalAttr<Dist_LayoutAttr>:$layout, OptionalAttr<StrAttr>:$tensor);
  let assemblyFormat = "$kind $sym_name `:` $type (`tensor` $tensor^)? (`layout` $layout^)? attr-dict";
}

def Pipe_ActionOp : Pipe_Op<"action", [Symbol, NoTerminator, IsolatedFromAbove, SingleBlock, HasParent<"StageOp">]> {
  let summary = "what a stage does for one microbatch (P, F, R, B, W) or once a step (U)";
  let arguments = (ins SymbolNameAttr:$sym_name, Pipe_ActionAttr:$kind, DefaultValuedAttr<I64Attr, "0">:$chunk);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "custom<ActionLetter>($kind) $sym_name (`chunk` $chunk^)? attr-dict-with-keyword $body";
}

def Pipe_LoadOp : Pipe_Op<"load", [MemoryEffects<[MemRead]>]> {
  let summary = "reads a named value of the stage";
  let arguments = (ins FlatSymbolRefAttr:$value);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
}

def Pipe_StoreOp : Pipe_Op<"store", [MemoryEffects<[MemWrite]>]> {
  let summary = "writes a named value; with `accumulate` adds to it";
  let description = [{
    Accumulating stores go to values of kind gradient or step, which are zero at
    the start of a step.
  }];
  let arguments = (ins AnyRankedTensor:$operand, FlatSymbolRefAttr:$value, UnitAttr:$accumulate);
  let assemblyFormat = "$operand `to` $value (`accumulate` $accumulate^)? attr-dict `:` type($operand)";
}

def Pipe_UpdateOp : Pipe_Op<"update", [MemoryEffects<[MemRead, MemWrite]>]> {
  let summary = "one optimizer step on a parameter and its states, in place";
  let description = [{
    `states` are those of the optimizer's kind, in its order. `clip` is a scalar
    factor on the gradient; where it is not finite nothing changes.
  }];
  let arguments = (ins AnyRankedTensor:$gradient, Optional<AnyRankedTensor>:$clip, FlatSymbolRefAttr:$parameter,
                       ArrayAttr:$states, Train_OptimizerAttr:$optimizer);
  let assemblyFormat = [{
    $parameter `by` $optimizer `states` $states `gradient` $gradient (`clip` $clip^)? attr-dict `:` type(operands)
  }];
}

def Pipe_TransferOp : Pipe_Op<"transfer", [Symbol]> {
  let summary = "a value that crosses stages";
  let description = [{
    Sent after action `kind` of chunk `chunk` of the source stage has stored it,
    received before the target stage's action that loads it first. Source and
    target ranks have equal coordinates except "pp".
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, SymbolRefAttr:$source, SymbolRefAttr:$target, Pipe_ActionAttr:$kind,
                       DefaultValuedAttr<I64Attr, "0">:$chunk);
  let assemblyFormat = "custom<ActionLetter>($kind) $sym_name (`chunk` $chunk^)? `from` $source `to` $target attr-dict";
}
#endif
