#include "dialects/Pipe/FirstReaders.h"

using namespace mlir;
using namespace merak;
using namespace merak::pipe;

#include "dialects/Pipe/PipeDialect.cpp.inc"
#include "dialects/Pipe/PipeEnums.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Pipe/PipeOps.cpp.inc"

llvm::StringMap<ActionOp> pipe::firstReaders(StageOp stage) {
  auto position = [](ActionOp action) {
    // Passes P that read what is received come after the forward one.
    constexpr StringLiteral order = "FPRBWSU";
    int64_t chunk = action.getChunk();
    bool isForward = action.getKind() == Action::F;
    return std::make_pair(order.find(letter(action.getKind())),
                          isForward ? chunk : -chunk);
  };
  llvm::StringMap<ActionOp> first;
  for (auto action : stage.getOps<ActionOp>())
    for (auto load : action.getOps<LoadOp>()) {
      ActionOp &reader = first[load.getValue()];
      if (!reader || position(action) < position(reader))
        reader = action;
    }
  return first;
}

void PipeDialect::initialize() {
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "dialects/Pipe/PipeOps.cpp.inc"
      >();
}

int64_t merak::pipe::submicrobatches(Operation *module) {
  auto parts = module->getAttrOfType<IntegerAttr>(kSubmicrobatchesAttr);
  return parts ? std::max<int64_t>(1, parts.getInt()) : 1;
}
