#include "runtime/backends/cpu/Scratch.h"

#include "runtime/core/MemoryCount.h"

#include <algorithm>
#include <array>
#include <new>

namespace merak::cpu {

namespace {

struct Block {
  void *data = nullptr;
  int64_t bytes = 0;
  void free() {
    if (!data)
      return;
    ::operator delete (data, std::align_val_t{64});
    runtime::MemoryCount::remove(bytes);
  }
  ~Block() { free(); }
};

thread_local std::array<Block, static_cast<size_t>(ScratchSlot::Count)> blocks;

} // namespace

void *scratchBytes(ScratchSlot slot, int64_t bytes) {
  Block &block = blocks[static_cast<size_t>(slot)];
  if (block.bytes < bytes || !block.data) {
    int64_t size = std::max<int64_t>(bytes, 4096);
    block.free();
    block.data = nullptr;
    block.data =
        ::operator new (static_cast<size_t>(size), std::align_val_t{64});
    block.bytes = size;
    runtime::MemoryCount::add(size);
  }
  return block.data;
}

} // namespace merak::cpu
