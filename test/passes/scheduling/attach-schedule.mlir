// A stage lists the actions it has, in the order of the named schedule.
// RUN: merak-opt %s --merak-attach-schedule="schedule=1f1b" | FileCheck %s --check-prefix=ONE
// RUN: merak-opt %s --merak-attach-schedule="schedule=gpipe" | FileCheck %s --check-prefix=GPIPE
// RUN: not merak-opt %s --merak-attach-schedule="schedule=zigzag" 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// ONE: pipe.stage @stage0 index 0 schedule <F0, F1, B0, W0, F2, B1, W1, B2, W2, U>
// ONE: pipe.stage @stage1 index 1 schedule <F0, B0, W0, F1, B1, W1, F2, B2, W2, U>
// GPIPE: pipe.stage @stage0 index 0 schedule <F0, F1, F2, B0, W0, B1, W1, B2, W2, U>
// GPIPE: pipe.stage @stage1 index 1 schedule <F0, F1, F2, B0, W0, B1, W1, B2, W2, U>
// UNKNOWN: zigzag
module attributes {dist.mesh = #dist.mesh<pp = 2, dp = 1, tp = 1, mb = 3>} {
  pipe.stage @stage0 index 0 {
    pipe.action F @forward {
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
