#include "runtime/backends/cpu/Requests.h"

#include "runtime/core/DType.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::cpu {

Result<int64_t> AxisPart::offset(const KernelCall &call,
                                 const char *kernel) const {
  const int64_t begin = scalarInteger(call, 0);
  if (begin < 0 || begin > last)
    return Status::error(fmt::format("{}: begins at {}, expected at most {}",
                                     kernel, begin, last));
  return begin * step;
}

bool readAxisPart(Request &request, const View &whole, const View &part,
                  const char *misfit, AxisPart &out) {
  const size_t rank = whole.shape.size();
  const auto axis =
      static_cast<size_t>(request.axis(static_cast<int64_t>(rank)));
  if (!request.ok())
    return false;
  bool fits = part.shape.size() == rank;
  for (size_t d = 0; fits && d < rank; ++d)
    fits = d == axis ? part.shape[d] <= whole.shape[d]
                     : part.shape[d] == whole.shape[d];
  if (!request.expect(fits, misfit))
    return false;
  out.view = whole;
  out.view.shape = part.shape;
  out.last = whole.shape[axis] - part.shape[axis];
  out.step = whole.strides[axis] * runtime::dtypeSize(whole.dtype);
  return true;
}

// The first dimensions, and those behind them.
static std::vector<int64_t> front(const std::vector<int64_t> &all, size_t n) {
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n)};
}
static std::vector<int64_t> behind(const std::vector<int64_t> &all, size_t n) {
  return {all.begin() + static_cast<std::ptrdiff_t>(n), all.end()};
}

bool readCoalesce(Request &request, CoalesceRequest &c) {
  const View &dy = request.inputs[0], &ids = request.inputs[1],
             &rows = request.outputs[0], &unique = request.outputs[1];
  const size_t rank = ids.shape.size();
  request.index(ids, "the ids");
  request.type(unique, "the different ids", ids.dtype);
  request.shape(rows, "the rows", dy.shape);
  request.shape(unique, "the different ids", ids.shape);
  request.expect(dy.shape.size() > rank && front(dy.shape, rank) == ids.shape,
                 "expected slices for each of the ids");
  c.size = request.integer("size");
  c.compact = request.integer("compact", 0) != 0;
  c.block = request.integer("block", 0);
  request.expect(c.block == 0 || (c.block > 0 && ids.elements() % c.block == 0),
                 fmt::format("expected blocks that divide {} ids, found {}",
                             ids.elements(), c.block));
  if (!request.ok())
    return false;
  c.ids = Nest(ids.shape, {ids.strides, front(dy.strides, rank), unique.strides,
                           front(rows.strides, rank)});
  c.columns = Nest(behind(dy.shape, rank),
                   {behind(dy.strides, rank), behind(rows.strides, rank)});
  return true;
}

bool readSplitIds(Request &request, SplitIdsRequest &s) {
  const View &ids = request.inputs[0], &named = request.inputs[1];
  request.index(ids, "the ids");
  request.type(named, "the ids that name rows", ids.dtype);
  for (const View &out : request.outputs) {
    request.type(out, "the ids that are left", ids.dtype);
    request.shape(out, "the ids that are left", ids.shape);
  }
  s.size = request.integer("size");
  request.expect(s.size >= 1, "expected a table of at least one row");
  s.ids = ids.elements();
  s.named = named.elements();
  return request.ok();
}

bool readUpdateRows(Request &request, bool clip, size_t tensors,
                    RowsRequest &r) {
  const View &grad = request.inputs[0], &ids = request.inputs[1 + clip],
             &table = request.outputs[0];
  const size_t rank = ids.shape.size();
  request.index(ids, "the ids");
  if (!request.expect(!table.shape.empty(), "expected a table of rows"))
    return false;
  const std::vector<int64_t> columns = behind(table.shape, 1);
  std::vector<int64_t> shape = ids.shape;
  shape.insert(shape.end(), columns.begin(), columns.end());
  request.shape(grad, "the gradient", shape);
  const std::span<const View> states = request.outputs.first(tensors);
  for (const View &state : states) {
    request.type(state, "a parameter or its state", planpb::F32);
    request.sameShape(table, "the parameter", state, "its state");
  }
  if (!request.ok())
    return false;
  std::vector<std::vector<int64_t>> strides = {behind(grad.strides, rank)};
  for (const View &state : states) {
    strides.push_back(behind(state.strides, 1));
    r.rowStrides.push_back(state.strides[0]);
  }
  r.ids = Nest(ids.shape, {ids.strides, front(grad.strides, rank)});
  r.columns = Nest(columns, strides);
  r.rows = table.shape[0];
  return true;
}

