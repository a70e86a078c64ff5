// copy, fill, slice, place, reductions, gather, coalesce, scatter_add,
// scatter_reduce, top_k.
#include "test/unit/conformance/Harness.h"

#include "runtime/core/DType.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>
#include <map>
#include <set>

namespace merak::conformance {
namespace {

constexpr planpb::DType kTypes[] = {planpb::F32,  planpb::F64,  planpb::I64,
                                    planpb::I32,  planpb::BOOL, planpb::F16,
                                    planpb::BF16, planpb::U8,   planpb::I8};

std::string text(const Shape &shape) {
  return fmt::format("[{}]", fmt::join(shape, " "));
}

Case copyCase(const Shape &shape, planpb::DType from, planpb::DType to) {
  Case c;
  c.name = fmt::format("copy {} {} to {}", text(shape),
                       runtime::dtypeName(from), runtime::dtypeName(to));
  c.op = "copy";
  bool isUnsigned = from == planpb::U8 || to == planpb::U8 ||
                    from == planpb::BOOL || to == planpb::BOOL;
  // Sums of two such values fit every type.
  c.inputs = {random(shape, 1, isUnsigned ? 0 : -50, 50, from)};
  c.outputs = {random(shape, 2, 0, 50, to)};
  if (from == planpb::BOOL)
    c.inputs[0] = integers(shape, {1, 0, 0, 1, 1}, from);
  if (to == planpb::BOOL)
    c.outputs[0] = integers(shape, {0, 0, 1}, to);
  c.reference = [](const Case &k) {
    Tensor out = k.inputs[0];
    out.dtype = k.outputs[0].dtype;
    if (out.dtype != planpb::F32 && out.dtype != planpb::F64 &&
        out.dtype != planpb::F16 && out.dtype != planpb::BF16)
      for (double &value : out.v)
        value = out.dtype == planpb::BOOL ? value != 0 : std::trunc(value);
    return Tensors{out};
  };
  // 16-bit sums round once more.
  c.tolerance = to == planpb::BF16 ? 1e-2 : to == planpb::F16 ? 1e-3 : 1e-7;
  return c;
}

Case sliceCase(const Shape &shape, int64_t axis, int64_t first, int64_t size,
               planpb::DType dtype = planpb::F32) {
  Case c;
  c.name = fmt::format("slice {} axis {} from {} size {} {}", text(shape), axis,
                       first, size, runtime::dtypeName(dtype));
  c.op = "slice";
  c.attrs["axis"] = std::to_string(axis);
  c.scalars = {runtime::ScalarValue::integer(first)};
  Shape out = shape;
  out[axis] = size;
  c.inputs = {random(shape, 1, -20, 20, dtype)};
  c.outputs = {random(out, 2, -20, 20, dtype)};
  c.reference = [=](const Case &k) {
    Tensor y = k.outputs[0];
    int64_t inner = 1;
    for (size_t d = axis + 1; d < shape.size(); ++d)
      inner *= shape[d];
    for (int64_t i = 0; i < y.size(); ++i) {
      int64_t before = i / (inner * size), at = i % (inner * size);
      y.v[i] = k.inputs[0].v[before * inner * shape[axis] + first * inner + at];
    }
    return Tensors{y};
  };
  c.exact = dtype != planpb::F32;
  return c;
}

// The adjoint: the part among zeros.
Case placeCase(const Shape &part, int64_t axis, int64_t first, int64_t size,
               planpb::DType dtype = planpb::F32) {
  Case c;
  c.name = fmt::format("place {} axis {} from {} of {} {}", text(part), axis,
                       first, size, runtime::dtypeName(dtype));
  c.op = "place";
  c.attrs["axis"] = std::to_string(axis);
  c.scalars = {runtime::ScalarValue::integer(first)};
  Shape whole = part;
  whole[axis] = size;
  c.inputs = {random(part, 1, -20, 20, dtype)};
  c.outputs = {random(whole, 2, -20, 20, dtype)};
  c.reference = [=](const Case &k) {
    Tensor y = zeros(whole, dtype);
    int64_t inner = 1;
    for (size_t d = axis + 1; d < part.size(); ++d)
      inner *= part[d];
    const int64_t row = inner * part[axis];
    for (int64_t i = 0; i < k.inputs[0].size(); ++i)
      y.v[i / row * inner * size + first * inner + i % row] = k.inputs[0].v[i];
    return Tensors{y};
  };
  c.exact = dtype != planpb::F32;
  return c;
}

// Beyond the range of the target: whole types saturate, NaN becomes 0.
Case saturating(planpb::DType to, double low, double high) {
  Case c;
  c.name = fmt::format("copy saturates {}", runtime::dtypeName(to));
  c.op = "copy";
  c.inputs = {{planpb::F32, {5}, {-1e30, 1e30, NAN, -INFINITY, 3.9}}};
  c.outputs = {zeros({5}, to)};
  c.reference = [=](const Case &k) {
    Tensor out = k.inputs[0];
    out.dtype = k.outputs[0].dtype;
    for (double &x : out.v)
      x = std::isnan(x) ? 0 : std::trunc(std::clamp(x, low, high));
    return Tensors{out};
  };
  c.exact = true;
  return c;
}

Case fillCase(planpb::DType dtype, runtime::ScalarValue value,
              double expected) {
  Case c;
  c.name = fmt::format("fill {}", runtime::dtypeName(dtype));
  c.op = "fill";
  c.outputs = {random({3, 5, 7}, 1, 0, 2, dtype)};
  c.scalars = {value};
  c.reference = [=](const Case &k) {
    Tensor out = k.outputs[0];
    std::fill(out.v.begin(), out.v.end(), expected);
    return Tensors{out};
  };
  c.tolerance = 1e-2;
  return c;
}

// ------------------------------------------------------------ reductions

Case reduceCase(bool sum, const Shape &shape, const std::vector<int64_t> &axes,
                bool keep, planpb::DType dtype = planpb::F32) {
  Case c;
  c.op = sum ? "reduce_sum" : "reduce_max";
  c.name = fmt::format("{} {} over {} {} {}", c.op, text(shape), text(axes),
                       keep ? "kept" : "dropped", runtime::dtypeName(dtype));
  c.attrs["axes"] = fmt::format("{}", fmt::join(axes, ","));
  bool whole = dtype == planpb::I64 || dtype == planpb::I32;
  c.inputs = {random(shape, 1, whole ? -20 : -1, whole ? 20 : 1, dtype)};
  auto reduced = [=](size_t d) {
    int64_t rank = static_cast<int64_t>(shape.size());
    return std::any_of(axes.begin(), axes.end(), [&](int64_t a) {
      return (a < 0 ? a + rank : a) == static_cast<int64_t>(d);
    });
  };
  Shape out;
  for (size_t d = 0; d < shape.size(); ++d)
    if (!reduced(d))
      out.push_back(shape[d]);
    else if (keep)
      out.push_back(1);
  c.outputs = {random(out, 2, whole ? -20 : -1, whole ? 20 : 1, dtype)};
  c.reference = [=](const Case &k) {
    Tensor y = zeros(k.outputs[0].shape, k.outputs[0].dtype);
    double none = dtype == planpb::F32   ? -INFINITY
                  : dtype == planpb::I32 ? -2147483648.0
                                         : -9223372036854775808.0;
    if (!sum)
      std::fill(y.v.begin(), y.v.end(), none);
    for (int64_t i = 0; i < k.inputs[0].size(); ++i) {
      int64_t rest = i, position = 0, step = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        int64_t at = rest % shape[d];
        rest /= shape[d];
        if (!reduced(d)) {
          position += at * step;
          step *= shape[d];
        }
      }
      double value = k.inputs[0].v[i];
      y.v[position] =
          sum ? y.v[position] + value : std::max(y.v[position], value);
    }
    return Tensors{y};
  };
  c.exact = whole || !sum;
  return c;
}

// ------------------------------------------------------------ coalesce

Case coalesceCase(const Shape &ids, const Shape &columns, int64_t size,
                  planpb::DType idType) {
  Case c;
  c.op = "coalesce";
  c.name = fmt::format("coalesce {} {} of {} {}", text(ids), text(columns),
                       size, runtime::dtypeName(idType));
  c.attrs["size"] = std::to_string(size);
  Shape rows = ids;
  rows.insert(rows.end(), columns.begin(), columns.end());
  // Whole numbers: sums are the same in any order and type. Some name no row.
  c.inputs = {random(rows, 1, -9, 9), random(ids, 3, -size, size + 2, idType)};
  for (double &value : c.inputs[0].v)
    value = std::trunc(value);
  c.outputs = {zeros(rows), random(ids, 4, -9, 9, idType)};
  c.reference = [=](const Case &k) {
    Tensor sums = zeros(rows), unique = k.outputs[1];
    const int64_t n = elements(columns);
    std::map<int64_t, int64_t> places; // the first one of an id
    std::fill(unique.v.begin(), unique.v.end(), -1);
    for (int64_t i = 0; i < k.inputs[1].size(); ++i) {
      auto id = static_cast<int64_t>(k.inputs[1].v[i]);
      id += id < 0 ? size : 0;
      if (id < 0 || id >= size)
        continue;
      const int64_t place = places.try_emplace(id, i).first->second;
      unique.v[place] = static_cast<double>(id);
      for (int64_t j = 0; j < n; ++j)
        sums.v[place * n + j] += k.inputs[0].v[i * n + j];
    }
    return Tensors{sums, unique};
  };
  return c;
}

// ------------------------------------------------------------ split_ids

Case splitIdsCase(const Shape &ids, const Shape &named, int64_t size,
                  planpb::DType idType) {
  Case c;
  c.op = "split_ids";
  c.name = fmt::format("split_ids {} by {} of {} {}", text(ids), text(named),
                       size, runtime::dtypeName(idType));
  c.attrs["size"] = std::to_string(size);
  c.inputs = {random(ids, 3, -size, size + 2, idType),
              random(named, 5, -size, size + 2, idType)};
  c.outputs = {random(ids, 4, -9, 9, idType), random(ids, 6, -9, 9, idType)};
  c.reference = [=](const Case &k) {
    auto rowOf = [&](double id) { return id < 0 ? id + double(size) : id; };
    std::set<double> rows;
    for (double id : k.inputs[1].v)
      rows.insert(rowOf(id));
    Tensors out = k.outputs;
    for (int64_t i = 0; i < k.inputs[0].size(); ++i) {
      const double row = rowOf(k.inputs[0].v[i]);
      const bool none = row < 0 || row >= double(size), named = rows.count(row);
      out[0].v[i] = none || !named ? double(size) : row;
      out[1].v[i] = none || named ? double(size) : row;
    }
    return out;
  };
  return c;
}

// ------------------------------------------------------------ gather

struct GatherShape {
  Shape table, ids;
  int64_t axis, first, global;
  int64_t batch = 0; // leading dimensions that table and ids share
};

Case gatherCase(const GatherShape &g, bool scatter,
                planpb::DType dtype = planpb::F32,
                planpb::DType idType = planpb::I64) {
  Case c;
  c.op = scatter ? "scatter_add" : "gather";
  c.name = fmt::format("{} {} ids {} axis {} batch {} from {} of {} {} {}",
                       c.op, text(g.table), text(g.ids), g.axis, g.batch,
                       g.first, g.global, runtime::dtypeName(dtype),
                       runtime::dtypeName(idType));
  c.attrs = {{"axis", std::to_string(g.axis)},
             {"batch", std::to_string(g.batch)},
             {"rows_global", std::to_string(g.global)}};
  Shape rows(g.table.begin(), g.table.begin() + g.axis);
  rows.insert(rows.end(), g.ids.begin() + g.batch, g.ids.end());
  rows.insert(rows.end(), g.table.begin() + g.axis + 1, g.table.end());
  Tensor ids = random(g.ids, 3, -g.global, g.global, idType);
  Tensor table = random(g.table, 1, -9, 9, dtype);
  Tensor other = random(rows, 2, -9, 9, dtype);
  c.inputs = {scatter ? other : table, ids};
  c.outputs = {scatter ? table : other};
  c.scalars = {runtime::ScalarValue::integer(g.first)};
  c.reference = [=](const Case &k) {
    Tensor out = zeros(k.outputs[0].shape, dtype);
    const Tensor &index = k.inputs[1];
    int64_t n = g.table[g.axis], before = 1, after = 1, groups = 1;
    for (int64_t d = 0; d < g.axis; ++d)
      before *= g.table[d];
    for (int64_t d = 0; d < g.batch; ++d)
      groups *= g.table[d];
    const int64_t own = groups ? index.size() / groups : 0; // ids of a group
    for (size_t d = g.axis + 1; d < g.table.size(); ++d)
      after *= g.table[d];
    for (int64_t b = 0; b < before; ++b)
      for (int64_t i = 0; i < own; ++i) {
        int64_t group = b / (before / groups);
        int64_t id = static_cast<int64_t>(index.v[group * own + i]);
        int64_t row = (id < 0 ? id + g.global : id) - g.first;
        if (row < 0 || row >= n)
          continue;
        for (int64_t a = 0; a < after; ++a) {
          int64_t inTable = (b * n + row) * after + a;
          int64_t inRows = (b * own + i) * after + a;
          if (scatter)
            out.v[inTable] += k.inputs[0].v[inRows];
          else
            out.v[inRows] = k.inputs[0].v[inTable];
        }
      }
    return Tensors{out};
  };
  c.tolerance = 1e-6;
  return c;
}

Case scatterReduceCase(const std::string &reduction, const Shape &table,
                       int64_t count, planpb::DType dtype = planpb::F32) {
  Case c;
  c.op = "scatter_reduce";
  c.name = fmt::format("scatter_reduce {} {} ids {} {}", reduction, text(table),
                       count, runtime::dtypeName(dtype));
  c.attrs = {{"axis", "0"}, {"reduction", reduction}};
  Shape rows = table;
  rows[0] = count;
  Tensor ids = random({count}, 3, 0, table[0], planpb::I64);
  c.inputs = {random(rows, 2, -3, 3, dtype), ids};
  c.outputs = {random(table, 1, -9, 9, dtype)};
  c.reference = [=](const Case &k) {
    Tensor out = zeros(table, dtype);
    int64_t after = 1;
    for (size_t d = 1; d < table.size(); ++d)
      after *= table[d];
    std::vector<bool> hit(out.v.size());
    for (int64_t i = 0; i < count; ++i)
      for (int64_t a = 0; a < after; ++a) {
        int64_t at = static_cast<int64_t>(k.inputs[1].v[i]) * after + a;
        double &y = out.v[at], x = k.inputs[0].v[i * after + a];
        y = !hit[at]             ? x
            : reduction == "mul" ? y * x
            : reduction == "max" ? std::max(x, y)
                                 : std::min(x, y);
        hit[at] = true;
      }
    return Tensors{out};
  };
  c.tolerance = 1e-5;
  return c;
}

// ------------------------------------------------------------ top_k

Case topKCase(const Shape &shape, int64_t k, bool smallest,
              planpb::DType dtype = planpb::F32) {
  Case c;
  c.op = "top_k";
  c.name =
      fmt::format("top_k {} k {} {} {}", text(shape), k,
                  smallest ? "smallest" : "largest", runtime::dtypeName(dtype));
  c.attrs["smallest"] = smallest ? "1" : "0";
  // Whole numbers repeat: the first of equal ones must win.
  Tensor x = random(shape, 5, -6, 6, dtype);
  for (double &value : x.v)
    value = std::trunc(value);
  c.inputs = {x};
  Shape out = shape;
  out.back() = k;
  c.outputs = {zeros(out, dtype), zeros(out, planpb::I64)};
  c.reference = [=](const Case &in) {
    Tensor values = zeros(out, dtype), indices = zeros(out, planpb::I64);
    const int64_t length = shape.back();
    for (int64_t row = 0; length && row < elements(shape) / length; ++row) {
      const double *x = in.inputs[0].v.data() + row * length;
      std::vector<bool> taken(static_cast<size_t>(length));
      for (int64_t i = 0; i < k; ++i) {
        int64_t best = -1;
        for (int64_t j = 0; j < length; ++j)
          if (!taken[j] &&
              (best < 0 || (smallest ? x[j] < x[best] : x[j] > x[best])))
            best = j;
        taken[best] = true;
        values.v[row * k + i] = x[best];
        indices.v[row * k + i] = double(best);
      }
    }
    return Tensors{values, indices};
  };
  c.exact = true;
  return c;
}

} // namespace

