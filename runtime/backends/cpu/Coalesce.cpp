// coalesce: a row-sparse gradient; split_ids: which of its rows are needed
// next.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cpu/Types.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

namespace merak::cpu {

namespace {

struct Coalesce : CoalesceRequest {
  planpb::DType idType = planpb::I64;

  // By place: the row that its slice is of; -1: of none that the table has.
  std::vector<int64_t> rowsOf(const void *data) const {
    std::vector<int64_t> rows(static_cast<size_t>(ids.count()));
    for (size_t at = 0; at < rows.size(); ++at) {
      int64_t of[4];
      ids.offsets(static_cast<int64_t>(at), of);
      int64_t id = indexAt(idType, data, of[0]);
      if (id < 0)
        id += size;
      rows[at] = id >= 0 && id < size ? id : -1;
    }
    for (size_t begin = 0; block > 0 && begin < rows.size();
         begin += static_cast<size_t>(block))
      moveToFront(std::span(rows).subspan(begin, static_cast<size_t>(block)));
    return rows;
  }

  // Different rows in the order of their first places, then none.
  static void moveToFront(std::span<int64_t> rows) {
    std::vector<std::pair<int64_t, size_t>> places;
    for (size_t at = 0; at < rows.size(); ++at)
      if (rows[at] >= 0)
        places.emplace_back(rows[at], at);
    std::sort(places.begin(), places.end());
    std::vector<size_t> firsts;
    for (size_t i = 0; i < places.size(); ++i)
      if (i == 0 || places[i].first != places[i - 1].first)
        firsts.push_back(places[i].second);
    std::sort(firsts.begin(), firsts.end());
    for (size_t k = 0; k < rows.size(); ++k) // places before are not read again
      rows[k] = k < firsts.size() ? rows[firsts[k]] : -1;
  }

  // Places of the slices by their row, those of one row in their order.
  std::vector<std::pair<int64_t, int64_t>> ordered(const void *data) const {
    const std::vector<int64_t> rows = rowsOf(data);
    std::vector<std::pair<int64_t, int64_t>> places;
    places.reserve(rows.size());
    for (size_t at = 0; at < rows.size(); ++at)
      if (rows[at] >= 0)
        places.emplace_back(rows[at], static_cast<int64_t>(at));
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
  // By place of a sum: where the slices of its id begin.
  std::vector<int64_t> begins(static_cast<size_t>(c.ids.count()), -1);
  std::vector<std::pair<int64_t, int64_t>> firsts; // places, and begins
  for (size_t at = 0; at < places.size(); ++at)
    if (at == 0 || places[at].first != places[at - 1].first)
      firsts.emplace_back(places[at].second, static_cast<int64_t>(at));
  if (c.compact)
    std::sort(firsts.begin(), firsts.end());
  for (size_t k = 0; k < firsts.size(); ++k)
    begins[c.compact ? k : static_cast<size_t>(firsts[k].first)] =
        firsts[k].second;
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
        c.store(call.outputs[1].data, place, c.compact ? c.size : -1);
        std::memset(y, 0, bytes);
        continue;
      }
      auto at = places.begin() + first;
      const int64_t id = at->first;
      c.store(call.outputs[1].data, place, id);
      std::memcpy(y, dy + at->second * columns, bytes);
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

template <typename Id>
void splitIds(const SplitIdsRequest &s, const KernelCall &call) {
  const auto *ids = static_cast<const Id *>(call.inputs[0].data);
  const auto *named = static_cast<const Id *>(call.inputs[1].data);
  auto *prior = static_cast<Id *>(call.outputs[0].data);
  auto *delayed = static_cast<Id *>(call.outputs[1].data);
  std::vector<bool> isNamed(static_cast<size_t>(s.size));
  for (int64_t i = 0; i < s.named; ++i)
    if (const int64_t row = s.row(named[i]); row >= 0)
      isNamed[static_cast<size_t>(row)] = true;
  const auto none = static_cast<Id>(s.size);
  for (int64_t i = 0; i < s.ids; ++i) {
    const int64_t row = s.row(ids[i]);
    const bool before = row >= 0 && isNamed[static_cast<size_t>(row)];
    prior[i] = before ? static_cast<Id>(row) : none;
    delayed[i] = row >= 0 && !before ? static_cast<Id>(row) : none;
  }
}

KernelResult createSplitIds(Request &request) {
  SplitIdsRequest s;
  if (!request.counts(2, 2) || !readSplitIds(request, s))
    return request.status();
  const bool isLong = request.inputs[0].dtype == planpb::I64;
  return makeKernel([s, isLong](const KernelCall &call, ThreadPool &) {
    isLong ? splitIds<int64_t>(s, call) : splitIds<int32_t>(s, call);
    return Status();
  });
}

constexpr KernelEntry kEntries[] = {
    {"coalesce", createCoalesce, false, false, false},
    {"split_ids", createSplitIds, false, false, false},
};

} // namespace

std::span<const KernelEntry> coalesceKernels() { return kEntries; }

} // namespace merak::cpu
