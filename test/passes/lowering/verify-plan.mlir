// What the closing check of the plan phase finds, all of it.
// RUN: merak-opt %s --merak-verify-plan --split-input-file --verify-diagnostics

// Nothing is wrong here.
func.func private @kernel0(%x: tensor<4xf32>) -> tensor<4xf32> attributes {merak.kernel}
plan.program @fine index 0 streams ["compute", "collectives"] groups [["tp"]] schedule <F0, F1> events 1 {
  plan.buffer activations @a : tensor<4xf32>
  plan.buffer workspace @b : tensor<4xf32> in @f
  plan.procedure @f action F {
    plan.kernel @kernel0 (@a[4]) -> (@b[4]) rows 0
    plan.record 0 () -> ()
    plan.wait 0 () -> () stream 1
    plan.collective all_reduce (@b[4]) -> (@a[4]) group 0 reduction sum stream 1
  }
  plan.call @f microbatch 0 slots [] waits []
  plan.call @f microbatch 1 slots [] waits [0, 1, 0]
  plan.output "a" of @a shape [4]
}

// -----

func.func private @other(%x: tensor<4xf32>) -> tensor<4xf32>
plan.program @instructions index 0 streams ["compute"] groups [["tp"]] schedule <F0> events 1 {
  plan.buffer activations @a : tensor<4xf32>
  plan.buffer workspace @b : tensor<4xf32> in @g
  plan.procedure @f action F {
    // expected-error @+1 {{runs on stream 1 of 1}}
    plan.library "fill" () -> (@a[4]) stream 1
    // expected-error @+1 {{is over group 1 of 1}}
    plan.collective all_reduce (@a[4]) -> (@a[4]) group 1 reduction sum
    // expected-error @+1 {{names @missing, which is no kernel}}
    plan.kernel @missing (@a[4]) -> (@a[4]) rows 0
    // expected-error @+1 {{names @other, which is no kernel}}
    plan.kernel @other (@a[4]) -> (@a[4]) rows 0
    // expected-error @+1 {{names the buffer @c, which does not exist}}
    plan.library "fill" () -> (@c[4])
    // expected-error @+1 {{uses 'b', which lives in another procedure}}
    plan.library "fill" () -> (@b[4])
    // expected-error @+1 {{reaches element 4 of 'a', which has 4}}
    plan.library "fill" () -> (@a[4] at 1)
    // expected-error @+1 {{waits for event 0, which nothing before it records}}
    plan.wait 0 () -> ()
    plan.record 0 () -> ()
    // expected-error @+1 {{records event 0 again}}
    plan.record 0 () -> ()
    // expected-error @+1 {{uses event 1 of 1}}
    plan.record 1 () -> ()
  }
}

// -----

plan.program @calls index 0 streams ["compute"] groups [] schedule <F0> {
  plan.procedure @f action F {
  }
  // expected-error @+1 {{names the procedure @g, which does not exist}}
  plan.call @g microbatch 0 slots [] waits []
  // expected-error @+1 {{lets stream 0 wait on stream 1 of 1}}
  plan.call @f microbatch 0 slots [] waits [0, 1, 0]
  // expected-error @+1 {{number 2 waits for call 2, which does not come before it}}
  plan.call @f microbatch 1 slots [] waits [0, 0, 2]
  // expected-error @+1 {{names the buffer @a, which does not exist}}
  plan.output "a" of @a shape [4]
}
