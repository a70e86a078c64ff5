// Programs, buffers, procedures, instructions, calls. Verifiers check what an op
// says of itself; what it names in its program is for verify-plan, which reports
// all that is wrong.
#ifndef MERAK_PLAN_OPS
#define MERAK_PLAN_OPS

include "dialects/Plan/PlanDialect.td"
include "dialects/Plan/PlanInterfaces.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/IR/RegionKindInterface.td"

defvar NonNegative = ConfinedAttr<I64Attr, [IntNonNegative]>;
defvar Zero = DefaultValuedAttr<NonNegative, "0">;
defvar MinusOne = ConfinedAttr<I64Attr, [IntMinValue<-1>]>;
def Plan_Groups : TypedArrayAttrBase<StrArrayAttr, "array of groups, each an array of mesh axes">;

class Plan_Op<string mnemonic, list<Trait> traits = []> : Op<Plan_Dialect, mnemonic, traits>;

//===----------------------------------------------------------------------===//
// Chapter: programs
//===----------------------------------------------------------------------===//

def Plan_Programs : OpDocGroup {
  let summary = "A program and its parts";
  let description = [{What a class of ranks holds in memory and does in a step.}];
}
let opDocGroup = Plan_Programs in {

def Plan_ProgramOp : Plan_Op<"program", [Symbol, SymbolTable, NoTerminator, IsolatedFromAbove, SingleBlock]> {
  let summary = "the program of all ranks of one pipeline stage";
  let description = [{
    Holds buffers, procedures, calls and outputs; a step runs the calls in their
    order. `index` is the coordinate of the ranks on "pp". `streams` are names;
    stream 0 computes. `groups` are lists of mesh axes: the ranks that differ
    from this one on these axes only form the group. `schedule` is what the calls
    were made from. All memory of a rank is one arena of `arena_bytes`. `events`
    is how many events a call has.

    *Constraints:* numbers are not negative; at least one stream; each group has
    at least one axis, and none twice; the body holds buffers, procedures, calls
    and outputs only.

    *Lifespan:* made by `convert-to-plan`; `assign-memory` sets `arena_bytes`,
    `insert-events` sets `events`; the plan's writer makes a file of it.

    ```mlir
    plan.program @stage0 index 0 streams ["compute", "collectives"] groups [["tp"], ["dp", "tp"]] schedule <F0, F1> arena 64 {
      plan.buffer activations @x : tensor<4xf32> at 0
      plan.procedure @stage0.forward action F {
        plan.library "fill" () -> (@x[4]) scalars [#plan.scalar<0>]
      }
      plan.call @stage0.forward microbatch 0 slots [] waits []
      plan.call @stage0.forward microbatch 1 slots [] waits []
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, NonNegative:$index, StrArrayAttr:$streams, Plan_Groups:$groups,
                       Pipe_ScheduleAttr:$schedule, Zero:$arena_bytes, Zero:$events);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = [{
    $sym_name `index` $index `streams` $streams `groups` $groups `schedule` $schedule
    (`arena` $arena_bytes^)? (`events` $events^)? attr-dict-with-keyword $body
  }];
  let hasVerifier = 1;
}

def Plan_BufferOp : Plan_Op<"buffer", [Symbol, HasParent<"ProgramOp">]> {
  let summary = "memory of one tensor in the arena of a rank";
  let description = [{
    `in` a procedure, the buffer is transient: live only inside that procedure.
    `at` is its first byte in the arena. Values of microbatches in flight have
    `slots` copies, which lie `stride` bytes apart; entry number `class` of a
    call's slots chooses one. `tensor` and `layout` say which part of which
    global tensor or model input it holds; for gradients `tensor` is the
    parameter.

    The attribute `plan.limit` on a buffer of ids says that they lie in
    [0, limit) or are the one other value `plan.allowed`, which the runtime
    checks of the data.

    *Constraints:* the type has a static shape and integers, floats or indices as
    elements; at least one slot; a transient buffer has one; several slots have a
    class and, if a stride, one of at least the bytes of a slot; offset and
    stride are not negative, class at least -1; `layout` has as many dimensions
    as the type, each a multiple of the type's. At the end of the memory phase
    (`verify-memory`) buffers have aligned offsets within the arena and those
    that live together do not overlap.

    *Lifespan:* made by `convert-to-plan`; `assign-memory` sets `offset` and
    `slot_stride`.

    ```mlir
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <F0> arena 448 {
      plan.buffer parameters @w : tensor<8x4xf32> at 0 tensor "w" layout <[8, 8 over (tp)]>
      plan.buffer activations @act0 : tensor<4xf32> at 128 slots 3 stride 64 class 0
      plan.buffer workspace @sum : tensor<4xf32> in @stage0.forward at 384
      plan.procedure @stage0.forward action F {
      }
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Plan_Category:$category, TypeAttrOf<Pipe_StoredTensor>:$type,
                       OptionalAttr<FlatSymbolRefAttr>:$procedure, OptionalAttr<NonNegative>:$offset,
                       DefaultValuedAttr<ConfinedAttr<I64Attr, [IntPositive]>, "1">:$slots, Zero:$slot_stride,
                       DefaultValuedAttr<MinusOne, "-1">:$slot_class,
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
  let description = [{
    The instructions of a stream run in their order, those of several streams
    side by side, ordered by `plan.record` and `plan.wait`. A procedure may also
    hold a part of an action: what clears accumulators at the start of a step is
    of action P, the receives for which a recomputation waits of action B.

    *Constraints:* the body holds instructions only.

    *Lifespan:* made by `convert-to-plan` from each `pipe.action`;
    `overlap-gradients` makes copies for the last microbatch.

    ```mlir
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <U> {
      plan.buffer parameters @w : tensor<4xf32>
      plan.procedure @stage0.update action U {
        plan.library "fill" () -> (@w[4]) scalars [#plan.scalar<0.5>]
      }
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Pipe_ActionAttr:$action);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `action` custom<ActionLetter>($action) attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Plan_CallOp : Plan_Op<"call", [HasParent<"ProgramOp">]> {
  let summary = "one run of a procedure";
  let description = [{
    `microbatch` is -1 outside of a microbatch. `slots` are by slot class.
    `waits` are triples (stream, on, call): before anything of this call starts
    on `stream`, stream `on` has finished all of call number `call`. With the
    attribute `plan.after_previous` nothing of it starts before the call in front
    of it is finished.

    *Constraints:* microbatch is at least -1; slots are not negative; waits are
    triples of numbers that are not negative. At the end of the plan phase
    (`verify-plan`) the procedure is there, streams are those of the program and
    calls that are waited for come before this one.

    *Lifespan:* made by `convert-to-plan` from the schedule; `insert-events` sets
    `waits`.

    ```mlir
    plan.program @stage0 index 0 streams ["compute", "collectives"] groups [] schedule <F0, F1> {
      plan.procedure @stage0.forward action F {
      }
      plan.call @stage0.forward microbatch 0 slots [0] waits []
      plan.call @stage0.forward microbatch 1 slots [1] waits [0, 1, 0]
    }
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$procedure, MinusOne:$microbatch, DenseI64ArrayAttr:$slots,
                       DenseI64ArrayAttr:$waits);
  let assemblyFormat = "$procedure `microbatch` $microbatch `slots` $slots `waits` $waits attr-dict";
  let hasVerifier = 1;
}

def Plan_OutputOp : Plan_Op<"output", [HasParent<"ProgramOp">]> {
  let summary = "a buffer that is read after the step, under a name";
  let description = [{
    `shape` is the global one and `layout` says which part of it the buffer
    holds. With `per_microbatch` there is one value for each microbatch, in the
    buffer's slots.

    *Constraints:* shape is that of the layout, if there is one. At the end of the
    plan phase (`verify-plan`) the buffer is there.

    *Lifespan:* made by `convert-to-plan` from values of kind result.

    ```mlir
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <F0, U> {
      plan.buffer workspace @loss : tensor<f32>
      plan.buffer workspace @y : tensor<4x8xf32> slots 2 class 0
      plan.output "loss" of @loss shape []
      plan.output "y" of @y shape [8, 8] layout <[8 over (mb), 8]> per_microbatch
    }
    ```
  }];
  let arguments = (ins StrAttr:$name, FlatSymbolRefAttr:$buffer, DenseI64ArrayAttr:$shape,
                       OptionalAttr<Dist_LayoutAttr>:$layout, UnitAttr:$per_microbatch);
  let assemblyFormat = [{
    $name `of` $buffer `shape` $shape (`layout` $layout^)? (`per_microbatch` $per_microbatch^)? attr-dict
  }];
  let hasVerifier = 1;
}

} // opDocGroup

//===----------------------------------------------------------------------===//
// Chapter: instructions
//===----------------------------------------------------------------------===//

def Plan_Instructions : OpDocGroup {
  let summary = "Instructions";
  let description = [{
    An instruction reads the views of buffers before `->`, writes those behind
    it, and runs on stream number `stream`. `flops` and `bytes` are for the
    simulator. `plan.submicrobatch` says for which part of the microbatch it is;
    without it, part 0.

    At the end of the plan phase (`verify-plan`) the stream is one of the
    program's, views lie within buffers of the program, and a transient buffer is
    used in its own procedure only.
  }];
}
let opDocGroup = Plan_Instructions in {

class Plan_Instruction<string mnemonic, dag extra, list<Trait> traits = []>
    : Plan_Op<mnemonic, [DeclareOpInterfaceMethods<InstructionOpInterface>, HasParent<"ProcedureOp">] # traits> {
  let arguments = !con(extra, (ins Plan_Views:$inputs, Plan_Views:$outputs, Zero:$stream,
                                   DefaultValuedAttr<F64Attr, "0">:$flops,
                                   DefaultValuedAttr<F64Attr, "0">:$bytes));
  let skipDefaultBuilders = 0;
  let hasVerifier = 1;
}

def Plan_KernelOp : Plan_Instruction<"kernel", (ins FlatSymbolRefAttr:$kernel, NonNegative:$rows,
                                                   DefaultValuedAttr<Plan_Scalars, "{}">:$scalars,
                                                   UnitAttr:$accumulate)> {
  let summary = "a generated kernel, a function with `merak.kernel`";
  let description = [{
    Runs a function of the module, in linalg on tensors, with the inputs as
    arguments and the results as outputs. `accumulate` adds the results to what
    the outputs hold. `rows` is the size of the range over which it runs in
    parallel, 0 while the kernel is not generated. `in_place`: each element is
    read and written once, so that an output may be an input.

    *Constraints:* at least one output; rows is not negative. At the end of the
    plan phase (`verify-plan`) `kernel` is a function with `merak.kernel`.

    *Lifespan:* made by `convert-to-plan` from fused ops of an action.

    ```mlir
    func.func private @kernel0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {merak.kernel}
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <F0> {
      plan.buffer activations @x : tensor<4xf32>
      plan.buffer activations @y : tensor<4xf32>
      plan.procedure @stage0.forward action F {
        plan.kernel @kernel0 (@x[4]) -> (@y[4]) rows 0 accumulate {in_place}
      }
    }
    ```
  }];
  let assemblyFormat = "$kernel custom<Views>($inputs) `->` custom<Views>($outputs) `rows` $rows (`scalars` $scalars^)? (`accumulate` $accumulate^)? (`stream` $stream^)? attr-dict";
}

def Plan_LibraryOp : Plan_Instruction<"library", (ins StrAttr:$op, DefaultValuedAttr<DictionaryAttr, "{}">:$attrs,
                                                     DefaultValuedAttr<Plan_Scalars, "{}">:$scalars,
                                                     UnitAttr:$accumulate)> {
  let summary = "a library kernel, see docs/Kernels.md";
  let description = [{
    Runs the kernel `op` of the backend; docs/Kernels.md says for each what its
    operands, `attrs` and `scalars` are. `accumulate` adds the results to what
    the outputs hold.

    *Constraints:* `op` is not empty; `attrs` are strings; at least one output.

    *Lifespan:* made by `convert-to-plan`.

    ```mlir
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <F0> {
      plan.buffer parameters @w : tensor<8x4xf32>
      plan.buffer activations @x : tensor<2x8xf32>
      plan.buffer activations @y : tensor<2x4xf32>
      plan.procedure @stage0.forward action F {
        plan.library "einsum" (@x[2, 8], @w[8, 4]) -> (@y[2, 4]) with {equation = "bi,ij->bj"}
        plan.library "slice" (@w[8, 4]) -> (@y[2, 4]) with {axis = "0"} scalars [#plan.scalar<"tp" * 2>]
      }
    }
    ```
  }];
  let assemblyFormat = "$op custom<Views>($inputs) `->` custom<Views>($outputs) (`with` $attrs^)? (`scalars` $scalars^)? (`accumulate` $accumulate^)? (`stream` $stream^)? attr-dict";
}

def Plan_CollectiveOp : Plan_Instruction<"collective", (ins Plan_Collective:$op, NonNegative:$group,
                                                           OptionalAttr<Plan_Reduction>:$reduction,
                                                           Zero:$dim, Zero:$dim2)> {
  let summary = "a collective over group number `group` of the program";
  let description = [{
    Makes output k of input k of all members of the group. n is the number of
    members and an output has the shape of its input, but for:

    | collective | output |
    |---|---|
    | `all_reduce` | the sum or the maximum |
    | `all_gather` | dimension `dim` is n times as large |
    | `reduce_scatter` | dimension `dim` is the n-th part |
    | `all_to_all` | dimension `dim` is the n-th part, `dim2` n times as large |
    | `broadcast` | the first member's |

    With `plan.joined` its operands are exchanged as one array; `assign-memory`
    makes them neighbours.

    *Constraints:* all_reduce and reduce_scatter have a `reduction`, the others
    none; as many outputs as inputs, at least one, of the shapes above for some
    n; a dimension is one of the input's, and 0 where it means nothing. At the
    end of the plan phase (`verify-plan`) the group is one of the program's.

    *Lifespan:* made by `convert-to-plan` from collectives of the dist dialect
    over axes of more than one rank; `bucket-gradients` joins several.

    ```mlir
    plan.program @stage0 index 0 streams ["compute", "collectives"] groups [["tp"]] schedule <F0> {
      plan.buffer activations @x : tensor<8x4xf32>
      plan.buffer activations @y : tensor<8x8xf32>
      plan.procedure @stage0.forward action F {
        plan.collective all_reduce (@x[8, 4]) -> (@x[8, 4]) group 0 reduction sum stream 1
        plan.collective all_gather (@x[8, 4]) -> (@y[8, 8]) group 0 dim 1
      }
    }
    ```
  }];
  let assemblyFormat = "$op custom<Views>($inputs) `->` custom<Views>($outputs) `group` $group (`reduction` $reduction^)? (`dim` $dim^)? (`dim2` $dim2^)? (`stream` $stream^)? attr-dict";
}

def Plan_SendOp : Plan_Instruction<"send", (ins StrAttr:$channel, DictionaryAttr:$peer)> {
  let summary = "sends views to another rank";
  let description = [{
    The receiver has the coordinates `peer` and else this rank's. `channel` names
    the transfer and is equal at both ends.

    *Constraints:* at least one input and no output; `channel` is not empty; peer
    has coordinates, 64-bit integers that are not negative.

    *Lifespan:* made by `convert-to-plan` from a `pipe.transfer`.

    ```mlir
    plan.program @stage0 index 0 streams ["compute", "collectives", "send to pp=1"] groups [] schedule <F0> {
      plan.buffer communication @act0 : tensor<4xf32>
      plan.procedure @stage0.forward action F {
        plan.send "t0" (@act0[4]) -> () peer {pp = 1} stream 2
      }
    }
    ```
  }];
  let assemblyFormat = "$channel custom<Views>($inputs) `->` custom<Views>($outputs) `peer` $peer (`stream` $stream^)? attr-dict";
}
def Plan_RecvOp : Plan_Instruction<"recv", (ins StrAttr:$channel, DictionaryAttr:$peer)> {
  let summary = "receives views from another rank";
  let description = [{
    The sender has the coordinates `peer` and else this rank's. `channel` names
    the transfer and is equal at both ends.

    *Constraints:* at least one output and no input; `channel` is not empty; peer
    has coordinates, 64-bit integers that are not negative.

    *Lifespan:* made by `convert-to-plan` from a `pipe.transfer`.

    ```mlir
    plan.program @stage1 index 1 streams ["compute", "collectives", "receive from pp=0"] groups [] schedule <F0> {
      plan.buffer communication @from0_act0 : tensor<4xf32>
      plan.procedure @stage1.forward action F {
        plan.recv "t0" () -> (@from0_act0[4]) peer {pp = 0} stream 2
      }
    }
    ```
  }];
  let assemblyFormat = "$channel custom<Views>($inputs) `->` custom<Views>($outputs) `peer` $peer (`stream` $stream^)? attr-dict";
}

def Plan_RecordOp : Plan_Instruction<"record", (ins NonNegative:$event)> {
  let summary = "marks a point on its stream";
  let description = [{
    The event is reached when all that stands before it on its stream is finished.

    *Constraints:* no inputs and no outputs; event is not negative. At the end of
    the plan phase (`verify-plan`) it is below the program's `events` and is
    recorded once in the procedure.

    *Lifespan:* made by `insert-events`.

    ```mlir
    plan.program @stage0 index 0 streams ["compute", "collectives"] groups [] schedule <F0> events 1 {
      plan.procedure @stage0.forward action F {
        plan.record 0 () -> ()
        plan.wait 0 () -> () stream 1
      }
    }
    ```
  }];
  let assemblyFormat = "$event custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? attr-dict";
}
def Plan_WaitOp : Plan_Instruction<"wait", (ins NonNegative:$event)> {
  let summary = "its stream waits for the event of the same call";
  let description = [{
    Nothing that stands behind it on its stream starts before the event is
    reached.

    *Constraints:* no inputs and no outputs; event is not negative. At the end of
    the plan phase (`verify-plan`) the event is recorded before it in the
    procedure.

    *Lifespan:* made by `insert-events`.

    ```mlir
    plan.program @stage0 index 0 streams ["compute", "collectives"] groups [] schedule <F0> events 1 {
      plan.procedure @stage0.forward action F {
        plan.record 0 () -> () stream 1
        plan.wait 0 () -> ()
      }
    }
    ```
  }];
  let assemblyFormat = "$event custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? attr-dict";
}

def Plan_LoadInputOp : Plan_Instruction<"load_input", (ins StrAttr:$input)> {
  let summary = "reads this rank's part of a model input for the call's microbatch";
  let description = [{
    Which part it is says the `layout` of the buffer that it fills. With
    `plan.ahead` it is of so many steps later.

    *Constraints:* one output and no input; `input` is not empty.

    *Lifespan:* made by `convert-to-plan` from loads of values of kind input.

    ```mlir
    plan.program @stage0 index 0 streams ["compute"] groups [] schedule <F0> {
      plan.buffer activations @x : tensor<4x8xf32> in @stage0.forward tensor "x" layout <[16 over (mb, dp), 8]>
      plan.procedure @stage0.forward action F {
        plan.load_input "x" () -> (@x[4, 8])
      }
    }
    ```
  }];
  let assemblyFormat = "$input custom<Views>($inputs) `->` custom<Views>($outputs) (`stream` $stream^)? attr-dict";
}

} // opDocGroup

#endif
