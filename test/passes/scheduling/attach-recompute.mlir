// Stages with a recompute action list it; those without do not.
// RUN: merak-opt %s --merak-attach-schedule="schedule=1f1b" | FileCheck %s --check-prefix=ONE
// RUN: merak-opt %s --merak-attach-schedule="schedule=early" | FileCheck %s --check-prefix=EARLY
// RUN: merak-opt %s --merak-attach-schedule="schedule=scp" | FileCheck %s --check-prefix=SCP

// ONE: @stage0 index 0 schedule <F0, F1, r0, B0, W0, F2, r1, B1, W1, F3, r2, B2, W2, r3, B3, W3, U>
// ONE: @stage1 index 1 schedule <F0, B0, W0, F1, B1, W1, F2, B2, W2, F3, B3, W3, U>
// EARLY: @stage0 index 0 schedule <F0, F1, r0, B0, W0, F2, r1, B1, W1, f3, r2, B2, W2, R3, B3, W3, U>
// EARLY: @stage1 index 1 schedule <F0, B0, W0, F1, B1, W1, F2, B2, W2, F3, B3, W3, U>
// SCP: @stage0 index 0 schedule <f0, f1, F2, R0, B0, W0, R1, B1, W1, F3, r2, B2, W2, r3, B3, W3, U>
// SCP: @stage1 index 1 schedule <F0, B0, W0, F1, B1, W1, F2, B2, W2, F3, B3, W3, U>
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, mb = 4>} {
  pipe.stage @stage0 index 0 {
    pipe.action F @forward {
    }
    pipe.action R @recompute {
    }
    pipe.action B @backward {
    }
    pipe.action W @weight {
    }
    pipe.action U @update {
    }
  }
  pipe.stage @stage1 index 1 {
    pipe.action F @forward {
    }
    pipe.action B @backward {
    }
    pipe.action W @weight {
    }
    pipe.action U @update {
    }
  }
}
