// Many tensors of one kind in one launch: a table among the arguments, whose
// tensors are cut into chunks. A block takes a chunk at a time.
#pragma once

#include "runtime/backends/cuda/kernels/Element.h"

namespace merak::cuda {

// What a kernel may be given on all devices.
constexpr int kMostArgBytes = 4096;

// A Part has `count`, in the units of chunks, and `chunk`, its first one.
template <typename Part, int most, int64_t chunkSize> struct Joined {
  static constexpr int64_t kChunk = chunkSize;
  int32_t size = 0;
  int32_t chunks = 0;
  Part parts[most];

  // Host: false where there is no room.
  bool add(Part part) {
    const int64_t more = (part.count + kChunk - 1) / kChunk;
    if (size == most || more > INT32_MAX - chunks)
      return false;
    part.chunk = chunks;
    chunks += static_cast<int32_t>(more);
    parts[size++] = part;
    return true;
  }
  // All tensors of another table, or none.
  bool addAll(const Joined &other) {
    if (size + other.size > most || other.chunks > INT32_MAX - chunks)
      return false;
    for (int32_t i = 0; i < other.size; ++i)
      add(other.parts[i]);
    return true;
  }
  MERAK_HD int32_t firstChunk(int32_t part) const {
    return part < size ? parts[part].chunk : chunks;
  }
  // The part that a chunk is of.
  MERAK_HD int32_t find(int32_t chunk) const {
    int32_t low = 0, high = size - 1;
    while (low < high) {
      const int32_t middle = (low + high + 1) / 2;
      if (parts[middle].chunk <= chunk)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// body(part, chunk, begin, end): elements of a part, for the chunks of a block.
template <typename Block, typename Table, typename Body>
MERAK_HD void forEachChunk(const Block &block, const Table &table,
                           const Body &body) {
  for (int64_t c = block.block(); c < table.chunks; c += block.blocks()) {
    const int32_t chunk = static_cast<int32_t>(c);
    const auto &part = table.parts[table.find(chunk)];
    const int64_t begin = (chunk - part.chunk) * Table::kChunk;
    const int64_t end = begin + Table::kChunk;
    body(part, chunk, begin, end < part.count ? end : part.count);
  }
}

} // namespace merak::cuda
