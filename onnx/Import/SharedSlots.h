// Which parameter of a module an input of a node is.
#pragma once

#include "onnx/Import/OnnxFile.h"

namespace merak {

// 0: the slot holds no scale or bias; 1: scale; 2: bias.
int slotKind(const onnx::NodeProto &node, int slot);

// The parameter among `names` that the slot stands for. Empty: it cannot be
// told.
std::string parameterOfSlot(const onnx::NodeProto &node, int slot,
                            const std::vector<std::string> &names);

} // namespace merak
