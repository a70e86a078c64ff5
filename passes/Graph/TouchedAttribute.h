// What SparseUpdates notes of the rows that a step looks up.
#pragma once

#include "dialects/Train/SparseAttributes.h"
#include "dialects/Train/TrainDialect.h"
#include "passes/Planning/TouchedRows.h"

#include <optional>

namespace merak {

// Nothing: it is not known.
inline std::optional<planning::TouchedRows>
touchedRows(train::CoalesceOp update) {
  auto counts =
      update->getAttrOfType<mlir::DenseF64ArrayAttr>(train::kTouchedAttr);
  if (!counts || counts.size() < 2)
    return std::nullopt;
  std::vector<planning::RowCount> known;
  for (int64_t i = 0; i + 1 < counts.size(); i += 2)
    known.push_back({counts[i], counts[i + 1]});
  return planning::TouchedRows(std::move(known), double(update.getSize()));
}

} // namespace merak
