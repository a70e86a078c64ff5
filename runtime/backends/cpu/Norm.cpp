// layer_norm, rms_norm and their gradients. RMS norm is the case mean = 0.
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/backends/cpu/Nest.h"
#include "runtime/backends/cpu/Scratch.h"
#include "runtime/backends/cpu/simd/Simd.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::cpu {

namespace {

constexpr int64_t kRowBlock = 64; // rows of one partial sum of a parameter

// Operands split at the axis: `outer` over rows, one RowAccess each. Statistics
// (one value a row) take part in `outer` only.
struct Geometry {
  Nest outer;
  std::vector<RowAccess> row;
  int64_t size = 1;
};

class GeometryBuilder {
public:
  GeometryBuilder(Request &request, const View &x)
      : request_(request), axis_(request.axis(x.rank())),
        outerShape_(x.shape.begin(), x.shape.begin() + axis_),
        rowShape_(x.shape.begin() + axis_, x.shape.end()), x_(x) {
    for (int64_t size : rowShape_)
      geometry.size *= size;
  }
  // An operand of the shape of x; its position in `outer` and `row`.
  void full(const View &view, const char *what) {
    request_.sameShape(x_, "x", view, what);
    if (!request_.ok())
      return;
    strides_.emplace_back(view.strides.begin(), view.strides.begin() + axis_);
    geometry.row.emplace_back(rowShape_,
                              std::span(view.strides).subspan(axis_));
  }
  void statistic(const View &view, const char *what) {
    request_.shape(view, what, outerShape_);
    strides_.push_back(view.strides);
    geometry.row.emplace_back();
  }
  // A parameter: one row, stride 0 over rows.
  void parameter(const View &view, const char *what) {
    request_.shape(view, what, rowShape_);
    strides_.emplace_back(outerShape_.size(), 0);
    geometry.row.emplace_back(rowShape_, view.strides);
  }
  bool finish() {
    if (!request_.ok())
      return false;
    geometry.outer = Nest(outerShape_, strides_);
    return true;
  }

  Geometry geometry;

private:
  Request &request_;
  int64_t axis_;
  std::vector<int64_t> outerShape_, rowShape_;
  std::vector<std::vector<int64_t>> strides_;
  const View &x_;
};

// ------------------------------------------------------------ forward

KernelResult createForward(Request &request, bool rms) {
  bool scaled = request.integer("scale", 0) != 0;
  bool biased = !rms && request.integer("bias", 0) != 0;
  if (!request.counts(1 + scaled + biased, rms ? 2 : 3))
    return request.status();
  request.allF32();
  float epsilon = static_cast<float>(request.real("epsilon", 1e-5));
  GeometryBuilder builder(request, request.inputs[0]);
  builder.full(request.inputs[0], "x");
  builder.full(request.outputs[0], "y");
  if (!rms)
    builder.statistic(request.outputs[1], "mean");
  builder.statistic(request.outputs[rms ? 1 : 2], "rstd");
  const size_t rstdAt = rms ? 2 : 3, scaleAt = rstdAt + 1;
  if (scaled)
    builder.parameter(request.inputs[1], "scale");
  if (biased)
    builder.parameter(request.inputs[1 + scaled], "bias");
  if (!builder.finish())
    return request.status();
  Geometry g = builder.geometry;
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    const int64_t n = g.size;
    pool.parallelFor(
        g.outer.count(), rowGrain(n), [&](int64_t begin, int64_t end) {
          float *in = scratch(ScratchSlot::Row0, n);
          float *out = scratch(ScratchSlot::Row1, n);
          const float *scale = nullptr, *bias = nullptr;
          if (scaled)
            scale = g.row[scaleAt].read(f32(call.inputs[1]),
                                        scratch(ScratchSlot::Row2, n));
          if (biased)
            bias = g.row[scaleAt + scaled].read(f32(call.inputs[1 + scaled]),
                                                scratch(ScratchSlot::Row3, n));
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[8];
            g.outer.offsets(i, o);
            const float *x = g.row[0].read(f32(call.inputs[0]) + o[0], in);
            float *y = g.row[1].target(f32Out(call.outputs[0]) + o[1], out);
            float count = static_cast<float>(n);
            float mean = rms ? 0 : s.sum(x, n) / count;
            float variance = s.squaredDeviation(x, n, mean) / count;
            float rstd = 1 / std::sqrt(variance + epsilon);
            if (!rms)
              f32Out(call.outputs[1])[o[2]] = mean;
            f32Out(call.outputs[rms ? 1 : 2])[o[rstdAt]] = rstd;
            s.normalize(y, x, n, mean, rstd, scale, bias);
            g.row[1].finish(f32Out(call.outputs[0]) + o[1], y);
          }
        });
    return Status();
  });
}

