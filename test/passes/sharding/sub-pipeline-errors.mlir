// RUN: merak-opt %s --merak-sub-pipeline --split-input-file --verify-diagnostics

// expected-error @below {{expected a mesh whose axis 'mb' counts submicrobatches, found size 3}}
module attributes {dist.mesh = #dist.mesh<tp = 2, mb = 3>, pipe.tp_overlap = 3 : i64} {
}

// -----

// expected-error @below {{expected an overlap level from 1 to 3, found 4}}
module attributes {dist.mesh = #dist.mesh<tp = 2, mb = 2>, pipe.tp_overlap = 4 : i64} {
}
