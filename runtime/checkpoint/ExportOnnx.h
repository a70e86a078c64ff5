// Trained weights back into the ONNX model that they came from.
#pragma once

#include "runtime/plan/Plan.h"

#include <string>

namespace merak::runtime {

// Writes a copy of the plan's model to `output`, with the parameters of
// `checkpoint` (a folder or a .safetensors file) where the model has its own:
// the same graph, names and order, byte for byte. Files of external data are
// copied beside it under their own names. Everything that stands in the way is
// reported: parameters whose values are not in a file, several parameters that
// the model holds as one, an output that would replace the model.
Status exportOnnx(const LoadedPlan &plan, const std::string &checkpoint,
                  const std::string &output);

} // namespace merak::runtime
