// reduce_sum, reduce_max.
//
// f32 has three fast forms: sums along contiguous memory, sums of whole rows
// into columns, and everything else through a scalar loop. Long sums are cut
// into pieces of fixed length, so that the order never depends on threads.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>

namespace merak::cpu {

namespace {

constexpr int64_t kPiece = 8192;  // elements summed in float at a time
constexpr int64_t kRowBlock = 64; // rows summed in float at a time

struct Reduction {
  Nest kept;    // operand 0: x, 1: y
  Nest reduced; // operand 0: x
  bool sum = true;
  bool accumulate = false;
  planpb::DType dtype = planpb::F32;
};

template <typename T>
void reduceAny(const Reduction &r, const T *x, T *y, ThreadPool &pool) {
  using Sum = typename Accumulator<T>::Type;
  Nest outer = r.reduced;
  Nest::Inner inner = outer.splitInner();
  int64_t outerCount = outer.count();
  pool.parallelFor(r.kept.count(), rowGrain(r.reduced.count()),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t at = begin; at < end; ++at) {
                       int64_t offsets[2], row;
                       r.kept.offsets(at, offsets);
                       Sum sum = 0;
                       T best = std::numeric_limits<T>::lowest();
                       if constexpr (std::is_floating_point_v<T>)
                         best = -std::numeric_limits<T>::infinity();
                       for (int64_t i = 0; i < outerCount; ++i) {
                         outer.offsets(i, &row);
                         const T *p = x + offsets[0] + row;
                         for (int64_t j = 0; j < inner.size; ++j) {
                           T value = p[j * inner.strides[0]];
                           sum += static_cast<Sum>(value);
                           best = std::max(best, value);
                         }
                       }
                       T &out = y[offsets[1]];
                       T value = r.sum ? static_cast<T>(sum) : best;
                       out = r.accumulate ? static_cast<T>(out + value) : value;
                     }
                   });
}

// The innermost reduced dimension is contiguous: runs, cut into pieces.
void reduceRuns(const Reduction &r, const float *x, float *y,
                ThreadPool &pool) {
  const Simd &s = simd();
  Nest outer = r.reduced;
  const int64_t length = outer.splitInner().size;
  const int64_t perRun = (length + kPiece - 1) / kPiece;
  const int64_t pieces = outer.count() * perRun, rows = r.kept.count();
  auto piece = [&](const float *row, int64_t p) -> double {
    int64_t offset = 0;
    outer.offsets(p / perRun, &offset);
    // With 3 pieces a run, piece 7 is the second of the third run.
    int64_t first = p % perRun * kPiece;
    const float *part = row + offset + first;
    int64_t n = std::min(kPiece, length - first);
    return r.sum ? s.sum(part, n) : s.max(part, n);
  };
  auto finish = [&](int64_t row, auto &&value) {
    int64_t offsets[2];
    r.kept.offsets(row, offsets);
    double total = r.sum ? 0 : -std::numeric_limits<double>::infinity();
    for (int64_t p = 0; p < pieces; ++p) {
      double v = value(x + offsets[0], p);
      total = r.sum ? total + v : std::max(total, v);
    }
    float &out = y[offsets[1]];
    out = static_cast<float>(r.accumulate ? out + total : total);
  };
  if (pieces == 1 || rows >= 4 * pool.threads()) {
    pool.parallelFor(rows, rowGrain(length * outer.count()),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t row = begin; row < end; ++row)
                         finish(row, piece);
                     });
    return;
  }
  std::vector<double> partial(static_cast<size_t>(pieces));
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offsets[2];
    r.kept.offsets(row, offsets);
    pool.parallelFor(pieces, rowGrain(std::min(kPiece, length)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t p = begin; p < end; ++p)
                         partial[p] = piece(x + offsets[0], p);
                     });
    finish(row, [&](const float *, int64_t p) { return partial[p]; });
  }
}

// The innermost kept dimension is contiguous in x: rows are added to columns,
// first a block of rows, then the blocks.
void reduceColumns(const Reduction &r, const float *x, float *y,
                   ThreadPool &pool) {
  const Simd &s = simd();
  Nest outer = r.kept;
  const Nest::Inner columns = outer.splitInner();
  Nest outerRows = r.reduced;
  const Nest::Inner rows = outerRows.splitInner();
  // Columns never meet, so their cut is free.
  const int64_t width = std::clamp<int64_t>(
      (columns.size / pool.threads() + 15) / 16 * 16, 16, 1024);
  const int64_t blocks = (columns.size + width - 1) / width;
  pool.parallelFor(
      outer.count() * blocks, rowGrain(r.reduced.count() * width),
      [&](int64_t begin, int64_t end) {
        float *total = scratch(ScratchSlot::Row1, width);
        for (int64_t t = begin; t < end; ++t) {
          int64_t offsets[2], first = t % blocks * width;
          int64_t n = std::min(width, columns.size - first);
          outer.offsets(t / blocks, offsets);
          const float *source = x + offsets[0] + first;
          std::fill_n(total, n, 0.0f);
          for (int64_t i = 0; i < outerRows.count(); ++i) {
            int64_t offset;
            outerRows.offsets(i, &offset);
            for (int64_t row = 0; row < rows.size; row += kRowBlock)
              s.addRows(total, source + offset + row * rows.strides[0],
                        rows.strides[0], std::min(kRowBlock, rows.size - row),
                        n);
          }
          float *target = y + offsets[1] + first * columns.strides[1];
          for (int64_t i = 0; i < n; ++i) {
            float &out = target[i * columns.strides[1]];
            out = r.accumulate ? out + total[i] : total[i];
          }
        }
      });
}

KernelResult createReduce(Request &request, bool sum) {
  ReduceRequest read;
  if (!readReduce(request, read))
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  request.type(y, "output", x.dtype);
  request.expect(
      withNumber(x.dtype, [](auto) {}),
      fmt::format("no arithmetic on {}", runtime::dtypeName(x.dtype)));
  if (!request.ok())
    return request.status();
  Reduction r;
  r.kept = read.kept;
  r.reduced = read.reduced;
  r.sum = sum;
  r.accumulate = request.instruction.accumulate();
  r.dtype = x.dtype;
  const bool runs = read.runs(), columns = sum && read.columns();
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const void *x = call.inputs[0].data;
    void *y = call.outputs[0].data;
    if (r.dtype == planpb::F32 && runs)
      reduceRuns(r, static_cast<const float *>(x), static_cast<float *>(y),
                 pool);
    else if (r.dtype == planpb::F32 && columns)
      reduceColumns(r, static_cast<const float *>(x), static_cast<float *>(y),
                    pool);
    else
      withNumber(r.dtype, [&](auto type) {
        using T = decltype(type);
        reduceAny<T>(r, static_cast<const T *>(x), static_cast<T *>(y), pool);
      });
    return Status();
  });
}

KernelResult createSum(Request &request) { return createReduce(request, true); }
KernelResult createMax(Request &request) {
  return createReduce(request, false);
}

constexpr KernelEntry kEntries[] = {
    {"reduce_sum", createSum, true, true, false},
    {"reduce_max", createMax, true, false, false},
};

} // namespace

std::span<const KernelEntry> reduceKernels() { return kEntries; }

} // namespace merak::cpu
