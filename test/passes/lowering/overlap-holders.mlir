// REQUIRES: merak-opt
// RUN: merak-opt %s --merak-overlap-gradients --split-input-file | FileCheck %s

// Two pipelines, whose stages have the same parameters: both sum each gradient
// behind the last microbatch that they have themselves.
// CHECK-LABEL: plan.program @two_microbatches
// CHECK: plan.procedure @weight.last action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 2
// CHECK: plan.call @weight microbatch 0
// CHECK-NEXT: plan.call @weight.last microbatch 1
// CHECK-LABEL: plan.program @one_microbatch
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 2
// CHECK: plan.procedure @update action U
// CHECK-NEXT: }
module {
plan.program @two_microbatches index 0 streams ["compute", "collectives"] groups [["holders.0"]] schedule <W0, W1, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @weight microbatch 1 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
plan.program @one_microbatch index 1 streams ["compute", "collectives"] groups [["holders.0"]] schedule <W2, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 2 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
}

// -----

// One has the second gradient first: the order is that of the update.
// CHECK-LABEL: plan.program @first_comes_first
// CHECK: plan.procedure @weight action W
// CHECK-NOT: all_reduce
// CHECK: plan.procedure @update action U
// CHECK-NEXT: plan.collective all_reduce (@sum0[4])
// CHECK-NEXT: plan.collective all_reduce (@sum1[4])
// CHECK-LABEL: plan.program @second_comes_first
// CHECK: plan.procedure @weight action W
// CHECK-NOT: all_reduce
// CHECK: plan.procedure @update action U
// CHECK-NEXT: plan.collective all_reduce (@sum0[4])
// CHECK-NEXT: plan.collective all_reduce (@sum1[4])
module {
plan.program @first_comes_first index 0 streams ["compute", "collectives"] groups [["holders.0"]] schedule <W0, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
plan.program @second_comes_first index 1 streams ["compute", "collectives"] groups [["holders.0"]] schedule <W1, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 1 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
}

// -----

// A stage that shares one gradient with one stage and the other with another:
// what is first in the updates of both moves, what is second does not.
// CHECK-LABEL: plan.program @with_two_others
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
// CHECK-NEXT: }
// CHECK: plan.procedure @update action U
// CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 1 reduction sum stream 1
// CHECK-LABEL: plan.program @with_one_other
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 2
// CHECK: plan.procedure @update action U
// CHECK-NEXT: }
// CHECK-LABEL: plan.program @elsewhere
// CHECK: plan.procedure @weight action W
// CHECK: plan.collective all_reduce
// CHECK: plan.procedure @update action U
// CHECK-NEXT: }
module {
plan.program @with_two_others index 0 streams ["compute", "collectives"] groups [["holders.0"], ["holders.1"]] schedule <W0, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 1 reduction sum stream 1
  }
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
plan.program @with_one_other index 1 streams ["compute", "collectives"] groups [["holders.0"]] schedule <W1, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 1 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
plan.program @elsewhere index 2 streams ["compute", "collectives"] groups [["holders.2"]] schedule <W1, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 1 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
}

// -----

// What is first for one and second for another does not move, so nothing comes
// in front of what the other has first; that is first for both who have it.
// CHECK-LABEL: plan.program @second_here
// CHECK: plan.procedure @weight action W
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
// CHECK-NEXT: plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
// CHECK-NEXT: plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 1 reduction sum stream 2
// CHECK: plan.procedure @update action U
// CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
// CHECK-LABEL: plan.program @first_here
// CHECK: plan.procedure @weight action W
// CHECK-NOT: all_reduce
// CHECK: plan.procedure @update action U
// CHECK-NEXT: plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
module {
plan.program @second_here index 0 streams ["compute", "collectives"] groups [["holders.0"], ["holders.1"]] schedule <W0, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.buffer gradients @sum1 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
    plan.library "copy" (@act[4]) -> (@sum1[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum1[4]) -> (@sum1[4]) group 1 reduction sum stream 1
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 0 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
plan.program @first_here index 1 streams ["compute", "collectives"] groups [["holders.0"]] schedule <W1, U> {
  plan.buffer activations @act : tensor<4xf32>
  plan.buffer gradients @sum0 : tensor<4xf32>
  plan.procedure @weight action W {
    plan.library "copy" (@act[4]) -> (@sum0[4]) accumulate
  }
  plan.procedure @update action U {
    plan.collective all_reduce (@sum0[4]) -> (@sum0[4]) group 0 reduction sum stream 1
  }
  plan.call @weight microbatch 1 slots [] waits []
  plan.call @update microbatch -1 slots [] waits []
}
}
