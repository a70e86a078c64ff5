// Names of a model that cannot be told from others, or not written into a plan.
#pragma once

#ifndef ONNX_NAMESPACE
#define ONNX_NAMESPACE onnx
#endif
#ifndef ONNX_ML
#define ONNX_ML 1
#endif
#include "onnx/onnx_pb.h"

#include <string>
#include <vector>

namespace merak {

// One sentence a problem: names that are not UTF-8 or hold control characters,
// values that two nodes make, outputs that are listed twice.
void checkNames(const onnx::ModelProto &model,
                std::vector<std::string> &errors);

} // namespace merak
