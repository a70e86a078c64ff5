// The pipe dialect and its attributes; the plan dialect uses them too.
#ifndef MERAK_PIPE_ATTRS
#define MERAK_PIPE_ATTRS
include "mlir/IR/OpBase.td"
include "mlir/IR/AttrTypeBase.td"

def Pipe_Dialect : Dialect {
  let name = "pipe";
  let cppNamespace = "::merak::pipe";
  let summary = "stage programs, their actions and schedules";
  let description = [{
    A training step cut into pipeline stages: each has its own program, which
    says what is done for a microbatch, and a schedule, which says in which
    order. Actions have nothing in common but the named values of their stage;
    stages, nothing but transfers of those. What the ops say of shapes holds
    before `localize`, in the global view, and after it, in that of one rank.

    The module's `pipe.tp_overlap` is the level of tensor-parallel overlap, with
    which a microbatch is two submicrobatches; once they have ops of their own,
    `pipe.submicrobatches` is their number and `pipe.submicrobatch` on an op the one that
    it is for.
  }];
  let useDefaultAttributePrinterParser = 1;
  let dependentDialects = ["::merak::dist::DistDialect"];
  let extraClassDeclaration = [{
    void registerAttributes();
  }];
}

// What lies in memory.
def Pipe_StoredTensor : StaticShapeTensorOf<[AnyInteger, AnyFloat, Index]>;

// The enum is merak::Action (runtime/plan/Actions.h), which planning and the
// plan have too, so that no attribute of mlir's that brings one of its own will do.
def Pipe_ActionAttr : AttrDef<Pipe_Dialect, "Action"> {
  let mnemonic = "action";
  let summary = "action of a stage";
  let description = [{
    P prologue, F forward, R recompute, B gradients of activations, W gradients
    of weights, S exchange of gradients that several stages hold parts of (tied
    weights), U update. Ops print the letter alone; elsewhere it is
    `#pipe.action<F>`.
  }];
  let parameters = (ins "::merak::Action":$value);
  let hasCustomAssemblyFormat = 1;
  // Accessors and builders of ops take and return the enum.
  let returnType = "::merak::Action";
  let convertFromStorage = "$_self.getValue()";
  let constBuilderCall = "::merak::pipe::ActionAttr::get($_builder.getContext(), $0)";
}

def Pipe_ScheduleAttr : AttrDef<Pipe_Dialect, "Schedule"> {
  let mnemonic = "schedule";
  let summary = "the order in which a stage runs its actions in one step";
  let description = [{
    `#pipe.schedule<f0, F1, R0, B0, W0, r1, B1, W1, U>`: each cell is an action
    with its microbatch; S and U run once and have none. `B0.1` is chunk 1, for P
    the second pass over the microbatches. `r1` waits for the gradient of the
    microbatch, `R0` does not, and its forward is then written `f0`. Text and
    parser are those of files for `--schedule` (docs/Schedules.md).
  }];
  let parameters = (ins ArrayRefParameter<"::merak::Step">:$steps);
  let hasCustomAssemblyFormat = 1;
}

def Pipe_DecisionAttr : AttrDef<Pipe_Dialect, "Decision"> {
  let mnemonic = "decision";
  let summary = "what planning leaves to later phases";
  let description = [{
    The module's attribute `pipe.decision`, from the stage phase on.

    `#pipe.decision<schedule = "1f1b", gradient_bucket = 1048576>`: the schedule
    phase makes the orders of the schedule of this name; where no name stands for
    them, `orders` has them, a `#pipe.schedule` for each stage, and `microbatches`
    the number that they are meant for, 0: as many as they name. `gradient_bucket`:
    bytes of gradients that one collective reduces at most, 0: each by itself.
  }];
  let parameters = (ins StringRefParameter<"name of the schedule">:$schedule,
                        OptionalParameter<"::mlir::ArrayAttr">:$orders,
                        DefaultValuedParameter<"int64_t", "0">:$microbatches,
                        DefaultValuedParameter<"int64_t", "0">:$gradient_bucket);
  let assemblyFormat = "`<` struct(params) `>`";
  let genVerifyDecl = 1;
}
#endif
