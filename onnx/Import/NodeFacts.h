// What the exported program says of a call and the ONNX operator has no place
// for: label smoothing, an embedding's padding row, detach, the mode of batch
// norm. Written at the node as attributes org.merak.*, which the conversions
// read. The vocabulary is open to any exporter: docs/Metadata.md.
#pragma once

#include "onnx/Import/ExportedProgram.h"

namespace merak {

// Reads metadata_props org.merak.* of every node, and where there are none the
// call that a dynamo export notes. Returns a sentence for each value that is
// none, with the name of its node.
std::vector<std::pair<std::string, std::string>>
readNodeFacts(onnx::GraphProto &graph);

// org.merak.trainable of the model, a JSON list of names; nothing if absent.
// Appends a sentence to `problems` if it is no such list.
std::optional<std::vector<std::string>>
readTrainableNames(const onnx::ModelProto &model,
                   std::vector<std::string> &problems);

} // namespace merak
