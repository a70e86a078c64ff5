// Kernels that move values: copies, fills, reductions over ranks, the first of
// an order, rotary embedding, dropout.
#pragma once

#include "runtime/backends/cuda/kernels/Joined.h"
#include "runtime/backends/cuda/kernels/Loops.h"
#include "runtime/backends/cuda/kernels/Pack.h"
#include "runtime/core/Philox.h"

namespace merak::cuda {

struct CopyArgs {
  Ref from, to;
  Loops<2> loops;
  bool add = false;
  int32_t word = 0; // > 0: moves elements of so many bytes, unchanged
};

template <typename Word, typename Block>
MERAK_HD void moveWords(const Block &block, const CopyArgs &a) {
  // Of which loads are under way; copies of single elements are not that fast.
  constexpr int kWords = sizeof(Word) < kPackBytes ? 1 : 4;
  const int64_t step = itemStep(block), count = a.loops.count;
  int64_t i = firstItem(block);
  for (; i + (kWords - 1) * step < count; i += kWords * step) {
    Word words[kWords];
    int64_t o[kWords][2];
    MERAK_UNROLL
    for (int u = 0; u < kWords; ++u) {
      a.loops.at(i + u * step, o[u]);
      words[u] = slot<Word>(a.from, o[u][0]);
    }
    MERAK_UNROLL
    for (int u = 0; u < kWords; ++u)
      slot<Word>(a.to, o[u][1]) = words[u];
  }
  for (; i < count; i += step) {
    int64_t o[2];
    a.loops.at(i, o);
    slot<Word>(a.to, o[1]) = slot<Word>(a.from, o[0]);
  }
}

template <typename Value, typename Block>
MERAK_HD void convertElements(const Block &block, const CopyArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[2];
    a.loops.at(i, o);
    store<Value>(a.to, o[1], load<Value>(a.from, o[0]), a.add);
  }
}

template <typename Block>
MERAK_HD void copyBody(const Block &block, const CopyArgs &a) {
  switch (a.word) {
  case 1:
    return moveWords<uint8_t>(block, a);
  case 2:
    return moveWords<uint16_t>(block, a);
  case 4:
    return moveWords<uint32_t>(block, a);
  case 8:
    return moveWords<uint64_t>(block, a);
  case kPackBytes:
    return moveWords<Pack<uint32_t>>(block, a);
  }
  switch (a.from.type) {
  case Type::F32:
  case Type::BF16:
  case Type::F16:
    return convertElements<float>(block, a);
  case Type::F64:
    return convertElements<double>(block, a);
  default:
    return convertElements<int64_t>(block, a);
  }
}

struct FillArgs {
  Ref to;
  Loops<1> loops;
  bool isFloat = false, add = false;
  int64_t whole = 0;
  double real = 0;
};

template <typename Block>
MERAK_HD void fillBody(const Block &block, const FillArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    const int64_t at = a.loops.at(i);
    if (a.isFloat)
      store<double>(a.to, at, a.real, a.add);
    else
      store<int64_t>(a.to, at, a.whole, a.add);
  }
}

// Dense memory, filled with a pattern from its first byte on.
struct FillPart {
  char *to = nullptr; // aligned to packs
  int64_t count = 0;  // bytes
  int32_t chunk = 0;
};
struct FillDenseArgs {
  Joined<FillPart, 128, 32768> tensors;
  Pack<uint32_t> pattern = {};
};
static_assert(sizeof(FillDenseArgs) <= kMostArgBytes);

template <typename Block>
MERAK_HD void fillDenseBody(const Block &block, const FillDenseArgs &a) {
  forEachChunk(
      block, a.tensors,
      [&](const FillPart &part, int32_t, int64_t begin, int64_t end) {
        uint32_t *words = reinterpret_cast<uint32_t *>(part.to + begin);
        const int64_t packs = (end - begin) / kPackBytes;
        for (int64_t i = block.thread(); i < packs; i += block.threads())
          storePack(words + i * Pack<uint32_t>::kSize, a.pattern);
        for (int64_t i = begin + packs * kPackBytes + block.thread(); i < end;
             i += block.threads()) {
          const int byte = static_cast<int>(i % kPackBytes);
          part.to[i] =
              static_cast<char>(a.pattern.words[byte / 4] >> byte % 4 * 8);
        }
      });
}

// out = in[0] op in[1] op ..., in order; 16-bit floats in f32, rounded once.
constexpr int kMaxMembers = 16;
struct CombineArgs {
  Ref in[kMaxMembers], out;
  int32_t members = 0;
  bool maximum = false, add = false;
  Loops<kMaxMembers + 1> loops; // the output last
};

