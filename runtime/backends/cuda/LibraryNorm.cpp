// layer_norm, rms_norm and their gradients.
#include "runtime/backends/cuda/Kernel.h"

namespace merak::cuda {

namespace {

// Operands split at the axis, with statistics that have one value a row and
// parameters of one row. The loops' operands are in the order of calls.
class NormLoops {
public:
  NormLoops(Request &request, const View &x)
      : request_(request), x_(x), axis_(request.axis(x.rank())),
        outerShape_(x.shape.begin(), x.shape.begin() + axis_),
        rowShape_(x.shape.begin() + axis_, x.shape.end()) {}

  void full(const View &view, const char *what) {
    request_.sameShape(x_, "x", view, what);
    expectReal(request_, view, what);
    const size_t rank = std::min<size_t>(view.strides.size(), axis_);
    outer_.emplace_back(view.strides.begin(), view.strides.begin() + rank);
    inner_.emplace_back(view.strides.begin() + rank, view.strides.end());
  }
  void statistic(const View &view, const char *what) {
    request_.shape(view, what, outerShape_);
    expectReal(request_, view, what);
    outer_.push_back(view.strides);
  }
  void parameter(const View &view, const char *what) {
    request_.shape(view, what, rowShape_);
    expectReal(request_, view, what);
    inner_.push_back(view.strides);
  }
  void noStatistic() { outer_.emplace_back(outerShape_.size(), 0); }
  void noParameter() { inner_.emplace_back(rowShape_.size(), 0); }

  template <int N, int M> bool finish(Loops<N> &outer, Loops<M> &inner) {
    if (!request_.ok())
      return false;
    outer = makeLoops<N>(request_, Nest(outerShape_, outer_));
    inner = makeLoops<M>(request_, Nest(rowShape_, inner_));
    return request_.ok();
  }

private:
  Request &request_;
  const View &x_;
  int64_t axis_;
  std::vector<int64_t> outerShape_, rowShape_;
  std::vector<std::vector<int64_t>> outer_, inner_;
};

KernelResult createForward(Request &request, bool rms) {
  NormArgs args;
  args.rms = rms;
  args.scaled = request.integer("scale", 0) != 0;
  args.biased = !rms && request.integer("bias", 0) != 0;
  if (!request.counts(1 + args.scaled + args.biased, rms ? 2 : 3))
    return request.status();
  args.epsilon = static_cast<float>(request.real("epsilon", 1e-5));
  if (!request.expect(request.inputs[0].rank() > 0, "expected x of rank 1") ||
      (request.axis(request.inputs[0].rank()), !request.ok()))
    return request.status();
  NormLoops loops(request, request.inputs[0]);
  loops.full(request.inputs[0], "x");
  loops.full(request.outputs[0], "y");
  if (rms)
    loops.noStatistic();
  else
    loops.statistic(request.outputs[1], "mean");
  loops.statistic(request.outputs[rms ? 1 : 2], "rstd");
  if (args.scaled)
    loops.parameter(request.inputs[1], "scale");
  else
    loops.noParameter();
  if (args.biased)
    loops.parameter(request.inputs[1 + args.scaled], "bias");
  if (!loops.finish(args.outer, args.inner))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    NormArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    if (now.scaled)
      now.scale = ref(call.inputs[1]);
    if (now.biased)
      now.bias = ref(call.inputs[1 + now.scaled]);
    if (!now.rms)
      now.mean = ref(call.outputs[1]);
    now.rstd = ref(call.outputs[now.rms ? 1 : 2]);
    now.add = call.accumulate;
    return launcher.rows<KernelId::Norm>(now, now.outer.count, now.inner.count);
  });
}

KernelResult createGrad(Request &request, bool rms) {
  NormArgs args;
  args.rms = rms;
  args.scaled = request.integer("scale", 0) != 0;
  const size_t rstdAt = rms ? 2 : 3;
  if (!request.counts(rstdAt + 1 + args.scaled, 1) ||
      !request.expect(request.inputs[0].rank() > 0, "expected x of rank 1") ||
      (request.axis(request.inputs[0].rank()), !request.ok()))
    return request.status();
  NormLoops loops(request, request.inputs[0]);
  loops.full(request.inputs[0], "dy");
  loops.full(request.inputs[1], "x");
  loops.full(request.outputs[0], "dx");
  loops.statistic(request.inputs[rstdAt], "rstd");
  if (!rms)
    loops.statistic(request.inputs[2], "mean");
  if (args.scaled)
    loops.parameter(request.inputs[rstdAt + 1], "scale");
  if (!loops.finish(args.outer, args.inner))
    return request.status();
  return makeKernel([args, rstdAt](const KernelCall &call, Launcher &launcher) {
    NormArgs now = args;
    now.dy = ref(call.inputs[0]);
    now.x = ref(call.inputs[1]);
    if (!now.rms)
      now.mean = ref(call.inputs[2]);
    now.rstd = ref(call.inputs[rstdAt]);
    if (now.scaled)
      now.scale = ref(call.inputs[rstdAt + 1]);
    now.dx = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.rows<KernelId::NormGrad>(now, now.outer.count,
                                             now.inner.count);
  });
}

