#include "passes/Memory/BufferLives.h"

using namespace mlir;

namespace merak::memory {

llvm::MapVector<StringAttr, BufferLife>
bufferLives(plan::ProcedureOp procedure) {
  SmallVector<plan::InstructionOpInterface> instructions(
      procedure.getOps<plan::InstructionOpInterface>());
  int64_t count = static_cast<int64_t>(instructions.size());
  auto forBuffers = [](ArrayAttr views, auto visit) {
    for (Attribute view : views)
      visit(cast<plan::ViewAttr>(view).getBuffer().getAttr());
  };

  llvm::MapVector<StringAttr, BufferLife> lives;
  for (int64_t i = 0; i < count; ++i)
    for (ArrayAttr views :
         {instructions[i].getInputs(), instructions[i].getOutputs()})
      forBuffers(views, [&](StringAttr buffer) {
        auto [it, fresh] = lives.try_emplace(buffer, BufferLife{i, i});
        it->second.last = i;
      });

  // Backwards: the next instruction of the computation that touches a buffer
  // is where the computation has waited for it.
  llvm::DenseMap<StringAttr, int64_t> next;
  for (int64_t i = count; i-- > 0;) {
    plan::InstructionOpInterface op = instructions[i];
    if (op.getStream() == plan::kComputeStream) {
      for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
        forBuffers(views, [&](StringAttr buffer) { next[buffer] = i; });
      continue;
    }
    int64_t done = count - 1;
    forBuffers(op.getOutputs(), [&](StringAttr buffer) {
      if (auto it = next.find(buffer); it != next.end())
        done = std::min(done, it->second);
    });
    for (ArrayAttr views : {op.getInputs(), op.getOutputs()})
      forBuffers(views, [&](StringAttr buffer) {
        lives[buffer].last = std::max(lives[buffer].last, done);
      });
  }
  return lives;
}

} // namespace merak::memory
