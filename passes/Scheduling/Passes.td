// Passes of the schedule phase.
#ifndef MERAK_SCHEDULING_PASSES
#define MERAK_SCHEDULING_PASSES

include "mlir/Pass/PassBase.td"

def AttachSchedule : Pass<"merak-attach-schedule", "::mlir::ModuleOp"> {
  let summary = "give every stage its ordered list of actions";
  let description = [{
    The list is made by a generator (passes/Planning/Schedule.h) and checked
    against the module's transfers: every action once, dependences, deadlock.
    Output: `schedule` on every stage, e.g. "F0 F1 B0 W0 B1 W1 U".
  }];
  let options = [Option<"schedule", "schedule", "std::string", "\"\"",
                        "name of the schedule; empty: what the stage phase decided, else 1f1b">];
}

#endif
