// Passes that turn stage programs into plan programs.
#ifndef MERAK_LOWERING_PASSES
#define MERAK_LOWERING_PASSES

include "mlir/Pass/PassBase.td"

def ConvertToPlan : Pass<"merak-convert-to-plan", "::mlir::ModuleOp"> {
  let summary = "replace each pipe.stage by a plan.program of instructions on buffers";
  let description = [{
    Ops that move elements become views; contractions and the like library
    kernels; element-wise ops generated kernels; collectives, sends and receives
    instructions on their own streams. Every value that is stored is written
    where it goes by the op that computes it, where strides allow.

    Input: local shapes, a schedule on every stage.
    ```mlir
    pipe.action F @forward {
      %x = pipe.load @x : tensor<4x8xf32>
      %y = train.transpose %x perm [1, 0] : tensor<4x8xf32>
      %z = train.softmax %y axis 1 : tensor<8x4xf32>
      pipe.store %z to @z : tensor<8x4xf32>
    }
    ```
    Output: buffers without offsets, no events.
    ```mlir
    plan.procedure @stage0.forward action "F" {
      plan.library "softmax"(@x[8, 4] by [1, 8]) -> (@z[8, 4]) with {axis = "1"}
    }
    ```
  }];
  let dependentDialects = ["::merak::plan::PlanDialect", "::mlir::func::FuncDialect",
                           "::mlir::linalg::LinalgDialect", "::mlir::arith::ArithDialect",
                           "::mlir::math::MathDialect", "::mlir::tensor::TensorDialect"];
  let statistics = [
    Statistic<"copies", "copies", "copy instructions that views could not avoid">
  ];
}

def LowerBatchStatistics : Pass<"merak-lower-batch-statistics", "::mlir::ModuleOp"> {
  let summary = "make sums over the rank's samples of train.batch_mean and train.track";
  let description = [{
    Input: local shapes. A microbatch of one number a channel has no variance:
    an error at the op.
    ```mlir
    %m = train.batch_mean %x : tensor<4x16xf32>
    ```
    becomes
    ```mlir
    %s = train.reduce_sum %x axes [0] keep : tensor<4x16xf32>
    %a = train.mul %s, %quarter : tensor<1x16xf32>, tensor<f32>
    %m = train.expand %a : tensor<1x16xf32> to tensor<4x16xf32>
    ```
  }];
  let dependentDialects = ["::merak::train::TrainDialect"];
}

def UpdateInPlace : Pass<"merak-update-in-place", "::mlir::ModuleOp"> {
  let summary = "let an instruction write over an operand that nobody reads afterwards";
  let description = [{
    For collectives and element-wise kernels: an output that covers its buffer
    takes over the buffer of an input with the same view. The accumulators of
    gradients become the reduced gradients this way.
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"buffersSaved", "buffers-saved", "buffers that share another one's memory">
  ];
}

def OverlapGradients : Pass<"merak-overlap-gradients", "::mlir::ModuleOp"> {
  let summary = "reduce each gradient as soon as it is final, beside the backward pass";
  let description = [{
    All-reduces that the update does in place, on an accumulator it has not
    touched before, go into the last call that touches the accumulator, onto a
    stream of their own. If the procedure of that call runs for several
    microbatches, the call gets a copy of it.
    ```mlir
    plan.procedure @stage0.weight action "W" { ... (@sum0) ... (@sum1) }
    plan.procedure @stage0.update action "U" { all_reduce @sum0; all_reduce @sum1; ... }
    // becomes, for the last microbatch
    plan.procedure @stage0.weight.last action "W" {
      ... (@sum0); all_reduce @sum0 stream 2; ... (@sum1); all_reduce @sum1 stream 2
    }
    ```
    If the backward pass in front of that call sends nothing, both become one
    procedure, in which gradients of weights follow their layer.

    A weight with several uses on the stage has an accumulator for each, and the
    update adds them up before it reduces: the sum moves along, behind the last
    of them.
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"reductions", "reductions", "reductions that left the update">
  ];
}

def BucketGradients : Pass<"merak-bucket-gradients", "::mlir::ModuleOp"> {
  let summary = "reduce several gradients with one collective";
  let description = [{
    All-reduces in place of whole accumulators, over one group and of one type,
    are filled into buckets in the order in which they are ready. A bucket is
    reduced where its last member is ready, as one array: its operands are
    `plan.joined`, which memory planning makes neighbours in the arena.
    ```mlir
    ... (@sum1); all_reduce @sum1 stream 2; ... (@sum0); all_reduce @sum0 stream 2
    // becomes
    ... (@sum1); ... (@sum0); all_reduce @sum1, @sum0 stream 2 {plan.joined}
    ```
    A gradient larger than a bucket stays alone.
  }];
  let options = [
    Option<"bytes", "bytes", "int64_t", "-1",
           "most bytes of a bucket of several gradients; -1: what the stage phase decided, or 0">
  ];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"buckets", "buckets", "collectives that reduce several gradients">,
    Statistic<"joined", "joined", "gradients reduced by those">
  ];
}

def AssignStreams : Pass<"merak-assign-streams", "::mlir::ModuleOp"> {
  let summary = "keep a collective on the computation's stream if nothing could run beside it";
  let description = [{
    A second stream costs a hand-over each way. It is worth that only if some
    instruction stands between the collective and the first one that needs its
    result or changes its operand. Groups that reach over stages keep their
    stream, since other stages run other programs.
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"inline_", "collectives-inline", "collectives on the computation's stream">,
    Statistic<"beside", "collectives-beside", "collectives beside the computation">
  ];
}

def InsertEvents : Pass<"merak-insert-events", "::mlir::ModuleOp"> {
  let summary = "order instructions of different streams that touch the same bytes";
  let description = [{
    Inside a procedure a record behind the earlier and a wait before the later
    instruction, unless something orders them already; between calls a wait on
    the call. Needs offsets, since buffers may share memory.
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"events", "events", "events recorded in procedures">,
    Statistic<"callWaits", "call-waits", "waits between calls">
  ];
}

def VerifyPlan : Pass<"merak-verify-plan", "::mlir::ModuleOp"> {
  let summary = "check that every instruction is complete and every view is inside its buffer";
  let description = [{
    The invariants of the plan phase that are local to a program: symbols
    resolve, views lie inside their buffers, streams, groups and events exist,
    each wait has its record. Races, matching and progress over all ranks are
    checked on the written plan by verifyPlan (runtime/plan/Verify.h).
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
}

#endif
