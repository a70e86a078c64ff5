// coalesce: a row-sparse gradient.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace merak::cpu {

namespace {

struct Coalesce {
  planpb::DType idType = planpb::I64;
  int64_t ids = 0, columns = 0;
  int64_t rows = 0; // of the table

  // Places of the slices by their id, those of one id in their order; slices of
  // rows that no table has are left out.
  std::vector<std::pair<int64_t, int64_t>> ordered(const void *data) const {
    std::vector<std::pair<int64_t, int64_t>> places;
    places.reserve(static_cast<size_t>(ids));
    for (int64_t at = 0; at < ids; ++at) {
      int64_t id = indexAt(idType, data, at);
      if (id < 0)
        id += rows;
      if (id >= 0 && id < rows)
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

bool readCoalesce(Request &request, Coalesce &c) {
  const View &dy = request.inputs[0], &ids = request.inputs[1];
  request.type(dy, "the slices", planpb::F32);
  request.type(request.outputs[0], "the rows", planpb::F32);
  request.index(ids, "the ids");
  request.type(request.outputs[1], "the different ids", ids.dtype);
  request.shape(request.outputs[0], "the rows", dy.shape);
  request.shape(request.outputs[1], "the different ids", ids.shape);
  request.expect(
      dy.shape.size() > ids.shape.size() &&
          std::equal(ids.shape.begin(), ids.shape.end(), dy.shape.begin()),
      "expected slices for each of the ids");
  c.rows = request.integer("size");
  if (!request.ok())
    return false;
  c.idType = ids.dtype;
  c.ids = ids.elements();
  c.columns = 1;
  for (size_t d = ids.shape.size(); d < dy.shape.size(); ++d)
    c.columns *= dy.shape[d];
  return true;
}

// Threads share out the rows; each adds its slices in their order.
void coalesce(const Coalesce &c, const KernelCall &call, ThreadPool &pool) {
  const auto places = c.ordered(call.inputs[1].data);
  std::vector<size_t> begins; // of each different id
  for (size_t at = 0; at < places.size(); ++at)
    if (at == 0 || places[at].first != places[at - 1].first)
      begins.push_back(at);
  const auto count = static_cast<int64_t>(begins.size());
  begins.push_back(places.size());
  const float *dy = f32(call.inputs[0]);
  float *rows = f32Out(call.outputs[0]);
  const auto bytes = static_cast<size_t>(c.columns) * sizeof(float);
  pool.parallelFor(c.ids, rowGrain(c.columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float *y = rows + row * c.columns;
      if (row >= count) {
        c.store(call.outputs[1].data, row, -1);
        std::memset(y, 0, bytes);
        continue;
      }
      const size_t first = begins[static_cast<size_t>(row)],
                   last = begins[static_cast<size_t>(row) + 1];
      c.store(call.outputs[1].data, row, places[first].first);
      std::memcpy(y, dy + places[first].second * c.columns, bytes);
      for (size_t at = first + 1; at < last; ++at)
        simd().add(y, dy + places[at].second * c.columns, c.columns);
    }
  });
}

KernelResult createCoalesce(Request &request) {
  Coalesce c;
  if (!request.counts(2, 2) || !readCoalesce(request, c))
    return request.status();
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