template <typename Value, typename Block>
MERAK_HD void combineAs(const Block &block, const CombineArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.loops.count; i += step) {
    int64_t o[kMaxMembers + 1];
    a.loops.at(i, o);
    Value sum = load<Value>(a.in[0], o[0]);
    for (int m = 1; m < a.members; ++m) {
      const Value next = load<Value>(a.in[m], o[m]);
      if (a.maximum)
        sum = next > sum || next != next ? next : sum; // a NaN stays
      else
        sum += next;
    }
    if (a.add)
      sum += load<Value>(a.out, o[kMaxMembers]);
    store<Value>(a.out, o[kMaxMembers], sum, false);
  }
}

template <typename Block>
MERAK_HD void combineBody(const Block &block, const CombineArgs &a) {
  switch (a.out.type) {
  case Type::F32:
  case Type::BF16:
  case Type::F16:
    return combineAs<float>(block, a);
  case Type::F64:
    return combineAs<double>(block, a);
  default:
    return combineAs<int64_t>(block, a);
  }
}

// ---------------------------------------------------------------- top k

// Rows are dense; of equal elements the first comes first, a NaN is the
// largest number.
struct TopKArgs {
  Ref x, values, indices;
  int64_t rows = 0, length = 0, k = 0;
  bool smallest = false, add = false;
};

template <typename Value>
MERAK_HD bool comesBefore(Value x, Value y, bool smallest) {
  if constexpr (!std::is_integral_v<Value>)
    if (x != x || y != y)
      return smallest ? x == x && y != y : x != x && y == y;
  return smallest ? x < y : x > y;
}

// A thread a row: the next of the order after the last one, k times.
template <typename Value, typename Block>
MERAK_HD void topKAs(const Block &block, const TopKArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t row = firstItem(block); row < a.rows; row += step) {
    Value last = 0;
    int64_t lastAt = -1;
    for (int64_t i = 0; i < a.k; ++i) {
      Value best = 0;
      int64_t bestAt = -1;
      for (int64_t j = 0; j < a.length; ++j) {
        const Value x = load<Value>(a.x, row * a.length + j);
        const bool after = lastAt < 0 || comesBefore(last, x, a.smallest) ||
                           (!comesBefore(x, last, a.smallest) && j > lastAt);
        if (after && (bestAt < 0 || comesBefore(x, best, a.smallest))) {
          best = x;
          bestAt = j;
        }
      }
      store<Value>(a.values, row * a.k + i, best, a.add);
      store<int64_t>(a.indices, row * a.k + i, bestAt, a.add);
      last = best;
      lastAt = bestAt;
    }
  }
}

template <typename Block>
MERAK_HD void topKBody(const Block &block, const TopKArgs &a) {
  switch (a.x.type) {
  case Type::F32:
  case Type::BF16:
  case Type::F16:
    return topKAs<float>(block, a);
  case Type::F64:
    return topKAs<double>(block, a);
  default:
    return topKAs<int64_t>(block, a);
  }
}

// ---------------------------------------------------------------- rotary

struct RotaryArgs {
  Ref x, y, cosine, sine;
  Loops<4> rows; // x, y, cos, sin; without the features
  int64_t half = 0, xStep = 0, yStep = 0, cosStep = 0, sinStep = 0;
  int64_t pair = 1, other = 0; // where pair i begins, and its second member
  bool inverse = false, add = false;
};

template <typename Block>
MERAK_HD void rotaryBody(const Block &block, const RotaryArgs &a) {
  const int64_t count = a.rows.count * a.half, step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    int64_t o[4];
    const int64_t row = i / a.half, j = i - row * a.half;
    a.rows.at(row, o);
    const int64_t at = j * a.pair;
    const float p = load<float>(a.x, o[0] + at * a.xStep);
    const float q = load<float>(a.x, o[0] + (at + a.other) * a.xStep);
    const float c = load<float>(a.cosine, o[2] + j * a.cosStep);
    float s = load<float>(a.sine, o[3] + j * a.sinStep);
    s = a.inverse ? -s : s;
    store<float>(a.y, o[1] + at * a.yStep, p * c - q * s, a.add);
    store<float>(a.y, o[1] + (at + a.other) * a.yStep, q * c + p * s, a.add);
  }
}

// ---------------------------------------------------------------- dropout

struct DropoutArgs {
  Ref x, y;
  Loops<2> operands; // row-major position to x and y
  Loops<1> global;   // row-major position to the global element
  philox::Stream stream;
  uint32_t threshold = 0;
  float scale = 1;
  int64_t begin = 0;
  bool add = false;
};

template <typename Block>
MERAK_HD void dropoutBody(const Block &block, const DropoutArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.operands.count; i += step) {
    int64_t o[2];
    a.operands.at(i, o);
    const int64_t element = a.begin + a.global.at(i);
    const bool kept =
        philox::wordOf(a.stream, static_cast<uint64_t>(element)) >= a.threshold;
    store<float>(a.y, o[1], kept ? load<float>(a.x, o[0]) * a.scale : 0.0f,
                 a.add);
  }
}

} // namespace merak::cuda
