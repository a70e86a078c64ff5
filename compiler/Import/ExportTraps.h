// What exporters do silently to a model that is to be trained, told from the
// file alone.
#pragma once

#include "compiler/Import/OnnxFile.h"

#include <string>
#include <vector>

namespace merak {

// One sentence a finding, with the node's or the initializer's name: weights
// that folding renamed or fused, dropout that does nothing, batch
// normalizations whose statistics are frozen or lead nowhere, arguments of the
// original call that the file does not contain.
std::vector<std::string> exportTraps(const OnnxFile &file);

// What to ask the exporter for instead, if `findings` is not empty.
std::vector<std::string> exportAdvice(const std::vector<std::string> &findings);

} // namespace merak
