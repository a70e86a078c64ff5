// What an exporter changed on the way from the model to the file, told from the
// file alone: merged, folded and renamed weights, dropped arguments, batch
// norm's statistics, dropout that does nothing.
#pragma once

#include "onnx/Import/ImportReport.h"
#include "onnx/Import/OnnxFile.h"

namespace merak {

// One finding about a model. Problems stand in the way of compiling it;
// warnings change what is trained.
struct Finding {
  bool isProblem = false;
  std::string what;
  std::vector<std::string> places; // nodes, initializers
  std::string help;                // empty: none
};

// ExportProblems of the file; `report` adds what import found. `train`: whether
// it is to be compiled for training.
std::vector<Finding> findExportProblems(OnnxFile &file,
                                        const ImportReport &report, bool train);

} // namespace merak
