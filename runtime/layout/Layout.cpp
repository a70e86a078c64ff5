#include "runtime/layout/Layout.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak::layout {
namespace {

int64_t lookup(const AxisMap &map, const std::string &axis, int64_t missing) {
  auto it = map.find(axis);
  return it == map.end() ? missing : it->second;
}

} // namespace

// The intervals of one dimension, built from the minor factor outwards: each
// outer index of the factor repeats the inner intervals one inner period
// further on.
std::vector<Interval> intervals(const DimLayout &dim, const AxisMap &mesh,
                                const AxisMap &coords) {
  std::vector<Interval> result{{0, 0, 1}};
  int64_t globalPeriod = 1, localPeriod = 1;
  for (auto factor = dim.factors.rbegin(); factor != dim.factors.rend();
       ++factor) {
    int64_t parts = 1, index = 0;
    for (const std::string &axis : factor->axes) {
      if (!coords.count(axis))
        continue;
      int64_t size = lookup(mesh, axis, 1);
      parts *= size;
      index = index * size + coords.at(axis);
    }
    // Of 8@tp x 3, rank 1 of 2 has chunks (1 * 4 + i) * 3 = 12, 15, 18, 21 of
    // the global dimension at i * 3 of its own: one interval, since each ends
    // where the next begins.
    const int64_t first = factor->size * index / parts;
    const int64_t chunk = factor->size * (index + 1) / parts - first;
    std::vector<Interval> outer;
    const bool whole = result.size() == 1 && result[0].length == globalPeriod;
    if (whole && chunk > 0)
      outer.push_back({first * globalPeriod, 0, chunk * globalPeriod});
    for (int64_t i = 0; !whole && i < chunk; ++i) {
      for (const Interval &inner : result) {
        Interval next{inner.global + (first + i) * globalPeriod,
                      inner.local + i * localPeriod, inner.length};
        if (!outer.empty() &&
            outer.back().global + outer.back().length == next.global &&
            outer.back().local + outer.back().length == next.local)
          outer.back().length += next.length;
        else
          outer.push_back(next);
      }
    }
    result = std::move(outer);
    globalPeriod *= factor->size;
    localPeriod *= chunk;
  }
  return result;
}

Layout Layout::replicated(const std::vector<int64_t> &shape) {
  Layout layout;
  for (int64_t size : shape)
    layout.dims.push_back({{Factor{size, {}}}});
  return layout;
}

std::vector<int64_t> Layout::globalShape() const {
  std::vector<int64_t> shape;
  for (const DimLayout &dim : dims) {
    int64_t size = 1;
    for (const Factor &factor : dim.factors)
      size *= factor.size;
    shape.push_back(size);
  }
  return shape;
}

std::vector<int64_t> Layout::localShape(const AxisMap &mesh) const {
  std::vector<int64_t> shape;
  shape.reserve(dims.size());
  for (const DimLayout &dim : dims) {
    int64_t size = 1;
    for (const Factor &factor : dim.factors) {
      int64_t parts = 1;
      for (const std::string &axis : factor.axes)
        parts *= lookup(mesh, axis, 1);
      // 16@(mb,dp) with mb = 2 and dp = 4: 16 / 8 = 2.
      size *= factor.size / parts;
    }
    shape.push_back(size);
  }
  return shape;
}

std::vector<int64_t> Layout::localShape(const AxisMap &mesh,
                                        const AxisMap &coords) const {
  std::vector<int64_t> shape;
  for (const DimLayout &dim : dims) {
    int64_t size = 0;
    for (const Interval &run : intervals(dim, mesh, coords))
      size += run.length;
    shape.push_back(size);
  }
  return shape;
}