// ------------------------------------------------------------ gradient of x

KernelResult createGrad(Request &request, bool rms) {
  bool scaled = request.integer("scale", 0) != 0;
  const size_t rstdIn = rms ? 2 : 3;
  if (!request.counts(rstdIn + 1 + scaled, 1))
    return request.status();
  request.allF32();
  GeometryBuilder builder(request, request.inputs[0]);
  builder.full(request.inputs[0], "dy");
  builder.full(request.inputs[1], "x");
  builder.full(request.outputs[0], "dx");
  builder.statistic(request.inputs[rstdIn], "rstd");
  if (!rms)
    builder.statistic(request.inputs[2], "mean");
  const size_t scaleAt = rms ? 4 : 5;
  if (scaled)
    builder.parameter(request.inputs[rstdIn + 1], "scale");
  if (!builder.finish())
    return request.status();
  Geometry g = builder.geometry;
  return makeKernel([=](const KernelCall &call, ThreadPool &pool) {
    const Simd &s = simd();
    const int64_t n = g.size;
    pool.parallelFor(
        g.outer.count(), rowGrain(n), [&](int64_t begin, int64_t end) {
          float *a = scratch(ScratchSlot::Row0, n);
          float *b = scratch(ScratchSlot::Row1, n);
          float *out = scratch(ScratchSlot::Row2, n);
          const float *scale = nullptr;
          if (scaled)
            scale = g.row[scaleAt].read(f32(call.inputs[rstdIn + 1]),
                                        scratch(ScratchSlot::Row3, n));
          for (int64_t i = begin; i < end; ++i) {
            int64_t o[8];
            g.outer.offsets(i, o);
            const float *dy = g.row[0].read(f32(call.inputs[0]) + o[0], a);
            const float *x = g.row[1].read(f32(call.inputs[1]) + o[1], b);
            float *dx = g.row[2].target(f32Out(call.outputs[0]) + o[2], out);
            float rstd = f32(call.inputs[rstdIn])[o[3]];
            float mean = rms ? 0 : f32(call.inputs[2])[o[4]];
            float means[2];
            s.normGradSums(dy, x, scale, n, mean, rstd, means);
            s.normGrad(dx, dy, x, scale, n, mean, rstd, rms ? 0 : means[0],
                       means[1]);
            g.row[2].finish(f32Out(call.outputs[0]) + o[2], dx);
          }
        });
    return Status();
  });
}

// ------------------------------------------------------------ parameters

// Threads share out the columns; rows are added in blocks, in order.
class ParamGrad : public Kernel {
public:
  ParamGrad(Geometry geometry, bool rms) : g_(std::move(geometry)), rms_(rms) {}

