// Calls of a model's own functions become the nodes of their bodies, so that
// the importer sees one flat graph.
#pragma once

#include "onnx/Import/OnnxFile.h"

#include <string>
#include <vector>

namespace merak {

// Replaces every node that calls a function of `model`, in bodies and branches
// too. Values and nodes of a body get the call's name in front. Appends one
// sentence a problem: a recursive function, one for another opset, more than a
// million nodes.
void inlineFunctions(onnx::ModelProto &model, std::vector<std::string> &errors);

} // namespace merak
