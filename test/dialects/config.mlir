// REQUIRES: merak-opt
// RUN: merak-opt %s | merak-opt | FileCheck %s

// What differs from the defaults of adamw is printed, and read again.
// CHECK: dist.cluster = #dist.cluster<backend = "cuda", memory_bytes = 1024, document = "{}">
// CHECK-SAME: pipe.decision = #pipe.decision<schedule = "auto", orders = [#pipe.schedule<F0, B0, U>], gradient_bucket = 64>
// CHECK-SAME: train.config = #train.config<mode = train, model = "m.onnx", global_batch = 8
// CHECK-SAME: optimizer = <adam, lr = 1.000000e-01, nesterov = true, schedule = cosine, warmup = 3, total = 9, first_count = 0, rate = "program">
// CHECK-SAME: grad_clip = 5.000000e-01 : f64, low_precision = f16>
module attributes {
  dist.cluster = #dist.cluster<backend = "cuda", memory_bytes = 1024, document = "{}">,
  pipe.decision = #pipe.decision<schedule = "auto", orders = [#pipe.schedule<F0, B0, U>], gradient_bucket = 64>,
  train.config = #train.config<mode = train, model = "m.onnx", global_batch = 8,
    optimizer = <adam, eps = 1.0e-08, lr = 1.0e-01, schedule = cosine, warmup = 3, total = 9,
                 nesterov = true, first_count = 0, rate = "program">,
    grad_clip = 5.0e-01 : f64, low_precision = f16>} {}