std::string Layout::str() const {
  std::string text = "[";
  for (size_t d = 0; d < dims.size(); ++d) {
    text += d ? ", " : "";
    if (dims[d].factors.empty())
      text += "1";
    for (size_t f = 0; f < dims[d].factors.size(); ++f) {
      const Factor &factor = dims[d].factors[f];
      text += fmt::format("{}{}", f ? " x " : "", factor.size);
      if (factor.axes.size() == 1)
        text += "@" + factor.axes[0];
      else if (!factor.axes.empty())
        text += fmt::format("@({})", fmt::join(factor.axes, ","));
    }
  }
  text += "]";
  if (!partial.empty())
    text += fmt::format(" partial({})", fmt::join(partial, ","));
  return text;
}

int64_t Box::elements() const {
  int64_t count = 1;
  for (int64_t size : extent)
    count *= size;
  return count;
}

std::vector<Box> boxes(const Layout &layout, const AxisMap &mesh,
                       const AxisMap &coords) {
  std::vector<Box> result{Box{}};
  for (const DimLayout &dim : layout.dims) {
    std::vector<Interval> runs = intervals(dim, mesh, coords);
    std::vector<Box> next;
    next.reserve(result.size() * runs.size());
    for (const Box &box : result) {
      for (const Interval &run : runs) {
        next.push_back(box);
        next.back().globalOrigin.push_back(run.global);
        next.back().localOrigin.push_back(run.local);
        next.back().extent.push_back(run.length);
      }
    }
    result = std::move(next);
  }
  return result;
}

std::vector<Overlap> overlaps(const std::vector<Box> &a,
                              const std::vector<Box> &b) {
  std::vector<Overlap> result;
  for (const Box &boxA : a) {
    for (const Box &boxB : b) {
      size_t rank = boxA.extent.size();
      Overlap overlap;
      for (size_t d = 0; d < rank; ++d) {
        int64_t begin = std::max(boxA.globalOrigin[d], boxB.globalOrigin[d]);
        int64_t end = std::min(boxA.globalOrigin[d] + boxA.extent[d],
                               boxB.globalOrigin[d] + boxB.extent[d]);
        if (begin >= end)
          break;
        overlap.originA.push_back(boxA.localOrigin[d] + begin -
                                  boxA.globalOrigin[d]);
        overlap.originB.push_back(boxB.localOrigin[d] + begin -
                                  boxB.globalOrigin[d]);
        overlap.extent.push_back(end - begin);
      }
      if (overlap.extent.size() == rank)
        result.push_back(std::move(overlap));
    }
  }
  return result;
}

void copyBox(const void *src, const std::vector<int64_t> &srcShape,
             const std::vector<int64_t> &srcOrigin, void *dst,
             const std::vector<int64_t> &dstShape,
             const std::vector<int64_t> &dstOrigin,
             const std::vector<int64_t> &extent, int64_t elementSize) {
  // Minor dimensions that the box spans in both tensors join one run:
  // rows [r, r + k) of two matrices of equal width are one memcpy.
  int rank = static_cast<int>(extent.size());
  int64_t run = elementSize;
  int outer = rank;
  while (outer > 0) {
    run *= extent[outer - 1];
    --outer;
    if (extent[outer] != srcShape[outer] || extent[outer] != dstShape[outer])
      break;
  }
  for (int64_t size : extent)
    if (size == 0)
      return;

  std::vector<int64_t> srcStride(rank), dstStride(rank);
  int64_t srcStep = elementSize, dstStep = elementSize;
  const char *from = static_cast<const char *>(src);
  char *to = static_cast<char *>(dst);
  for (int d = rank - 1; d >= 0; --d) {
    srcStride[d] = srcStep;
    dstStride[d] = dstStep;
    from += srcOrigin[d] * srcStep;
    to += dstOrigin[d] * dstStep;
    srcStep *= srcShape[d];
    dstStep *= dstShape[d];
  }

  std::vector<int64_t> index(outer, 0);
  while (true) {
    std::memcpy(to, from, run);
    int d = outer - 1;
    for (; d >= 0; --d) {
      from += srcStride[d];
      to += dstStride[d];
      if (++index[d] < extent[d])
        break;
      from -= srcStride[d] * extent[d];
      to -= dstStride[d] * extent[d];
      index[d] = 0;
    }
    if (d < 0)
      return;
  }
}

} // namespace merak::layout