static void readHistory(Request &request, const View &history,
                        HistoryRequest &h) {
  request.type(history, "the history", planpb::F32);
  if (!request.expect(history.rank() == 2 && history.shape[0] > 0 &&
                          history.shape[1] == kNoted,
                      "expected a history of rows of four numbers"))
    return;
  h = {history.shape[0], history.strides[0], history.strides[1]};
}

void expectCopy(Request &request, size_t tensors) {
  const View &param = request.outputs[0], &copy = request.outputs[tensors];
  request.expect(
      copy.dtype == planpb::BF16 || copy.dtype == planpb::F16,
      fmt::format("expected a copy of the parameter in bf16 or f16, found {}",
                  runtime::dtypeName(copy.dtype)));
  request.expect(copy.shape == param.shape && copy.strides == param.strides,
                 "expected a copy that lies as its parameter does");
}

static void readReachedRows(Request &request, const View &reached) {
  request.type(reached, "how far rows are", planpb::I32);
  request.shape(reached, "how far rows are", {request.outputs[0].shape[0]});
}

bool readReached(Request &request, size_t tensors, ReachedRequest &r) {
  r.reached = tensors;
  r.history = tensors + 1;
  const View &reached = request.outputs[r.reached];
  readReachedRows(request, reached);
  readHistory(request, request.outputs[r.history], r.steps);
  if (request.ok())
    r.rowStride = reached.strides[0];
  return request.ok();
}

bool readReplay(Request &request, size_t tensors, ReplayRequest &r) {
  r.named = request.inputs.size() > 1;
  if (!request.counts(r.named ? 2 : 1, tensors + 1) ||
      !request.expect(!request.outputs[0].shape.empty(),
                      "expected a table of rows"))
    return false;
  const View &table = request.outputs[0], &reached = request.outputs[tensors];
  readHistory(request, request.inputs[0], r.history);
  for (size_t i = 0; i < tensors; ++i) {
    request.type(request.outputs[i], "a parameter or its state", planpb::F32);
    request.sameShape(table, "the parameter", request.outputs[i], "its state");
  }
  readReachedRows(request, reached);
  r.stripes = request.integer("stripes", 1);
  request.expect(
      r.stripes > 0,
      fmt::format("expected 'stripes' above 0, found {}", r.stripes));
  r.globalRows = request.integer("rows_global", 0);
  if (r.named)
    request.index(request.inputs[1], "the ids");
  if (!request.ok())
    return false;
  r.rows = table.shape[0];
  if (r.named)
    r.ids = Nest(request.inputs[1].shape, {request.inputs[1].strides});
  std::vector<std::vector<int64_t>> strides;
  for (size_t i = 0; i < tensors; ++i) {
    strides.push_back(behind(request.outputs[i].strides, 1));
    r.rowStrides.push_back(request.outputs[i].strides[0]);
  }
  r.rowStrides.push_back(reached.strides[0]);
  r.columns = Nest(behind(table.shape, 1), strides);
  return true;
}

bool readDropout(Request &request, DropoutRequest &d) {
  if (!request.counts(1, 1))
    return false;
  const View &x = request.inputs[0];
  request.sameShape(x, "x", request.outputs[0], "y");
  d.ratio = request.real("ratio");
  const int64_t id = request.integer("id");
  request.expect(d.ratio >= 0 && d.ratio < 1,
                 fmt::format("expected 'ratio' in [0, 1), found {}", d.ratio));
  request.expect(id >= 0 && id >> 32 == 0,
                 fmt::format("expected 'id' in [0, 2^32), found {}", id));
  d.id = static_cast<uint32_t>(id);
  d.extents = request.list("extents", {{x.elements()}});
  d.strides = request.list("strides", {{1}});
  int64_t count = 1;
  for (int64_t extent : d.extents)
    count *= extent;
  request.expect(d.extents.size() == d.strides.size() &&
                     count == x.elements() &&
                     std::all_of(d.strides.begin(), d.strides.end(),
                                 [](int64_t s) { return s >= 0; }),
                 fmt::format("expected a stride for each of 'extents', which "
                             "multiply to {}",
                             x.elements()));
  return request.ok();
}

