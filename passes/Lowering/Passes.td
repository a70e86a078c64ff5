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
  let options = [
    Option<"sends", "sends", "std::string", "\"early\"",
           "when a value of a microbatch goes to another stage: early, as soon as it is there; late, when its action is done; blocking, so, and the stage waits until it has left">
  ];
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

def KeepCopies : Pass<"merak-keep-copies", "::mlir::ModuleOp"> {
  let summary = "keep what a step converts of parameters for the next one, written by the update";
  let description = [{
    Input: local types. What action G converts of a whole f32 parameter to 16 bits gets
    `pipe.copy_of`, the update of the parameter `pipe.copy`, and G converts it no
    more. Lowering makes it a buffer that outlives the step, an output of the
    update, and what is converted after parameters were loaded. Stays as it is: what
    is of a parameter whose update takes rows or is left to the next step
    (`train.delayed`), the second type of a parameter, and rows that a GPU reads at a longer
    pitch.
    ```mlir
    pipe.value step @w.as_used : tensor<8x16xbf16>
    pipe.action G @gather {
      %0 = pipe.load @w : tensor<8x16xf32>
      %1 = train.cast %0 : tensor<8x16xf32> to tensor<8x16xbf16>
      pipe.store %1 to @w.as_used : tensor<8x16xbf16>
    }
    pipe.action U @update { ... pipe.update @w ... }
    // becomes
    pipe.value step @w.as_used : tensor<8x16xbf16> {pipe.copy_of = @w}
    pipe.action U @update { ... pipe.update @w ... {pipe.copy = @w.as_used} }
    ```
  }];
  let statistics = [
    Statistic<"copies", "copies", "copies of parameters that are kept"> ];
}

def UpdateInPlace : Pass<"merak-update-in-place", "::mlir::ModuleOp"> {
  let summary = "let an instruction write over an operand that nobody reads afterwards";
  let description = [{
    For collectives, element-wise kernels and the library kernels of
    runtime/plan/SharedPlaces.h: an output that covers its buffer takes over the
    buffer of an input with the same view. The accumulators of gradients become
    the reduced gradients this way. In a backward action the input may also be a
    value that an earlier action of the microbatch left, and the output one that
    is left for W: the gradient of logits lies where the logits did, in a buffer
    with as many slots as the two lives together need.
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"buffersSaved", "buffers-saved", "buffers that share another one's memory">
  ];
}

def WriteSums : Pass<"merak-write-sums", "::mlir::ModuleOp"> {
  let summary = "let the first microbatch write its sums instead of adding to zeros";
  let description = [{
    A sum over microbatches that is cleared before the first of them, and added to
    as a whole by a library kernel before anything else touches it, is written by
    that kernel, and not cleared. If its procedure runs for several microbatches,
    the call of the first gets a copy of it, unless it writes less than a hundredth
    of the bytes of all sums. Sums that generated kernels add to
    stay as they are: these kernels would be others.
    ```mlir
    plan.procedure @stage0.clear action P { fill @sum0 }
    plan.procedure @stage0.weight action W { einsum ... -> @sum0 accumulate }
    // becomes, for the first microbatch
    plan.procedure @stage0.weight.first action W { einsum ... -> @sum0 }
    ```
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"sums", "sums", "sums that are written first">
  ];
}

def PlaceDelayed : Pass<"merak-place-delayed", "::mlir::ModuleOp"> {
  let summary = "take steps by gradients of the step before in front of the first readers";
  let description = [{
    What action G sums and applies of gradients that the step before left
    (`train.delayed`) goes into the first call that reads the parameter: the step in
    front of the first instruction that does, the sum to the begin of the call. What
    G makes of the parameter once a step goes along, in front of its own first reader. If
    the procedure of the call runs for several microbatches, the call gets a copy of
    it.
    ```mlir
    plan.procedure @stage0.gather action "G" {
      all_reduce @w.sum; sgd_update @w by @w.sum; all_reduce @v.sum; sgd_update @v by @v.sum
    }
    plan.procedure @stage0.forward action "F" { ... (@w) ... (@v) }
    // becomes, for the first microbatch
    plan.procedure @stage0.forward.first action "F" {
      all_reduce @w.sum; all_reduce @v.sum; ...
      sgd_update @w by @w.sum; ... (@w) ... sgd_update @v by @v.sum; ... (@v)
    }
    ```
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"steps", "steps", "steps in front of the first readers of their parameters">
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

    What the update sums over ranks besides (a loss, a count of tokens) is final
    before the last backward pass. It is reduced where it lies, in front of the
    first reductions of gradients, and may share a bucket with them.

    Of a parameter that is stored in parts the update scatters the sum; that
    moves as well, and its result, which was the update's own, becomes a buffer
    of the step. What is scattered in every microbatch gets the stream.
    ```mlir
    plan.procedure @stage0.update action "U" { reduce_scatter @sum0 -> @part0; ... }
    // becomes
    plan.procedure @stage0.weight.last action "W" {
      ... (@sum0); reduce_scatter @sum0 -> @part0 stream 2
    }
    ```
  }];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"reductions", "reductions", "reductions that left the update">
  ];
}

def PrefetchParameters : Pass<"merak-prefetch-parameters", "::mlir::ModuleOp"> {
  let summary = "gather stored parameters ahead of their uses, several with one collective";
  let description = [{
    A gather of a parameter, with what makes its operand of parameters alone, may
    stand anywhere in front of its first use. Gathers are filled into buckets in
    the order of these uses, those over one group and dimension and of one type,
    and a bucket is issued where the one in front of it is used first, on a
    stream of its own. So two buckets are there at a time, or one of them is a
    single gather that is larger.
    ```mlir
    all_gather @a.part -> @a; ... (@a); all_gather @b.part -> @b; ... (@b)
    // becomes
    all_gather @a.part -> @a stream 2; all_gather @b.part -> @b stream 2; ... (@a); ... (@b)
    ```
    What action G gathers once a step is gathered by the first call that reads
    some of it, in the same way; if its procedure runs for several microbatches,
    the call gets a copy of it.
  }];
  let options = [
    Option<"bytes", "bytes", "int64_t", "-1",
           "most bytes of a bucket of several parameters; -1: what the stage phase decided, or 0">
  ];
  let dependentDialects = ["::merak::plan::PlanDialect"];
  let statistics = [
    Statistic<"gathers", "gathers", "gathers of parameters ahead of their uses">,
    Statistic<"buckets", "buckets", "collectives that gather several parameters">
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

    Gradients that are scattered, each rank keeping its part, are operands of one
    collective likewise, without neighbours: the parts of one rank lie apart in
    each of them. What is scattered in every microbatch is added to its
    accumulator in front of the next bucket.
    ```mlir
    ... (@a); reduce_scatter @a -> @a.part stream 2; copy @a.part -> @sum0 accumulate
    ... (@b); reduce_scatter @b -> @b.part stream 2; copy @b.part -> @sum1 accumulate
    // becomes
    ... (@a); ... (@b); reduce_scatter @a, @b -> @a.part, @b.part stream 2; ...
    copy @a.part -> @sum0 accumulate; copy @b.part -> @sum1 accumulate
    ```
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
    result or changes its operand, or if it gathers again (`dist.regather`) what
    was there before the instructions in front of it. Groups that reach over
    stages keep their stream, since other stages run other programs.

    Sums of gradients that the step before left (`train.delayed`) get a stream of
    their own, and go behind what lookups of the call exchange, if that is in front
    of their first use. Exchanges of rows that the step before left go from action G into
    the first forward call, behind both, onto a stream that nothing waits for before
    the update.
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
