// Each of several pipelines has a schedule of its own over its share of the
// microbatches, which keep their numbers; the prologue goes over all of them.
// RUN: merak-opt %s --merak-attach-schedule="schedule=1f1b" | FileCheck %s
// RUN: not merak-opt %s --merak-attach-schedule="schedule=zigzag" 2>&1 | FileCheck %s --check-prefix=UNKNOWN

// CHECK: @stage0 index 0 schedule <F0, F1, B0, W0, F2, B1, W1, B2, W2, S, U>
// CHECK: @stage1 index 1 schedule <P0, P1, P2, P3, P4, F0, B0, W0, F1, B1, W1, F2, B2, W2, S, U>
// CHECK: @stage2 index 2 schedule <P0, P1, P2, P3, P4, F3, B3, W3, F4, B4, W4, S, U>
// UNKNOWN: error: pipeline 0: {{.*}}zigzag
module attributes {dist.mesh = #dist.mesh<pp = 3, dp = 1, tp = 1, mb = 5>} {
  pipe.stage @stage0 index 0 attributes {dist.pipeline = array<i64: 0, 0, 3>} {
    pipe.action F @forward {
    }
    pipe.action B @backward {
    }
    pipe.action W @weight {
    }
    pipe.action S @exchange {
    }
    pipe.action U @update {
    }
  }
  pipe.stage @stage1 index 1 attributes {dist.pipeline = array<i64: 0, 0, 3>} {
    pipe.action P @prologue {
    }
    pipe.action F @forward {
    }
    pipe.action B @backward {
    }
    pipe.action W @weight {
    }
    pipe.action S @exchange {
    }
    pipe.action U @update {
    }
  }
  pipe.stage @stage2 index 2 attributes {dist.pipeline = array<i64: 1, 3, 2>} {
    pipe.action P @prologue {
    }
    pipe.action F @forward {
    }
    pipe.action B @backward {
    }
    pipe.action W @weight {
    }
    pipe.action S @exchange {
    }
    pipe.action U @update {
    }
  }
}
