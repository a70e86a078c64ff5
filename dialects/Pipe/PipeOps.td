// The ops of the pipe dialect: the program of each stage, by actions.
#ifndef MERAK_PIPE_OPS
#define MERAK_PIPE_OPS
include "dialects/Pipe/PipeDialect.td"

// Not by including its definition: with it come the enums of train.
def Train_OptimizerAttr : Attr<CPred<"::llvm::isa<::merak::train::OptimizerAttr>($_self)">, "#train.optimizer"> {
  let storageType = "::merak::train::OptimizerAttr";
  let returnType = "::merak::train::OptimizerAttr";
  let convertFromStorage = "$_self";
}

defvar SymbolUser = DeclareOpInterfaceMethods<SymbolUserOpInterface>;
defvar Ordinal = ConfinedAttr<I64Attr, [IntNonNegative]>;

class Pipe_Op<string mnemonic, list<Trait> traits = []> : Op<Pipe_Dialect, mnemonic, traits>;

def Pipe_StageOp : Pipe_Op<"stage", [Symbol, SymbolTable, NoTerminator, IsolatedFromAbove, SingleBlock]> {
  let summary = "the program of one pipeline stage";
  let description = [{
    Holds `pipe.value` declarations and one `pipe.action` per kind and chunk.
    `index` is the coordinate of its ranks on "pp". With several chunks the stage
    has several parts of the model: chunk c of stage s of p is part c*p+s.
    `schedule` is the ordered list of the actions of one step, e.g. `<F0, F1, B0,
    W0, B1, W1, U>`; `F0.1` is chunk 1.

    *Constraints:* index is not negative; the body holds values and actions only,
    and of each kind and chunk at most one action.

    *Lifespan:* made by `cut-stages`; the schedule phase sets `schedule`;
    `convert-to-plan` makes a `plan.program` of it, for which every action has to
    be scheduled and every scheduled action to be there.

    ```mlir
    pipe.stage @stage0 index 0 schedule <F0, F1> {
      pipe.value input @x : tensor<4x8xf32> tensor "x"
      pipe.value activation @act0 : tensor<4x8xf32>
      pipe.action F @forward {
        %0 = pipe.load @x : tensor<4x8xf32>
        pipe.store %0 to @act0 : tensor<4x8xf32>
      }
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Ordinal:$index, OptionalAttr<Pipe_ScheduleAttr>:$schedule);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name `index` $index (`schedule` $schedule^)? attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Pipe_ValueOp : Pipe_Op<"value", [Symbol, HasParent<"StageOp">]> {
  let summary = "a named value of a stage that outlives an action";
  let description = [{
    `type` is global before `localize` and local after it; `layout` says which
    part of the global tensor the value is. `tensor` is the name a user knows:
    that of the parameter, the model input, the output, or
    "<parameter>.exp_avg".

    | kind | the value | `tensor` |
    |---|---|---|
    | `input` | data: the box of the rank and microbatch, read before the action | required |
    | `parameter` | trained | required |
    | `constant` | a frozen table, or a running statistic | required |
    | `state` | of the optimizer, beside a parameter | required |
    | `gradient` | lives a step; stores add over microbatches | |
    | `step` | the same for results of the prologue and the loss | |
    | `activation` | one copy for each microbatch in flight | |
    | `result` | what the step returns: the loss, the outputs of the model | the output's name, else that of the value |
    | `carried` | what a step leaves for the next one; `pipe.initial` before the first and after a flush. In no checkpoint | |

    An input with `pipe.ahead` is that of so many steps later.

    *Constraints:* the type has a static shape and integers, floats or indices as
    elements; kinds that need it have a `tensor`, carried values a number as
    `pipe.initial`; `layout` has as many dimensions
    as the type, each a multiple of the type's.

    *Lifespan:* made by `cut-stages`, and by `localize` for constants that are
    split; `convert-to-plan` makes a `plan.buffer` of it.

    ```mlir
    pipe.stage @stage0 index 0 {
      pipe.value input @x : tensor<4x8xf32> tensor "x" layout <[16 over (mb, dp), 8]>
      pipe.value parameter @w : tensor<8x32xf32> tensor "w" layout <[8, 64 over (tp)]>
      pipe.value activation @act0 : tensor<4x32xf32>
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, TypeAttrOf<Pipe_StoredTensor>:$type, Pipe_ValueKind:$kind,
                       OptionalAttr<Dist_LayoutAttr>:$layout, OptionalAttr<StrAttr>:$tensor);
  let assemblyFormat = "$kind $sym_name `:` $type (`tensor` $tensor^)? (`layout` $layout^)? attr-dict";
  let hasVerifier = 1;
}

def Pipe_ActionOp : Pipe_Op<"action", [Symbol, NoTerminator, IsolatedFromAbove, SingleBlock, HasParent<"StageOp">]> {
  let summary = "what a stage does for one microbatch (P, F, R, B, W) or once a step (S, U)";
  let description = [{
    Ops of the train and dist dialects between loads and stores of the stage's
    values, in the order in which they run. docs/Schedules.md says what the kinds
    are. `chunk` is the part of the model on this stage, for P the pass over the
    microbatches.

    *Constraints:* chunk is not negative, and 0 for S and U, which are for all
    parts of the stage.

    *Lifespan:* made by `cut-stages`; `convert-to-plan` makes a `plan.procedure`
    of it.

    ```mlir
    pipe.stage @stage0 index 0 {
      pipe.value activation @act0 : tensor<4x8xf32>
      pipe.value activation @act1 : tensor<4x8xf32>
      pipe.action F @forward.1 chunk 1 {
        %0 = pipe.load @act0 : tensor<4x8xf32>
        %1 = train.relu %0 : tensor<4x8xf32>
        pipe.store %1 to @act1 : tensor<4x8xf32>
      }
    }
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, Pipe_ActionAttr:$kind, DefaultValuedAttr<Ordinal, "0">:$chunk);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "custom<ActionLetter>($kind) $sym_name (`chunk` $chunk^)? attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Pipe_LoadOp : Pipe_Op<"load", [MemoryEffects<[MemRead]>, HasParent<"ActionOp">, SymbolUser]> {
  let summary = "reads a named value of the stage";
  let description = [{
    The value as the action's microbatch has it. A value that a `pipe.transfer`
    brings is received before the first action that loads it.

    *Constraints:* `value` names a value of the stage, of the result's type.

    *Lifespan:* as its action.

    ```mlir
    pipe.stage @stage0 index 0 {
      pipe.value input @x : tensor<4x8xf32> tensor "x"
      pipe.action F @forward {
        %0 = pipe.load @x : tensor<4x8xf32>
      }
    }
    ```
  }];
  let arguments = (ins FlatSymbolRefAttr:$value);
  let results = (outs AnyRankedTensor:$result);
  let assemblyFormat = "$value attr-dict `:` type($result)";
}

def Pipe_StoreOp : Pipe_Op<"store", [MemoryEffects<[MemWrite]>, HasParent<"ActionOp">, SymbolUser]> {
  let summary = "writes a named value; with `accumulate` adds to it";
  let description = [{
    Accumulating stores add up over the microbatches of a step; the value is zero
    at its start.

    *Constraints:* `value` names a value of the stage, of the operand's type, that
    is no input; with `accumulate` it is of kind gradient, step or carried.

    *Lifespan:* as its action.

    ```mlir
    pipe.stage @stage0 index 0 {
      pipe.value input @dy : tensor<4x8xf32> tensor "dy"
      pipe.value gradient @sum0 : tensor<4x8xf32>
      pipe.action B @backward {
        %0 = pipe.load @dy : tensor<4x8xf32>
        pipe.store %0 to @sum0 accumulate : tensor<4x8xf32>
      }
    }
    ```
  }];
  let arguments = (ins AnyRankedTensor:$operand, FlatSymbolRefAttr:$value, UnitAttr:$accumulate);
  let assemblyFormat = "$operand `to` $value (`accumulate` $accumulate^)? attr-dict `:` type($operand)";
}

def Pipe_UpdateOp : Pipe_Op<"update", [AttrSizedOperandSegments, MemoryEffects<[MemRead, MemWrite]>, HasParent<"ActionOp">, SymbolUser]> {
  let summary = "one optimizer step on a parameter and its states, in place";
  let description = [{
    `clip` is a scalar factor on the gradient; where it is not finite nothing
    changes. With `ids` the gradient is row-sparse (`train.coalesce`): the step is
    taken on the rows of the parameter and its states that they name, and all
    others stay as they are. `split_axis` is, as of `train.gather`, the mesh
    axis whose coordinate says which rows are here. `states` are, in this order:

    | optimizer | states |
    |---|---|
    | sgd | none; with momentum the momentum |
    | adamw, adam | the averages of the gradient and of its square |
    | adagrad | the sum of the squares |

    *Constraints:* as many states as the optimizer has; clip is a scalar;
    `parameter` names a value of kind parameter of the stage and `states` values
    of kind state, all of one type: the gradient's, or, with `ids`, one of which a
    slice along the first dimension is what the gradient has behind those of ids.

    *Lifespan:* made from `train.update` by `cut-stages`; `convert-to-plan` makes
    the optimizer's `plan.library` of it.

    ```mlir
    pipe.stage @stage0 index 0 {
      pipe.value parameter @w : tensor<8xf32> tensor "w"
      pipe.value state @w.momentum : tensor<8xf32> tensor "w.momentum"
      pipe.value gradient @sum0 : tensor<8xf32>
      pipe.action U @update {
        %0 = pipe.load @sum0 : tensor<8xf32>
        pipe.update @w by #train.optimizer<sgd, momentum = 0.9> states [@w.momentum] gradient %0 : tensor<8xf32>
      }
    }
    ```
  }];
  let arguments = (ins AnyRankedTensor:$gradient, Optional<AnyRankedTensor>:$clip, Optional<AnyRankedTensor>:$ids,
                       FlatSymbolRefAttr:$parameter, FlatSymbolRefArrayAttr:$states, Train_OptimizerAttr:$optimizer,
                       OptionalAttr<StrAttr>:$split_axis);
  let assemblyFormat = [{
    $parameter `by` $optimizer `states` $states `gradient` $gradient (`clip` $clip^)? (`at` $ids^)? attr-dict
    `:` type(operands)
  }];
  let hasVerifier = 1;
}

def Pipe_TransferOp : Pipe_Op<"transfer", [Symbol, SymbolUser]> {
  let summary = "a value that crosses stages";
  let description = [{
    Sent after action `kind` of chunk `chunk` of the source stage has stored it,
    received before the target stage's action that loads it first. Source and
    target ranks have equal coordinates except "pp". Stages on meshes of their own
    (`dist.devices`) exchange the boxes that two ranks share by the layouts of both
    values (docs/Parts.md).

    *Constraints:* chunk is not negative; source and target are values of
    different stages and have one type, or, between stages on meshes of their own,
    one element type and global shape, and the source is complete over its devices;
    the source's stage has the action. At the
    end of the stage phase (`verify-stages`) no value is received twice.

    *Lifespan:* made by `cut-stages`; `convert-to-plan` makes a `plan.send` and a
    `plan.recv` of it, whose channel is its name.

    ```mlir
    pipe.stage @stage0 index 0 {
      pipe.value input @x : tensor<4x8xf32> tensor "x"
      pipe.value activation @act0 : tensor<4x8xf32>
      pipe.action F @forward {
        %0 = pipe.load @x : tensor<4x8xf32>
        pipe.store %0 to @act0 : tensor<4x8xf32>
      }
    }
    pipe.stage @stage1 index 1 {
      pipe.value activation @from0_act0 : tensor<4x8xf32>
    }
    pipe.transfer F @t0 from @stage0::@act0 to @stage1::@from0_act0
    ```
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, SymbolRefAttr:$source, SymbolRefAttr:$target, Pipe_ActionAttr:$kind,
                       DefaultValuedAttr<Ordinal, "0">:$chunk);
  let assemblyFormat = "custom<ActionLetter>($kind) $sym_name (`chunk` $chunk^)? `from` $source `to` $target attr-dict";
}
#endif
