// gather, scatter_add, scatter_reduce, and pick, pick_grad.
#include "runtime/backends/cpu/Copy.h"
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"
#include "runtime/core/DType.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

namespace merak::cpu {

namespace {

struct Geometry : GatherRequest {
  planpb::DType dtype = planpb::F32, idType = planpb::I64;

  // The local row an id names, -1 if it is not here.
  int64_t row(const void *idData, int64_t offset, int64_t first) const {
    int64_t id = indexAt(idType, idData, offset);
    if (id < 0)
      id += globalRows;
    int64_t local = id - first;
    return local >= 0 && local < rows ? local : -1;
  }
};

bool readGeometry(Request &request, const View &table, const View &ids,
                  const View &other, Geometry &g) {
  request.expect(table.dtype == other.dtype, "table and rows differ in type");
  g.dtype = table.dtype;
  g.idType = ids.dtype;
  return readGather(request, table, ids, other, g);
}

template <typename Word>
void gather(const Geometry &g, const KernelCall &call, ThreadPool &pool) {
  const Word *table = static_cast<const Word *>(call.inputs[0].data);
  Word *out = static_cast<Word *>(call.outputs[0].data);
  const int64_t first = scalarInteger(call, 0);
  Nest after = g.after;
  const Nest::Inner inner = after.splitInner();
  const int64_t ids = g.ids.count(), afters = after.count();
  const int64_t befores = g.before.count();
  const bool dense = inner.strides[0] == 1 && inner.strides[1] == 1;
  pool.parallelFor(
      g.groups.count() * befores * ids, rowGrain(g.after.count()),
      [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          int64_t og[3], ob[2], oi[2], oa[2];
          // Row-major in [groups, befores, ids]: of 2 befores and 3 ids, 11 is
          // (11 / 3 / 2, 11 / 3 % 2, 11 % 3) = (1, 1, 2).
          g.groups.offsets(t / ids / befores, og);
          g.before.offsets(t / ids % befores, ob);
          g.ids.offsets(t % ids, oi);
          int64_t row = g.row(call.inputs[1].data, og[2] + oi[0], first);
          for (int64_t a = 0; a < afters; ++a) {
            after.offsets(a, oa);
            Word *y = out + og[1] + ob[1] + oi[1] + oa[1];
            const Word *x = table + og[0] + ob[0] + row * g.rowStride + oa[0];
            if (row >= 0 && dense)
              std::memcpy(y, x, static_cast<size_t>(inner.size) * sizeof(Word));
            else
              for (int64_t i = 0; i < inner.size; ++i)
                y[i * inner.strides[1]] =
                    row < 0 ? Word{} : x[i * inner.strides[0]];
          }
        }
      });
}

// Threads share out the groups and the columns of their tables; each adds all
// ids in order.
template <typename T>
void scatterAdd(const Geometry &g, const KernelCall &call, ThreadPool &pool) {
  const T *grad = static_cast<const T *>(call.inputs[0].data);
  T *table = static_cast<T *>(call.outputs[0].data);
  const int64_t first = scalarInteger(call, 0), ids = g.ids.count();
  const int64_t befores = g.before.count(), columns = g.after.count();
  Nest outer = g.after;
  const Nest::Inner inner = outer.splitInner();
  const bool dense = inner.strides[0] == 1 && inner.strides[1] == 1;
  const int64_t work = g.groups.count() * columns;
  pool.parallelFor(work, 64, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      // Of runs of 4 columns, two to a row of the table, 13 is column 1 of run
      // 13 % 8 / 4 = 1 of group 13 / 8 = 1. What is left of the run goes
      // together.
      int64_t column = at % inner.size, oa[2], og[3];
      int64_t n = std::min(inner.size - column, end - at);
      g.groups.offsets(at / columns, og);
      outer.offsets(at % columns / inner.size, oa);
      at += n;
      for (int64_t b = 0; b < befores; ++b) {
        int64_t ob[2], oi[2];
        g.before.offsets(b, ob);
        T *base = table + og[0] + ob[0] + oa[0] + column * inner.strides[0];
        const T *source =
            grad + og[1] + ob[1] + oa[1] + column * inner.strides[1];
        if (!call.accumulate)
          for (int64_t row = 0; row < g.rows; ++row)
            for (int64_t i = 0; i < n; ++i)
              base[row * g.rowStride + i * inner.strides[0]] = T(0);
        for (int64_t i = 0; i < ids; ++i) {
          g.ids.offsets(i, oi);
          int64_t row = g.row(call.inputs[1].data, og[2] + oi[0], first);
          if (row < 0)
            continue;
          T *y = base + row * g.rowStride;
          const T *x = source + oi[1];
          if constexpr (std::is_same_v<T, float>)
            if (dense) {
              simd().add(y, x, n);
              continue;
            }
          for (int64_t j = 0; j < n; ++j)
            y[j * inner.strides[0]] += x[j * inner.strides[1]];
        }
      }
    }
  });
}

template <typename T> T combined(Combine combine, T x, T y) {
  return combine == Combine::Mul   ? x * y
         : combine == Combine::Max ? (y > x || y != y ? y : x)
                                   : (y < x || y != y ? y : x);
}