bool readConv(Request &request, const View &x, const View &w, const View &y,
              ConvRequest &c) {
  if (!request.expect(w.rank() >= 3 && x.rank() == w.rank(),
                      "expected x and w of one rank, 3 or more"))
    return false;
  c.groups = request.integer("group", 1);
  if (!readWindow(request, x, y, std::span(w.shape).subspan(2), c.window))
    return false;
  c.samples = x.shape[0];
  if (!request.expect(c.groups > 0 && w.shape[0] % c.groups == 0 &&
                          x.shape[1] == w.shape[1] * c.groups &&
                          y.shape[1] == w.shape[0] && y.shape[0] == x.shape[0],
                      fmt::format("channels do not fit: x {}, w {} x {}, y {}, "
                                  "{} groups",
                                  x.shape[1], w.shape[0], w.shape[1],
                                  y.shape[1], c.groups)))
    return false;
  c.inChannels = w.shape[1];
  c.outChannels = w.shape[0] / c.groups;
  return true;
}

bool readPool(Request &request, const View &in, const View &out,
              PoolRequest &p) {
  const std::vector<int64_t> kernel = request.list("kernel");
  if (!request.ok() || !readWindow(request, in, out, kernel, p.window))
    return false;
  request.expect(in.shape[0] == out.shape[0] && in.shape[1] == out.shape[1],
                 "samples and channels differ");
  p.planes = in.shape[0] * in.shape[1];
  p.countPad = request.integer("count_include_pad", 0) != 0;
  const std::vector<int64_t> pads =
      request.list("pads", std::vector<int64_t>(2 * kernel.size(), 0));
  for (size_t d = 0; d < kernel.size() && request.ok(); ++d)
    p.padEnd[Window::kDims - kernel.size() + d] = pads[kernel.size() + d];
  return request.ok();
}

bool readReduce(Request &request, ReduceRequest &r) {
  if (!request.counts(1, 1))
    return false;
  const View &x = request.inputs[0], &y = request.outputs[0];
  std::vector<bool> reduced(x.shape.size(), false);
  for (int64_t axis : request.list("axes")) {
    if (!request.expect(axis >= -x.rank() && axis < x.rank(),
                        fmt::format("expected axes in [{}, {}), found {}",
                                    -x.rank(), x.rank(), axis)))
      return false;
    reduced[axis < 0 ? axis + x.rank() : axis] = true;
  }
  std::vector<int64_t> keptShape, reducedShape, withOnes;
  std::vector<std::vector<int64_t>> kept(2), inside(1);
  for (int64_t d = 0; d < x.rank(); ++d) {
    (reduced[d] ? reducedShape : keptShape).push_back(x.shape[d]);
    (reduced[d] ? inside[0] : kept[0]).push_back(x.strides[d]);
    withOnes.push_back(reduced[d] ? 1 : x.shape[d]);
  }
  if (y.rank() == x.rank()) {
    request.shape(y, "output", withOnes);
    for (int64_t d = 0; d < x.rank(); ++d)
      if (!reduced[d])
        kept[1].push_back(y.strides[d]);
  } else {
    request.shape(y, "output", keptShape);
    kept[1] = y.strides;
  }
  if (!request.ok())
    return false;
  r.kept = Nest(keptShape, kept);
  r.reduced = Nest(reducedShape, inside);
  r.reduced.sortBy(0);
  return true;
}

