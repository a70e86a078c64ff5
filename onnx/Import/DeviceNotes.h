// Multi-device metadata of ONNX IR 11 and later: which part of a tensor which
// device holds, and pipeline stages, noted at nodes. They are hints that never
// change a result; here they are decisions that a model brings along, and the
// form in which a finished plan's decisions are written into a model.
//
// The installed ONNX headers are older, so the messages are read and written by
// field number: ModelProto 26 configuration, NodeProto 10
// device_configurations.
#pragma once

#include "onnx/Import/OnnxFile.h"
#include "passes/Planning/Strategy.h"

namespace merak {

// Key of the model's metadata_props that holds a whole strategy file: what the
// standard fields cannot express (microbatches, schedule, recomputation).
inline constexpr const char *kStrategyProperty = "org.merak.strategy";

// Decisions that the model holds: all of them under kStrategyProperty, else
// what the standard fields say. Empty without such fields. Problems (unknown
// configurations, axes out of range, several degrees) are in the status.
Result<std::optional<planning::Strategy>> readDeviceNotes(OnnxFile &file);

// What a model is annotated with.
struct DeviceNotes {
  planning::Strategy strategy;
  // Stage by node name, or by the first output of nameless nodes.
  std::map<std::string, int64_t> stageOf;
};

// Writes `input` with the notes added, as IR 11 or later. Notes that were there
// are replaced. External data stay where they are, so both files must be in
// one folder.
Status writeAnnotated(const std::string &input, const std::string &output,
                      const DeviceNotes &notes);

} // namespace merak