  Status run(const KernelCall &call, ThreadPool &pool) override {
    bool inPlace = g_.row[0].contiguous() && g_.row[1].contiguous();
    pool.parallelFor(g_.size, 16, [&](int64_t begin, int64_t end) {
      part(call, begin, end - begin, inPlace);
    });
    return {};
  }

private:
  void part(const KernelCall &call, int64_t first, int64_t width,
            bool inPlace) {
    const Simd &s = simd();
    float *sums = scratch(ScratchSlot::Partial, 4 * width);
    float *scalePart = sums, *biasPart = sums + width;
    float *scaleSum = sums + 2 * width, *biasSum = sums + 3 * width;
    float *a = inPlace ? nullptr : scratch(ScratchSlot::Row0, g_.size);
    float *b = inPlace ? nullptr : scratch(ScratchSlot::Row1, g_.size);
    std::fill_n(scaleSum, 2 * width, 0.0f);
    const int64_t rows = g_.outer.count();
    for (int64_t block = 0; block < rows; block += kRowBlock) {
      std::fill_n(scalePart, 2 * width, 0.0f);
      for (int64_t i = block; i < std::min(rows, block + kRowBlock); ++i) {
        int64_t o[8];
        g_.outer.offsets(i, o);
        const float *dy = g_.row[0].read(f32(call.inputs[0]) + o[0], a);
        const float *x = g_.row[1].read(f32(call.inputs[1]) + o[1], b);
        float rstd = f32(call.inputs[rms_ ? 2 : 3])[o[2]];
        float mean = rms_ ? 0 : f32(call.inputs[2])[o[3]];
        s.normParamGrad(scalePart, rms_ ? nullptr : biasPart, dy + first,
                        x + first, width, mean, rstd);
      }
      s.add(scaleSum, scalePart, 2 * width);
    }
    write(call, 0, scaleSum, first, width);
    if (!rms_)
      write(call, 1, biasSum, first, width);
  }

  void write(const KernelCall &call, size_t output, const float *sums,
             int64_t first, int64_t width) {
    const View &view = call.outputs[output];
    for (int64_t i = 0; i < width; ++i) {
      // Row-major position to offset; parameters mostly have one dimension.
      // Of [2, 3] with strides 8 and 1, 5 is at 5 % 3 * 1 + 5 / 3 % 2 * 8 = 10.
      int64_t offset = 0, rest = first + i;
      for (size_t d = view.shape.size(); d-- > 0; rest /= view.shape[d])
        offset += rest % view.shape[d] * view.strides[d];
      float &out = f32Out(view)[offset];
      out = call.accumulate ? out + sums[i] : sums[i];
    }
  }

  Geometry g_;
  bool rms_;
};

KernelResult createParamGrad(Request &request, bool rms) {
  if (!request.counts(rms ? 3 : 4, rms ? 1 : 2))
    return request.status();
  request.allF32();
  GeometryBuilder builder(request, request.inputs[0]);
  builder.full(request.inputs[0], "dy");
  builder.full(request.inputs[1], "x");
  builder.statistic(request.inputs[rms ? 2 : 3], "rstd");
  if (!rms)
    builder.statistic(request.inputs[2], "mean");
  builder.parameter(request.outputs[0], "dscale");
  if (!rms)
    builder.parameter(request.outputs[1], "dbias");
  if (!builder.finish())
    return request.status();
  return std::unique_ptr<Kernel>(
      std::make_unique<ParamGrad>(builder.geometry, rms));
}

KernelResult layerNorm(Request &r) { return createForward(r, false); }
KernelResult rmsNorm(Request &r) { return createForward(r, true); }
KernelResult layerNormGrad(Request &r) { return createGrad(r, false); }
KernelResult rmsNormGrad(Request &r) { return createGrad(r, true); }
KernelResult layerNormParams(Request &r) { return createParamGrad(r, false); }
KernelResult rmsNormParams(Request &r) { return createParamGrad(r, true); }

constexpr KernelEntry kEntries[] = {
    {"layer_norm", layerNorm, true, false, false},
    {"layer_norm_grad", layerNormGrad, true, false, false},
    {"layer_norm_param_grad", layerNormParams, true, true, false},
    {"rms_norm", rmsNorm, true, false, false},
    {"rms_norm_grad", rmsNormGrad, true, false, false},
    {"rms_norm_param_grad", rmsNormParams, true, true, false},
};

} // namespace

std::span<const KernelEntry> normKernels() { return kEntries; }

} // namespace merak::cpu
