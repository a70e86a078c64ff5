#include "runtime/backends/cpu/Requests.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::cpu {

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

} // namespace merak::cpu
