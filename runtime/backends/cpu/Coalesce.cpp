// coalesce: a row-sparse gradient.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace merak::cpu {

namespace {

struct Coalesce : CoalesceRequest {
  planpb::DType idType = planpb::I64;

  // Places of the slices by their id, those of one id in their order; slices of
  // rows that no table has are left out.
  std::vector<std::pair<int64_t, int64_t>> ordered(const void *data) const {
    std::vector<std::pair<int64_t, int64_t>> places;
    const int64_t count = ids.count();
    places.reserve(static_cast<size_t>(count));
    for (int64_t at = 0; at < count; ++at) {
      int64_t of[4];
      ids.offsets(at, of);
      int64_t id = indexAt(idType, data, of[0]);
      if (id < 0)
        id += size;
      if (id >= 0 && id < size)
        places.emplace_back(id, at);
    }
    std::sort(places.begin(), places.end());
    return places;
  }

  void store(void *data, int64_t at, int64_t id) const {
    if (idType == planpb::I64)
      static_cast<int64_t *>(data)[at] = id;
    else
      static_cast<int32_t *>(data)[at] = static_cast<int32_t>(id);
  }
};

// Threads share out the places; the first one of an id adds its slices in their
// order.
void coalesce(const Coalesce &c, const KernelCall &call, ThreadPool &pool) {
  const auto places = c.ordered(call.inputs[1].data);
  // By place: where the slices of its id begin, if it is the first of them.
  std::vector<int64_t> begins(static_cast<size_t>(c.ids.count()), -1);
  for (size_t at = 0; at < places.size(); ++at)
    if (at == 0 || places[at].first != places[at - 1].first)
      begins[static_cast<size_t>(places[at].second)] = static_cast<int64_t>(at);
  // All operands are dense.
  const int64_t count = c.ids.count(), columns = c.columns.count();
  const float *dy = f32(call.inputs[0]);
  float *rows = f32Out(call.outputs[0]);
  const auto bytes = static_cast<size_t>(columns) * sizeof(float);
  pool.parallelFor(count, rowGrain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      float *y = rows + place * columns;
      const int64_t first = begins[static_cast<size_t>(place)];
      if (first < 0) {
        c.store(call.outputs[1].data, place, -1);
        std::memset(y, 0, bytes);
        continue;
      }
      auto at = places.begin() + first;
      const int64_t id = at->first;
      c.store(call.outputs[1].data, place, id);
      std::memcpy(y, dy + place * columns, bytes);
      for (++at; at != places.end() && at->first == id; ++at)
        simd().add(y, dy + at->second * columns, columns);
    }
  });
}

KernelResult createCoalesce(Request &request) {
  Coalesce c;
  if (!request.counts(2, 2))
    return request.status();
  request.type(request.inputs[0], "the slices", planpb::F32);
  request.type(request.outputs[0], "the rows", planpb::F32);
  if (!readCoalesce(request, c))
    return request.status();
  c.idType = request.inputs[1].dtype;
  return makeKernel([c](const KernelCall &call, ThreadPool &pool) {
    coalesce(c, call, pool);
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"coalesce", createCoalesce, false, false, false},
};

} // namespace

std::span<const KernelEntry> coalesceKernels() { return kEntries; }

} // namespace merak::cpu
