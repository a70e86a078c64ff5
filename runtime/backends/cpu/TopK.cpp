// top_k: the first k of a row in order. Rows are independent.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Types.h"

#include <algorithm>
#include <numeric>

namespace merak::cpu {

namespace {

// Whether x comes before y. A NaN counts as the largest number.
template <typename T> bool before(T x, T y, bool smallest) {
  if constexpr (std::is_floating_point_v<T>) {
    bool xNan = x != x, yNan = y != y;
    if (xNan || yNan)
      return smallest ? !xNan && yNan : xNan && !yNan;
  }
  return smallest ? x < y : x > y;
}

template <typename T>
void topK(const KernelCall &call, ThreadPool &pool, const TopKRequest &t) {
  const int64_t length = t.length, k = t.k;
  const bool smallest = t.smallest;
  pool.parallelFor(t.rows, rowGrain(length), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> order(static_cast<size_t>(length));
    for (int64_t row = begin; row < end; ++row) {
      const T *x = static_cast<const T *>(call.inputs[0].data) + row * length;
      T *values = static_cast<T *>(call.outputs[0].data) + row * k;
      int64_t *indices = static_cast<int64_t *>(call.outputs[1].data) + row * k;
      std::iota(order.begin(), order.end(), int64_t{0});
      std::partial_sort(order.begin(), order.begin() + k, order.end(),
                        [&](int64_t a, int64_t b) {
                          if (before(x[a], x[b], smallest))
                            return true;
                          return !before(x[b], x[a], smallest) && a < b;
                        });
      for (int64_t i = 0; i < k; ++i) {
        indices[i] = order[i];
        values[i] = x[order[i]];
      }
    }
  });
}

KernelResult createTopK(Request &request) {
  TopKRequest t;
  if (!readTopK(request, t))
    return request.status();
  KernelResult result = Status::error("top_k: unsupported type");
  withNumber(request.inputs[0].dtype, [&]<typename T>(T) {
    result = makeKernel([t](const KernelCall &call, ThreadPool &pool) {
      topK<T>(call, pool, t);
      return Status();
    });
  });
  return result;
}

constexpr KernelEntry kEntries[] = {{"top_k", createTopK, false, false, false}};

} // namespace

std::span<const KernelEntry> topKKernels() { return kEntries; }

} // namespace merak::cpu