std::vector<Case> moveCases() {
  std::vector<Case> cases;
  for (planpb::DType from : kTypes)
    for (planpb::DType to : kTypes)
      cases.push_back(copyCase({3, 5, 7}, from, to));
  for (const Shape &shape :
       {Shape{}, Shape{1}, Shape{0, 4}, Shape{200}, Shape{70, 130},
        Shape{3, 33, 65}, Shape{2, 3, 4, 5, 6, 2}, Shape{40000}})
    cases.push_back(copyCase(shape, planpb::F32, planpb::F32));
  cases.push_back(sliceCase({5, 9, 7}, 0, 2, 3));
  cases.push_back(sliceCase({5, 9, 7}, 1, 0, 9));
  cases.push_back(sliceCase({5, 9, 7}, 2, 6, 1));
  cases.push_back(sliceCase({5, 9}, 1, 9, 0));
  cases.push_back(sliceCase({60, 40}, 1, 10, 30, planpb::I64));
  cases.push_back(placeCase({3, 9, 7}, 0, 2, 5));
  cases.push_back(placeCase({5, 9, 7}, 1, 0, 9));
  cases.push_back(placeCase({5, 9, 1}, 2, 6, 7));
  cases.push_back(placeCase({5, 0}, 1, 9, 9));
  cases.push_back(placeCase({60, 30}, 1, 10, 40, planpb::I64));
  for (planpb::DType ids : {planpb::I64, planpb::I32}) {
    cases.push_back(coalesceCase({40}, {3}, 9, ids));
    cases.push_back(coalesceCase({3, 5}, {2, 4}, 1000, ids));
    cases.push_back(coalesceCase({0}, {4}, 5, ids));
    cases.push_back(coalesceCase({700}, {33}, 1, ids)); // one row takes all
    cases.push_back(splitIdsCase({40}, {12}, 30, ids));
    cases.push_back(splitIdsCase({3, 5}, {2, 4, 2}, 1000, ids));
    cases.push_back(splitIdsCase({7}, {0}, 5, ids)); // nothing is needed next
    cases.push_back(splitIdsCase({0}, {4}, 5, ids));
  }
  cases.push_back(saturating(planpb::I32, -2147483648.0, 2147483647.0));
  cases.push_back(saturating(planpb::U8, 0, 255));
  cases.push_back(saturating(planpb::I8, -128, 127));
  for (planpb::DType dtype : kTypes)
    if (dtype != planpb::BOOL)
      cases.push_back(fillCase(dtype, runtime::ScalarValue::real(2.0), 2));
  cases.push_back(fillCase(planpb::F32, runtime::ScalarValue::integer(-3), -3));
  cases.push_back(fillCase(planpb::BOOL, runtime::ScalarValue::integer(1), 1));
  for (bool sum : {true, false})
    for (bool keep : {true, false}) {
      for (const auto &axes : std::vector<std::vector<int64_t>>{
               {0}, {1}, {2}, {-1}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}, {}})
        cases.push_back(reduceCase(sum, {5, 9, 35}, axes, keep));
      cases.push_back(reduceCase(sum, {300, 40}, {0}, keep));
      cases.push_back(reduceCase(sum, {300, 264}, {0}, keep));
      cases.push_back(reduceCase(sum, {3, 20000}, {1}, keep));
      cases.push_back(reduceCase(sum, {2, 0, 3}, {1}, keep));
      cases.push_back(reduceCase(sum, {0, 3}, {1}, keep));
      for (planpb::DType dtype : {planpb::F64, planpb::I64, planpb::I32})
        cases.push_back(reduceCase(sum, {4, 9, 6}, {0, 2}, keep, dtype));
    }
  for (const char *reduction : {"mul", "max", "min"}) {
    cases.push_back(scatterReduceCase(reduction, {7, 5}, 12));
    cases.push_back(scatterReduceCase(reduction, {90}, 70));
    cases.push_back(scatterReduceCase(reduction, {3, 2, 4}, 0));
    for (planpb::DType dtype : {planpb::F64, planpb::I64, planpb::I32})
      cases.push_back(scatterReduceCase(reduction, {4, 3}, 6, dtype));
  }
  for (bool scatter : {false, true}) {
    cases.push_back(gatherCase({{11, 20}, {4, 5}, 0, 0, 11}, scatter));
    cases.push_back(gatherCase({{11, 200}, {4, 5}, 0, 22, 33}, scatter));
    cases.push_back(gatherCase({{3, 11, 7}, {5}, 1, 0, 11}, scatter));
    cases.push_back(gatherCase({{3, 6, 7}, {2, 3}, 1, 6, 12}, scatter));
    cases.push_back(gatherCase({{3, 11}, {4}, 1, 0, 11}, scatter));
    cases.push_back(gatherCase({{11, 3}, {}, 0, 0, 11}, scatter));
    cases.push_back(gatherCase({{4, 11}, {4, 6}, 1, 0, 11, 1}, scatter));
    cases.push_back(gatherCase({{4, 11, 70}, {4, 3}, 1, 11, 33, 1}, scatter));
    cases.push_back(
        gatherCase({{2, 3, 5, 6, 7}, {2, 3, 4, 2}, 3, 0, 6, 2}, scatter));
    cases.push_back(gatherCase({{5, 7}, {5}, 1, 0, 7, 1}, scatter));
    cases.push_back(gatherCase({{3, 7, 2}, {3, 0}, 1, 0, 7, 1}, scatter));
    cases.push_back(gatherCase({{11, 3}, {0}, 0, 0, 11}, scatter));
    cases.push_back(gatherCase({{11, 20}, {4, 5}, 0, 0, 11}, scatter,
                               planpb::F32, planpb::I32));
    for (planpb::DType dtype : {planpb::F64, planpb::I64, planpb::I32})
      cases.push_back(gatherCase({{6, 9}, {7}, 0, 0, 6}, scatter, dtype));
  }
  for (bool smallest : {false, true}) {
    for (int64_t k : {0, 1, 4, 9})
      cases.push_back(topKCase({3, 5, 9}, k, smallest));
    cases.push_back(topKCase({200}, 17, smallest));
    for (planpb::DType dtype : {planpb::F64, planpb::I64, planpb::I32})
      cases.push_back(topKCase({4, 12}, 5, smallest, dtype));
  }
  for (planpb::DType dtype :
       {planpb::F16, planpb::BF16, planpb::BOOL, planpb::I8}) {
    Case c = gatherCase({{6, 9}, {7}, 0, 0, 6}, false, dtype);
    // Adding small wholes is exact in each of these types, but for bool.
    for (Tensor *tensor : {&c.inputs[0], &c.outputs[0]})
      *tensor = integers(tensor->shape, {0, 1, 1, 0, 1}, dtype);
    cases.push_back(c);
  }
  return cases;
}

} // namespace merak::conformance