bool readGather(Request &request, const View &table, const View &ids,
                const View &other, GatherRequest &g) {
  const int64_t axis = request.axis(table.rank());
  const int64_t batch = request.integer("batch", 0);
  request.index(ids, "ids");
  request.expect(batch >= 0 && batch <= axis && batch <= ids.rank() &&
                     std::equal(ids.shape.begin(), ids.shape.begin() + batch,
                                table.shape.begin()),
                 "the table and the ids differ before the axis");
  if (!request.ok())
    return false;
  std::vector<int64_t> expected(table.shape.begin(),
                                table.shape.begin() + axis);
  expected.insert(expected.end(), ids.shape.begin() + batch, ids.shape.end());
  expected.insert(expected.end(), table.shape.begin() + axis + 1,
                  table.shape.end());
  request.shape(other, "rows", expected);
  g.globalRows = request.integer("rows_global", table.shape[axis]);
  if (!request.ok())
    return false;
  g.rows = table.shape[axis];
  g.rowStride = table.strides[axis];
  auto part = [](const std::vector<int64_t> &v, int64_t from, int64_t count) {
    return std::vector<int64_t>(v.begin() + from, v.begin() + from + count);
  };
  const int64_t tail = table.rank() - axis - 1, rank = ids.rank() - batch;
  g.groups = Nest(part(table.shape, 0, batch),
                  {part(table.strides, 0, batch), part(other.strides, 0, batch),
                   part(ids.strides, 0, batch)});
  g.before = Nest(part(table.shape, batch, axis - batch),
                  {part(table.strides, batch, axis - batch),
                   part(other.strides, batch, axis - batch)});
  g.ids = Nest(part(ids.shape, batch, rank), {part(ids.strides, batch, rank),
                                              part(other.strides, axis, rank)});
  g.after = Nest(part(table.shape, axis + 1, tail),
                 {part(table.strides, axis + 1, tail),
                  part(other.strides, axis + rank, tail)});
  return true;
}

bool readCombine(Request &request, Combine &combine) {
  if (request.instruction.op() != "scatter_reduce")
    return true;
  const auto found = request.instruction.attrs().find("reduction");
  const std::string name =
      found == request.instruction.attrs().end() ? "" : found->second;
  combine = name == "mul"   ? Combine::Mul
            : name == "max" ? Combine::Max
                            : Combine::Min;
  request.expect(
      combine != Combine::Min || name == "min",
      fmt::format("expected 'reduction' mul, max or min, found '{}'", name));
  return request.ok();
}

bool readPick(Request &request, const View &matrix, const View &labels,
              const View &vector, PickRequest &p) {
  if (!request.expect(matrix.rank() > 0, "expected a matrix, found a scalar"))
    return false;
  const std::vector<int64_t> shape(matrix.shape.begin(),
                                   matrix.shape.end() - 1);
  request.index(labels, "labels");
  request.shape(labels, "labels", shape);
  request.shape(vector, "the picked values", shape);
  p.hasIgnored = request.has("ignore_index");
  p.ignored = request.integer("ignore_index", 0);
  if (!request.ok())
    return false;
  const std::vector<int64_t> strides(matrix.strides.begin(),
                                     matrix.strides.end() - 1);
  p.rows = Nest(shape, {strides, labels.strides, vector.strides});
  p.columns = matrix.shape.back();
  p.columnStride = matrix.strides.back();
  return true;
}

bool readTopK(Request &request, TopKRequest &t) {
  if (!request.counts(1, 2))
    return false;
  const View &x = request.inputs[0], &values = request.outputs[0];
  request.type(request.outputs[1], "indices", planpb::I64);
  request.sameShape(values, "values", request.outputs[1], "indices");
  request.expect(x.dtype == values.dtype, "x and values differ in type");
  t.smallest = request.integer("smallest", 0) != 0;
  if (!request.expect(x.rank() > 0 && x.rank() == values.rank() &&
                          std::equal(x.shape.begin(), x.shape.end() - 1,
                                     values.shape.begin()) &&
                          values.shape.back() <= x.shape.back(),
                      "values are not a part of x along the last dimension") ||
      !request.ok())
    return false;
  t.length = x.shape.back();
  t.k = values.shape.back();
  t.rows = t.length ? x.elements() / t.length : 0;
  return true;
}

bool readSgd(Request &request, SgdRequest &a) {
  a.momentum = request.real("momentum", 0.0);
  a.dampening = request.real("dampening", 0.0);
  a.weightDecay = request.real("weight_decay", 0.0);
  a.nesterov = request.integer("nesterov", 0) != 0;
  constexpr int64_t kNone = -1;
  if (const int64_t count = request.integer("first_count", kNone);
      count != kNone)
    a.firstCount = count;
  return request.ok();
}

