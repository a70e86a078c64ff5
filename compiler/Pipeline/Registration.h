// Everything a tool over our IR registers: one place for all tools.
#pragma once

#include "mlir/IR/DialectRegistry.h"

namespace merak {

void registerAllDialects(mlir::DialectRegistry &registry);
void registerAllPasses();

} // namespace merak
