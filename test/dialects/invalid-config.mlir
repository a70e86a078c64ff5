// REQUIRES: merak-opt
// RUN: merak-opt %s --split-input-file --verify-diagnostics

// expected-error @+1 {{expected global_batch of at least 0, got -4}}
module attributes {train.config = #train.config<mode = train, model = "m.onnx", global_batch = -4>} {}

// -----

// expected-error @+1 {{expected grad_clip above 0, got -1.000000e+00}}
module attributes {train.config = #train.config<mode = train, model = "m.onnx", grad_clip = -1.0 : f64>} {}

// -----

// expected-error @+1 {{expected low_precision bf16, f16 or f8E4M3FN, got 'f32'}}
module attributes {train.config = #train.config<mode = train, model = "m.onnx", low_precision = f32>} {}

// -----

// expected-error @+1 {{expected no optimizer with mode infer}}
module attributes {train.config = #train.config<mode = infer, model = "m.onnx", optimizer = <sgd>>} {}

// -----

// expected-error @+1 {{expected sgd, adamw, adam or adagrad, found 'lion'}}
module attributes {a = #train.optimizer<lion>} {}

// -----

// expected-error @+1 {{optimizers have no field 'rho'}}
module attributes {a = #train.optimizer<sgd, rho = 0.1>} {}

// -----

// expected-error @+1 {{expected a schedule constant, linear or cosine, found 'step'}}
module attributes {a = #train.optimizer<sgd, schedule = step>} {}

// -----

// expected-error @+1 {{expected the backend cpu or cuda, got 'tpu'}}
module attributes {dist.cluster = #dist.cluster<backend = "tpu">} {}

// -----

// expected-error @+1 {{expected memory_bytes of at least 0, got -1}}
module attributes {dist.cluster = #dist.cluster<backend = "cpu", memory_bytes = -1>} {}

// -----

// expected-error @+1 {{expected orders of #pipe.schedule, got [1]}}
module attributes {pipe.decision = #pipe.decision<schedule = "auto", orders = [1]>} {}

// -----

// expected-error @+1 {{expected gradient_bucket of at least 0, got -1}}
module attributes {pipe.decision = #pipe.decision<schedule = "auto", gradient_bucket = -1>} {}

// -----

// expected-error @+1 {{expected microbatches of at least 0, got -2}}
module attributes {pipe.decision = #pipe.decision<schedule = "auto", microbatches = -2>} {}