SgdStep SgdRequest::at(double lr, int64_t step) const {
  const bool isDamped = !firstCount || *firstCount + step - 1 > 0;
  SgdStep now{};
  now.lr = static_cast<float>(lr);
  now.momentum = static_cast<float>(momentum);
  now.oneMinusDampening = static_cast<float>(isDamped ? 1 - dampening : 1);
  now.weightDecay = static_cast<float>(weightDecay);
  now.nesterov = nesterov;
  now.first = !firstCount && step <= 1;
  return now;
}

void note(const SgdStep &step, float *history) {
  history[1] = step.lr;
  history[2] = step.oneMinusDampening;
  history[3] = step.first;
}

SgdStep SgdRequest::noted(const float *history) const {
  SgdStep step = at(0, 1);
  step.lr = history[1];
  step.oneMinusDampening = history[2];
  step.first = history[3] != 0;
  return step;
}

bool readAdam(Request &request, AdamRequest &a) {
  a.beta1 = request.real("beta1", 0.9);
  a.beta2 = request.real("beta2", 0.999);
  a.eps = request.real("eps", 1e-8);
  a.decay = request.real("weight_decay", 0.01);
  a.l2 = request.real("l2", 0.0);
  a.postDecay = request.real("post_decay", 0.0);
  a.plainRoot = request.integer("plain_root", 0) != 0;
  a.firstCount = request.integer("first_count", 1);
  return request.ok();
}

AdamWStep AdamRequest::at(double lr, int64_t step) const {
  // Without an update so far there is nothing to correct (ONNX's T of 0).
  const int64_t count = firstCount + step - 1;
  const double t = static_cast<double>(count);
  const double root = count > 0 ? std::sqrt(1 - std::pow(beta2, t)) : 1;
  const double rate = lr / (count > 0 ? 1 - std::pow(beta1, t) : 1);
  AdamWStep now;
  now.l2 = static_cast<float>(l2);
  now.decay = static_cast<float>(1 - lr * decay);
  now.beta1 = static_cast<float>(beta1);
  now.beta2 = static_cast<float>(beta2);
  now.oneMinusBeta1 = static_cast<float>(1 - beta1);
  now.oneMinusBeta2 = static_cast<float>(1 - beta2);
  now.stepSize = static_cast<float>(plainRoot ? rate * root : rate);
  now.rootCorrection = static_cast<float>(plainRoot ? 1 : root);
  now.eps = static_cast<float>(eps);
  now.keep = static_cast<float>(1 - postDecay);
  return now;
}

void note(const AdamWStep &step, float *history) {
  history[1] = step.decay;
  history[2] = step.stepSize;
  history[3] = step.rootCorrection;
}

AdamWStep AdamRequest::noted(const float *history) const {
  AdamWStep step = at(0, 1);
  step.decay = history[1];
  step.stepSize = history[2];
  step.rootCorrection = history[3];
  return step;
}

// From the last step to the first.
void boundSteps(std::vector<AdamWReplayStep> &steps) {
  float size = 0, kept = 1, second = 0.999f;
  for (size_t s = steps.size(); s-- > 0;) {
    const AdamWStep &step = steps[s].step;
    size = std::max(size, std::fabs(step.stepSize));
    kept *= std::min(1.0f, std::fabs(step.decay * step.keep));
    second *= step.beta2;
    steps[s].mostSize = size;
    steps[s].leastKept = 0.99f * kept;
    steps[s].leastSecond = second;
  }
}

bool readAdagrad(Request &request, AdagradRequest &a) {
  a.eps = request.real("eps", 1e-10);
  a.lrDecay = request.real("lr_decay", 0.0);
  a.l2 = request.real("weight_decay", 0.0);
  a.firstCount = request.integer("first_count", 0);
  return request.ok();
}

AdagradStep AdagradRequest::at(double lr, int64_t step) const {
  const double count = static_cast<double>(firstCount + step - 1);
  return {static_cast<float>(l2),
          static_cast<float>(lr / (1 + count * lrDecay)),
          static_cast<float>(eps)};
}

void note(const AdagradStep &step, float *history) { history[1] = step.rate; }

AdagradStep AdagradRequest::noted(const float *history) const {
  AdagradStep step = at(0, 1);
  step.rate = history[1];
  return step;
}

} // namespace merak::cpu
