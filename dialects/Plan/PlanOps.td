// Programs, buffers, procedures, instructions, calls.
#ifndef MERAK_PLAN_OPS
#define MERAK_PLAN_OPS

include "dialects/Plan/PlanDialect.td"
include "dialects/Plan/PlanInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/IR/RegionKindInterface.td"

class Plan_Op<string mnemonic, list<Trait> traits = []> : Op<Plan_Dialect, mnemonic, traits>;

//===----------------------------------------------------------------------===//
// Chapter: programs
//===----------------------------------------------------------------------===//

def Plan_ProgramOp : Plan_Op<"program", [Symbol, SymbolTable, NoTerminator, IsolatedFromAbove, SingleBlock]> {
  let summary = "the program of all ranks of one pipeline stage";
  let description = [{
    Holds buffers, procedures, calls and outputs. `streams` are names, stream 0
    computes. `groups` are lists of mesh axes. `schedule` is the order of actions.
    *Lifespan:* made by `convert-to-plan`; `assign-memory` sets `arena_bytes`,
    `insert-events` sets `events`.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$index, StrArrayAttr:$streams, ArrayAttr:$groups,
                       Pipe_ScheduleAttr:$schedule, DefaultValuedAttr<I64Attr, "0">:$arena_bytes,
                       DefaultValuedAttr<I64Attr, "0">:$events);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `index` $index `streams` $streams `groups` $groups `schedule` $schedule
    (`arena` $arena_bytes^)? (`events` $events^)? attr-dict-with-keyword $body
  }];
}

def Plan_BufferOp : Plan_Op<"buffer", [Symbol, HasParent<"ProgramOp">]> {
  let summary = "memory of one tensor in the arena of a rank";
  let description = [{
    `procedure`: the buffer is transient, live only inside that procedure.
    `slots` copies lie `slot_stride` bytes apart; `slot_class` says which entry
    of a call's slots chooses one. `tensor` and `layout` say which part of which
    global tensor or model input it is.
    *Constraints:* transient buffers have one slot.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Plan_Category:$category, TypeAttrOf<AnyRankedTensor>:$type,
                       OptionalAttr<FlatSymbolRefAttr>:$procedure, OptionalAttr<I64Attr>:$offset,
                       DefaultValuedAttr<I64Attr, "1">:$slots, DefaultValuedAttr<I64Attr, "0">:$slot_stride,
                       DefaultValuedAttr<I64Attr, "-1">:$slot_class,
                       OptionalAttr<StrAttr>:$tensor, OptionalAttr<Dist_LayoutAttr>:$layout);
  let assemblyFormat = [{
    $category $sym_name `:` $type (`in` $procedure^)? (`at` $offset^)?
    (`slots` $slots^)? (`stride` $slot_stride^)? (`class` $slot_class^)?
    (`tensor` $tensor^)? (`layout` $layout^)? attr-dict
  }];
  let hasVerifier = 1;
  let extraClassDeclaration = [{
    int64_t getBytes(); // of one slot
    bool isTransient() { return getProcedure().has_value(); }
  }];
}

def Plan_ProcedureOp : Plan_Op<"procedure", [Symbol, NoTerminator, SingleBlock, HasParent<"ProgramOp">]> {
  let summary = "the instructions of one action";
  let arguments = (ins SymbolNameAttr:$sym_name, Pipe_ActionAttr:$action);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `action` custom<ActionLetter>($action) attr-dict-with-keyword $body";
}

def Plan_CallOp : Plan_Op<"call", [HasParent<"ProgramOp">]> {
  let summary = "one run of a procedure";
  let description = [{
    `microbatch` is -1 outside of a microbatch. `slots` are by slot class.
    `waits` are triples (stream, on, call): before anything of this call starts
    on `stream`, stream `on` has finished all of call number `call`.
  }];
  let arguments = (ins FlatSymbolRefAttr:$procedure, I64Attr:$microbatch, DenseI64ArrayAttr:$slots,
                       DenseI64ArrayAttr:$waits);
  let assemblyFormat = "$procedure `microbatch` $microbatch `slots` $slots `waits` $waits attr-dict";
  let hasVerifier = 1;
}

def Plan_OutputOp : Plan_Op<"output", [HasParent<"ProgramOp">]> {
  let summary = "a buffer that is read after the step, under a name";
  let description = [{`shape` is the global one; `per_microbatch`: one value per microbatch (in slots).}];
  let arguments = (ins StrAttr:$name, FlatSymbolRefAttr:$buffer, DenseI64ArrayAttr:$shape,
                       OptionalAttr<Dist_LayoutAttr>:$layout, UnitAttr:$per_microbatch);
  let assemblyFormat = [{
    $name `of` $buffer `shape` $shape (`layout` $layout^)? (`per_microbatch` $per_microbatch^)? attr-dict
  }];
}

//===----------------------------------------------------------------------===//
// Chapter: instructions
//===----------------------------------------------------------------------===//

class Plan_Instruction<string mnemonic, dag extra, list<Trait> traits = []>
    : Plan_Op<mnemonic, [DeclareOpInterfaceMethods<InstructionOpInterface>, HasParent<"ProcedureOp">] # traits> {
  let arguments = !con(extra, (ins Plan_Views:$inputs, Plan_Views:$outputs,
                                   DefaultValuedAttr<I64Attr, "0">:$stream,
                                   DefaultValuedAttr<F64Attr, "0">:$flops,
                                   DefaultValuedAttr<F64Attr, "0">:$bytes));
  let skipDefaultBuilders = 0;
}
defvar kOperands = " custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? ";

