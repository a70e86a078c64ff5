// Sixteen bytes of neighbouring elements, which a device loads and stores with
// one instruction.
#pragma once

#include "runtime/backends/cuda/kernels/Element.h"

#include <cstring>

namespace merak::cuda {

constexpr int kPackBytes = 16;

template <typename Word, int n = kPackBytes / int(sizeof(Word))>
struct alignas(n * sizeof(Word)) Pack {
  static constexpr int kSize = n;
  Word words[n];
};

#ifdef __CUDACC__
template <int bytes> struct VectorOf;
template <> struct VectorOf<16> { using Type = uint4; };
template <> struct VectorOf<8> { using Type = uint2; };
#endif

// `at` is aligned to the pack.
template <int n, typename Word>
MERAK_HD Pack<Word, n> loadPack(const Word *at) {
#ifdef __CUDACC__
  using Vector = typename VectorOf<n * sizeof(Word)>::Type;
  return __builtin_bit_cast(Pack<Word, n>,
                            *reinterpret_cast<const Vector *>(at));
#else
  Pack<Word, n> pack;
  std::memcpy(&pack, at, sizeof(pack));
  return pack;
#endif
}

template <int n, typename Word>
MERAK_HD void storePack(Word *at, const Pack<Word, n> &pack) {
#ifdef __CUDACC__
  using Vector = typename VectorOf<n * sizeof(Word)>::Type;
  // An assignment would be taken apart into words that are not put together
  // again.
  __stwb(reinterpret_cast<Vector *>(at), __builtin_bit_cast(Vector, pack));
#else
  std::memcpy(at, &pack, sizeof(pack));
#endif
}

// The same into memory that a block shares.
template <int n, typename Word>
MERAK_HD void sharePack(Word *at, const Pack<Word, n> &pack) {
#ifdef __CUDACC__
  using Vector = typename VectorOf<n * sizeof(Word)>::Type;
  *reinterpret_cast<Vector *>(at) = __builtin_bit_cast(Vector, pack);
#else
  std::memcpy(at, &pack, sizeof(pack));
#endif
}

// use(x) for the elements of x[0 .. count) that are this thread's of `threads`,
// always in one order; x is aligned to packs. Several are under way at once.
template <typename As, typename Use>
MERAK_HD void forEachPacked(const typename As::Word *x, int64_t count,
                            int thread, int threads, const Use &use) {
  using Word = typename As::Word;
  constexpr int kSize = Pack<Word>::kSize, kPacks = 4;
  const int64_t packs = count / kSize, step = threads;
  int64_t i = thread;
  for (; i + (kPacks - 1) * step < packs; i += kPacks * step) {
    Pack<Word> some[kPacks];
    MERAK_UNROLL
    for (int u = 0; u < kPacks; ++u)
      some[u] = loadPack<kSize>(x + (i + u * step) * kSize);
    MERAK_UNROLL
    for (int u = 0; u < kPacks; ++u)
      MERAK_UNROLL
    for (int k = 0; k < kSize; ++k)
      use(As::widen(some[u].words[k]));
  }
  for (; i < packs; i += step) {
    const Pack<Word> one = loadPack<kSize>(x + i * kSize);
    MERAK_UNROLL
    for (int k = 0; k < kSize; ++k)
      use(As::widen(one.words[k]));
  }
  for (i = packs * kSize + thread; i < count; i += step)
    use(As::widen(x[i]));
}

} // namespace merak::cuda
