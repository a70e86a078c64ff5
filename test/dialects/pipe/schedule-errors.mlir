// Cells that are none, all of them, each where it stands.
// RUN: merak-opt %s --split-input-file --verify-diagnostics

// expected-error @+3 {{'X1' is no action; expected one like F0, r1, B2.1 or U}}
// expected-error @+2 {{'B' is no action; expected one like F0, r1, B2.1 or U}}
// expected-error @+1 {{'U0' is no action; expected one like F0, r1, B2.1 or U}}
pipe.stage @stage0 index 0 schedule <F0, X1, B, U0> {
}

// -----

// expected-error @+1 {{f1.2 announces an early recomputation R1.2 that is not there}}
pipe.stage @stage0 index 0 schedule <f1.2, r1.2, B1.2> {
}

// -----

// expected-error @+1 {{expected valid keyword}}
pipe.stage @stage0 index 0 schedule <"F0 B0"> {
}

// -----

pipe.stage @stage0 index 0 {
  // expected-error @+1 {{expected an action P, F, R, B, W, S or U, found 'forward'}}
  pipe.action forward @forward {
  }
}

// -----

plan.program @program index 0 streams ["compute"] groups [] schedule <F0> {
  // expected-error @+1 {{expected an action P, F, R, B, W, S or U, found 'f'}}
  plan.procedure @forward action f {
  }
}

// -----

// expected-error @+1 {{expected an action P, F, R, B, W, S or U, found 'X'}}
module attributes {pipe.example = #pipe.action<X>} {
}
