// Trained weights written into the ONNX file that a plan was compiled from:
// the same graph, names and types, other values.
#pragma once

#include "runtime/plan/Plan.h"

#include <string>

namespace merak::runtime {

struct OnnxExportOptions {
  std::string model;      // empty: the file that the plan names
  std::string checkpoint; // a checkpoint folder or a .safetensors file
  std::string output;     // "trained.onnx"
  // Weights go into OUTPUT.data beside the file. Always so for weights that
  // are external in the model, and for models above protobuf's 2 GiB.
  bool external = false;
};

struct OnnxExportSummary {
  int64_t written = 0; // initializers with trained values
  int64_t added = 0;   // initializers for parameters that had been merged
  int64_t kept = 0;    // initializers as they were
  std::string data;    // the file of external data; may be empty
};

// Every parameter of the plan must find its place: by the name of an
// initializer, or as a use that weights.json of the plan names. Values are
// converted to the initializer's float type. All problems at once; nothing is
// written if there are any. Memory follows the graph, not the weights.
Result<OnnxExportSummary> exportOnnx(const LoadedPlan &plan,
                                     const OnnxExportOptions &options);

} // namespace merak::runtime