def Plan_KernelOp : Plan_Instruction<"kernel", (ins FlatSymbolRefAttr:$kernel, I64Attr:$rows,
                                                   DefaultValuedAttr<Plan_Scalars, "{}">:$scalars,
                                                   UnitAttr:$accumulate)> {
  let summary = "a generated kernel, a function with `merak.kernel`";
  let assemblyFormat = "$kernel custom<Views>($inputs) `->` custom<Views>($outputs) `rows` $rows (`scalars` $scalars^)? (`accumulate` $accumulate^)? (`stream` $stream^)? attr-dict";
}

def Plan_LibraryOp : Plan_Instruction<"library", (ins StrAttr:$op, DefaultValuedAttr<DictionaryAttr, "{}">:$attrs,
                                                     DefaultValuedAttr<Plan_Scalars, "{}">:$scalars,
                                                     UnitAttr:$accumulate)> {
  let summary = "a library kernel, see docs/Kernels.md";
  let description = [{`attrs` are strings.}];
  let assemblyFormat = "$op custom<Views>($inputs) `->` custom<Views>($outputs) (`with` $attrs^)? (`scalars` $scalars^)? (`accumulate` $accumulate^)? (`stream` $stream^)? attr-dict";
}

def Plan_CollectiveOp : Plan_Instruction<"collective", (ins Plan_Collective:$op, I64Attr:$group,
                                                           OptionalAttr<Plan_Reduction>:$reduction,
                                                           DefaultValuedAttr<I64Attr, "0">:$dim,
                                                           DefaultValuedAttr<I64Attr, "0">:$dim2)> {
  let summary = "a collective over group number `group` of the program";
  let description = [{
    *Constraints:* all_reduce and reduce_scatter have a `reduction`, the others none.
  }];
  let hasVerifier = 1;
  let assemblyFormat = "$op custom<Views>($inputs) `->` custom<Views>($outputs) `group` $group (`reduction` $reduction^)? (`dim` $dim^)? (`dim2` $dim2^)? (`stream` $stream^)? attr-dict";
}

def Plan_SendOp : Plan_Instruction<"send", (ins StrAttr:$channel, DictionaryAttr:$peer)> {
  let summary = "sends views to the rank with the coordinates `peer` and else this rank's";
  let assemblyFormat = "$channel custom<Views>($inputs) `->` custom<Views>($outputs) `peer` $peer (`stream` $stream^)? attr-dict";
}
def Plan_RecvOp : Plan_Instruction<"recv", (ins StrAttr:$channel, DictionaryAttr:$peer)> {
  let summary = "the other end of a send";
  let assemblyFormat = "$channel custom<Views>($inputs) `->` custom<Views>($outputs) `peer` $peer (`stream` $stream^)? attr-dict";
}

def Plan_RecordOp : Plan_Instruction<"record", (ins I64Attr:$event)> {
  let summary = "marks a point on its stream";
  let assemblyFormat = "$event custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? attr-dict";
}
def Plan_WaitOp : Plan_Instruction<"wait", (ins I64Attr:$event)> {
  let summary = "its stream waits for the event of the same call";
  let assemblyFormat = "$event custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? attr-dict";
}

def Plan_LoadInputOp : Plan_Instruction<"load_input", (ins StrAttr:$input)> {
  let summary = "reads this rank's part of a model input for the call's microbatch";
  let assemblyFormat = "$input custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? attr-dict";
}

#endif