KernelResult createParamGrad(Request &request, bool rms, const Device &device) {
  ParamGradArgs args;
  args.rms = rms;
  if (!request.counts(rms ? 3 : 4, rms ? 1 : 2) ||
      !request.expect(request.inputs[0].rank() > 0, "expected x of rank 1") ||
      (request.axis(request.inputs[0].rank()), !request.ok()))
    return request.status();
  NormLoops loops(request, request.inputs[0]);
  loops.full(request.inputs[0], "dy");
  loops.full(request.inputs[1], "x");
  loops.statistic(request.inputs[rms ? 2 : 3], "rstd");
  if (!rms)
    loops.statistic(request.inputs[2], "mean");
  loops.parameter(request.outputs[0], "dscale");
  if (!rms)
    loops.parameter(request.outputs[1], "dbias");
  if (!loops.finish(args.outer, args.inner))
    return request.status();
  // Whether x and dy take packs, of any alignment of their first elements.
  const View &dy = request.inputs[0], &x = request.inputs[1];
  const int64_t size = packSize(typeOf(x.dtype)), columns = args.inner.count;
  auto takesPacks = [&](int o) {
    return isContiguous(args.inner, o) && args.outer.strides[o][0] % size == 0;
  };
  const bool packed = columns % size == 0 && args.outer.rank <= 1 &&
                      dy.dtype == x.dtype && takesPacks(0) && takesPacks(1) &&
                      request.inputs[rms ? 2 : 3].dtype == planpb::F32 &&
                      (rms || request.inputs[2].dtype == planpb::F32);
  const int64_t tiles =
      packed ? tileCount(columns / size, kPackLanes) : tileCount(columns);
  args.pieces = tilePieceCount(tiles, args.outer.count,
                               packed ? ParamGradArgs::kBlocks : kTileBlocks,
                               device.info());
  args.pieceSize = (args.outer.count + args.pieces - 1) / args.pieces;
  const uint64_t floats = 2 * static_cast<uint64_t>(columns * args.pieces);
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        ParamGradArgs now = args;
        now.dy = ref(call.inputs[0]);
        now.x = ref(call.inputs[1]);
        if (!now.rms)
          now.mean = ref(call.inputs[2]);
        now.rstd = ref(call.inputs[now.rms ? 2 : 3]);
        now.dscale = ref(call.outputs[0]);
        if (!now.rms)
          now.dbias = ref(call.outputs[1]);
        now.add = call.accumulate;
        now.partial = launcher.workspace<float>(floats);
        const Status first =
            packed && isAligned(now.dy.data) && isAligned(now.x.data)
                ? launcher.rowsOf<KernelId::ParamGradPacksF32,
                                  KernelId::ParamGradPacksBf16,
                                  KernelId::ParamGradPacksF16>(
                      now.x.type, now, tiles * now.pieces, kPackThreads)
                : launcher.rows<KernelId::ParamGrad>(
                      now, tileCount(columns) * now.pieces, kTileThreads);
        MERAK_RETURN_IF_ERROR(first);
        return launcher.rows<KernelId::ParamGradFinish>(
            now, tileCount(columns, finishLanes(now.pieces)), kTileThreads);
      },
      alignUp(floats * sizeof(float)));
}

KernelResult layerNorm(Request &r, const Device &) {
  return createForward(r, false);
}
KernelResult rmsNorm(Request &r, const Device &) {
  return createForward(r, true);
}
KernelResult layerNormGrad(Request &r, const Device &) {
  return createGrad(r, false);
}
KernelResult rmsNormGrad(Request &r, const Device &) {
  return createGrad(r, true);
}
KernelResult layerNormParams(Request &r, const Device &device) {
  return createParamGrad(r, false, device);
}
KernelResult rmsNormParams(Request &r, const Device &device) {
  return createParamGrad(r, true, device);
}

constexpr KernelEntry kEntries[] = {
    {"layer_norm", layerNorm},
    {"layer_norm_grad", layerNormGrad},
    {"layer_norm_param_grad", layerNormParams},
    {"rms_norm", rmsNorm},
    {"rms_norm_grad", rmsNormGrad},
    {"rms_norm_param_grad", rmsNormParams},
};

} // namespace

std::span<const KernelEntry> normKernels() { return kEntries; }

} // namespace merak::cuda
