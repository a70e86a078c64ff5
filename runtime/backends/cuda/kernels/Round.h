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

// Of a copy that turns matrices, such as both factors of a weight's gradient
// need: what lies along memory where it is read lies across where it is
// written. `loops` have the other dimensions.
struct TurnedMatrix {
  static constexpr int kSide = 64;   // of a tile, which a block takes
  int64_t rows = 0, columns = 0;     // columns lie along what is read
  int64_t fromRow = 0, toColumn = 0; // elements to the next one
  MERAK_HD static int64_t tilesOf(int64_t size) {
    return (size + kSide - 1) / kSide;
  }
};

struct RoundArgs {
  Ref from, to;
  Loops<2> loops;
  TurnedMatrix turned; // of RoundTurned
  runtime::Float8 type;
  bool bits = false; // writes numbers of 8 bits without the scale; else, in the
                     // type of `to`, what they stand for
  int64_t pieces = 1;
  const uint32_t *largest = nullptr; // of LargestArgs
  float *inverse = nullptr;          // of the scale; written
};

// What becomes of a value, and where it goes.
struct Rounding {
  float scale, inverse;

  template <typename Block>
  MERAK_HD static Rounding of(Block &block, const RoundArgs &a) {
    uint32_t most = 0;
    for (int64_t i = block.thread(); i < a.pieces; i += block.threads())
      most = a.largest[i] > most ? a.largest[i] : most;
    const int exponent = runtime::scaleExponent(a.type, block.max(most));
    const Rounding rounding{runtime::powerOfTwo(exponent),
                            runtime::powerOfTwo(-exponent)};
    if (block.block() == 0 && block.thread() == 0)
      *a.inverse = rounding.inverse;
    return rounding;
  }
  MERAK_HD float read(const RoundArgs &a, int64_t at) const {
    return runtime::roundToFloat8(a.type, load<float>(a.from, at), scale,
                                  a.bits ? 1.0f : inverse);
  }
  MERAK_HD static void write(const RoundArgs &a, int64_t at, float value) {
    if (a.bits)
      slot<uint8_t>(a.to, at) = runtime::float8Bits(a.type, value);
    else
      store<float>(a.to, at, value, false);
  }
};

template <typename Block>
MERAK_HD void roundBody(Block &block, const RoundArgs &a) {
  const Rounding rounding = Rounding::of(block, a);
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[2];
    a.loops.at(i, o);
    Rounding::write(a, o[1], rounding.read(a, o[0]));
  }
}

// Tiles pass through the block's memory, so that neighbouring threads both read
// and write neighbours.
template <typename Block>
MERAK_HD void roundTurnedBody(Block &block, const RoundArgs &a) {
  constexpr int kSide = TurnedMatrix::kSide, kPitch = kSide + 1;
  const Rounding rounding = Rounding::of(block, a);
  const TurnedMatrix &m = a.turned;
  const int64_t across = TurnedMatrix::tilesOf(m.columns);
  const int64_t tiles = TurnedMatrix::tilesOf(m.rows) * across;
  float *const tile =
      block.template scratch<float, kSide * kPitch *int(sizeof(float))>();
  for (int64_t t = block.block(); t < a.loops.count * tiles;
       t += block.blocks()) {
    int64_t o[2];
    a.loops.at(t / tiles, o);
    const int64_t row = t % tiles / across * kSide;
    const int64_t column = t % tiles % across * kSide;
    for (int e = block.thread(); e < kSide * kSide; e += block.threads()) {
      const int64_t i = row + e / kSide, j = column + e % kSide;
      if (i < m.rows && j < m.columns)
        tile[e / kSide * kPitch + e % kSide] =
            rounding.read(a, o[0] + i * m.fromRow + j);
    }
    block.sync();
    for (int e = block.thread(); e < kSide * kSide; e += block.threads()) {
      const int64_t i = row + e % kSide, j = column + e / kSide;
      if (i < m.rows && j < m.columns)
        Rounding::write(a, o[1] + j * m.toColumn + i,
                        tile[e % kSide * kPitch + e / kSide]);
    }
    block.sync(); // before the next tile
  }
}

} // namespace merak::cuda
