// RUN: merak-opt %s --split-input-file --verify-diagnostics

plan.program @program index 0 streams ["compute"] groups [["dp"]] schedule <U> {
  plan.procedure @update action U {
    // expected-error @+1 {{'plan.collective' op expected a reduction of all_reduce}}
    plan.collective all_reduce (@g[4]) -> (@g[4]) group 0
  }
}

// -----

plan.program @program index 0 streams ["compute"] groups [["dp"]] schedule <U> {
  plan.procedure @update action U {
    // expected-error @+1 {{expected no reduction of all_gather, got sum}}
    plan.collective all_gather (@g[4]) -> (@h[8]) group 0 reduction sum
  }
}

// -----

plan.program @program index 0 streams ["compute"] groups [["dp"]] schedule <U> {
  plan.procedure @update action U {
    // expected-error @+1 {{expected string or keyword containing one of the following enum values for attribute 'op' [all_reduce, all_gather, reduce_scatter, all_to_all, broadcast]}}
    plan.collective all_gossip (@g[4]) -> (@h[8]) group 0
  }
}