// The same with products or extremes; the first update of a row is copied.
template <typename T>
void scatterReduce(const Geometry &g, Combine combine, const KernelCall &call,
                   ThreadPool &pool) {
  const T *updates = static_cast<const T *>(call.inputs[0].data);
  T *table = static_cast<T *>(call.outputs[0].data);
  const int64_t first = scalarInteger(call, 0), ids = g.ids.count();
  const int64_t befores = g.before.count(), columns = g.after.count();
  const int64_t work = g.groups.count() * befores * columns;
  pool.parallelFor(work, 64, [&](int64_t begin, int64_t end) {
    std::vector<char> isHit(static_cast<size_t>(g.rows));
    for (int64_t at = begin; at < end; ++at) {
      int64_t og[3], ob[2], oa[2], oi[2];
      g.groups.offsets(at / columns / befores, og);
      g.before.offsets(at / columns % befores, ob);
      g.after.offsets(at % columns, oa);
      T *to = table + og[0] + ob[0] + oa[0];
      for (int64_t row = 0; row < g.rows; ++row)
        to[row * g.rowStride] = T(0);
      std::fill(isHit.begin(), isHit.end(), 0);
      for (int64_t i = 0; i < ids; ++i) {
        g.ids.offsets(i, oi);
        const int64_t row = g.row(call.inputs[1].data, og[2] + oi[0], first);
        if (row < 0)
          continue;
        T &y = to[row * g.rowStride];
        const T x = updates[og[1] + ob[1] + oi[1] + oa[1]];
        y = isHit[static_cast<size_t>(row)] ? combined(combine, y, x) : x;
        isHit[static_cast<size_t>(row)] = 1;
      }
    }
  });
}

KernelResult createGather(Request &request) {
  Geometry g;
  if (!request.counts(2, 1) ||
      !readGeometry(request, request.inputs[0], request.inputs[1],
                    request.outputs[0], g))
    return request.status();
  return makeKernel([g](const KernelCall &call, ThreadPool &pool) {
    switch (runtime::dtypeSize(g.dtype)) {
    case 1:
      gather<uint8_t>(g, call, pool);
      break;
    case 2:
      gather<uint16_t>(g, call, pool);
      break;
    case 4:
      gather<uint32_t>(g, call, pool);
      break;
    default:
      gather<uint64_t>(g, call, pool);
    }
    return Status();
  });
}

KernelResult createScatter(Request &request) {
  Geometry g;
  Combine combine = Combine::Add;
  if (!request.counts(2, 1) || !readCombine(request, combine) ||
      !readGeometry(request, request.outputs[0], request.inputs[1],
                    request.inputs[0], g))
    return request.status();
  if (!request.expect(
          withNumber(g.dtype, [](auto) {}),
          fmt::format("no arithmetic on {}", runtime::dtypeName(g.dtype))))
    return request.status();
  return makeKernel([g, combine](const KernelCall &call, ThreadPool &pool) {
    withNumber(g.dtype, [&]<typename T>(T) {
      if (combine == Combine::Add)
        scatterAdd<T>(g, call, pool);
      else
        scatterReduce<T>(g, combine, call, pool);
    });
    return Status();
  });
}

// ---------------------------------------------------------------- pick

struct Pick : PickRequest {
  planpb::DType labelType = planpb::I64;

  // The local column of a row, -1 if it has none.
  int64_t column(const void *labels, int64_t offset, int64_t first) const {
    int64_t label = indexAt(labelType, labels, offset);
    int64_t local = label - first;
    bool here = local >= 0 && local < columns;
    return here && !(hasIgnored && label == ignored) ? local : -1;
  }
};

bool readPick(Request &request, const View &matrix, const View &labels,
              const View &vector, Pick &p) {
  request.type(matrix, "the matrix", planpb::F32);
  request.type(vector, "the picked values", planpb::F32);
  p.labelType = labels.dtype;
  return readPick(request, matrix, labels, vector,
                  static_cast<PickRequest &>(p));
}

KernelResult createPick(Request &request) {
  Pick p;
  if (!request.counts(2, 1) ||
      !readPick(request, request.inputs[0], request.inputs[1],
                request.outputs[0], p))
    return request.status();
  return makeKernel([p](const KernelCall &call, ThreadPool &pool) {
    int64_t first = scalarInteger(call, 0);
    pool.parallelFor(p.rows.count(), 1024, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t o[3];
        p.rows.offsets(row, o);
        int64_t column = p.column(call.inputs[1].data, o[1], first);
        f32Out(call.outputs[0])[o[2]] =
            column < 0 ? 0
                       : f32(call.inputs[0])[o[0] + column * p.columnStride];
      }
    });
    return Status();
  });
}

KernelResult createPickGrad(Request &request) {
  Pick p;
  if (!request.counts(2, 1) ||
      !readPick(request, request.outputs[0], request.inputs[1],
                request.inputs[0], p))
    return request.status();
  return makeKernel([p](const KernelCall &call, ThreadPool &pool) {
    int64_t first = scalarInteger(call, 0);
    pool.parallelFor(
        p.rows.count(), rowGrain(p.columns), [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            int64_t o[3];
            p.rows.offsets(row, o);
            float *x = f32Out(call.outputs[0]) + o[0];
            if (!call.accumulate)
              for (int64_t j = 0; j < p.columns; ++j)
                x[j * p.columnStride] = 0;
            int64_t column = p.column(call.inputs[1].data, o[1], first);
            if (column >= 0)
              x[column * p.columnStride] += f32(call.inputs[0])[o[2]];
          }
        });
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"gather", createGather, true, false, false},
    {"scatter_add", createScatter, true, true, false},
    {"scatter_reduce", createScatter, true, false, false},
    {"pick", createPick, true, false, false},
    {"pick_grad", createPickGrad, true, true, false},
};

} // namespace

std::span<const KernelEntry> gatherKernels() { return kEntries; }

} // namespace merak::cpu
