// Factors of products in 8 bits: one kernel looks for the largest magnitude,
// another one rounds with the scale that belongs to it (runtime/core/Float8.h)
// and writes the numbers where the product wants them.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"
#include "runtime/core/Float8.h"

namespace merak::cuda {

// The largest magnitude of each of `pieces` parts of an operand, as bits.
struct LargestArgs {
  Ref from;
  Loops<1> loops;
  int64_t pieces = 1, pieceSize = 0;
  uint32_t *largest = nullptr;
};

template <typename Block>
MERAK_HD void largestBody(Block &block, const LargestArgs &a) {
  for (int64_t piece = block.block(); piece < a.pieces;
       piece += block.blocks()) {
    const int64_t begin = piece * a.pieceSize;
    const int64_t end = begin + a.pieceSize < a.loops.count
                            ? begin + a.pieceSize
                            : a.loops.count;
    uint32_t most = 0;
    for (int64_t i = begin + block.thread(); i < end; i += block.threads()) {
      const uint32_t bits =
          runtime::floatToBits(load<float>(a.from, a.loops.at(i))) & 0x7fffffff;
      most = bits > most ? bits : most;
    }
    most = block.max(most);
    if (block.thread() == 0)
      a.largest[piece] = most;
  }
}

struct RoundArgs {
  Ref from, to;
  Loops<2> loops;
  runtime::Float8 type;
  bool bits = false; // writes numbers of 8 bits without the scale; else, in the
                     // type of `to`, what they stand for
  int64_t pieces = 1;
  const uint32_t *largest = nullptr; // of LargestArgs
  float *inverse = nullptr;          // of the scale; written
};

template <typename Block>
MERAK_HD void roundBody(Block &block, const RoundArgs &a) {
  uint32_t most = 0;
  for (int64_t i = block.thread(); i < a.pieces; i += block.threads())
    most = a.largest[i] > most ? a.largest[i] : most;
  const int exponent = runtime::scaleExponent(a.type, block.max(most));
  const float scale = runtime::powerOfTwo(exponent);
  const float inverse = runtime::powerOfTwo(-exponent);
  if (block.block() == 0 && block.thread() == 0)
    *a.inverse = inverse;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[2];
    a.loops.at(i, o);
    const float value = runtime::roundToFloat8(
        a.type, load<float>(a.from, o[0]), scale, a.bits ? 1.0f : inverse);
    if (a.bits)
      slot<uint8_t>(a.to, o[1]) = runtime::float8Bits(a.type, value);
    else
      store<float>(a.to, o[1], value, false);
  }
}

} // namespace merak::cuda
