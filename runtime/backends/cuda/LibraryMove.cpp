// copy, fill, slice, place, rotary, dropout.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>

#include <cstring>

namespace merak::cuda {

namespace {

KernelResult createCopy(Request &request, const Device &) {
  if (request.counts(1, 1))
    request.sameShape(request.inputs[0], "input", request.outputs[0], "output");
  if (!request.ok())
    return request.status();
  const CopyArgs args = makeCopy(request, request.inputs[0], request.outputs[0],
                                 request.instruction.accumulate());
  if (!request.ok())
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    return runCopy(launcher, args, call.inputs[0].data, call.outputs[0].data);
  });
}

FillArgs fillOf(const FillArgs &args, const KernelCall &call) {
  FillArgs now = args;
  now.to = ref(call.outputs[0]);
  now.isFloat = call.scalars[0].isFloat;
  now.whole = call.scalars[0].i;
  now.real = call.scalars[0].f;
  return now;
}

// Dense tensors that get one pattern of bytes.
class FilledTensors : public Joint {
public:
  FilledTensors(const KernelCall &call, const FillArgs &fill) : Joint(call) {
    const int64_t size = runtime::dtypeSize(call.outputs[0].dtype);
    const Ref pattern{reinterpret_cast<char *>(&args_.pattern), fill.to.type};
    for (int64_t i = 0; i < kPackBytes / size; ++i)
      if (fill.isFloat)
        store<double>(pattern, i, fill.real, false);
      else
        store<int64_t>(pattern, i, fill.whole, false);
    args_.tensors.add({fill.to.data, fill.loops.count * size, 0});
  }
  Status run(Launcher &launcher) const override {
    return launcher.rows<KernelId::FillDense>(args_, args_.tensors.chunks,
                                              kItemThreads);
  }

private:
  bool take(const Joint &other) override {
    const auto *more = dynamic_cast<const FilledTensors *>(&other);
    return more &&
           std::memcmp(&more->args_.pattern, &args_.pattern, kPackBytes) == 0 &&
           args_.tensors.addAll(more->args_.tensors);
  }
  FillDenseArgs args_;
};

KernelResult createFill(Request &request, const Device &) {
  request.counts(0, 1);
  if (!request.ok())
    return request.status();
  const View &out = request.outputs[0];
  Nest nest(out.shape, {out.strides});
  nest.sortBy(0);
  FillArgs args;
  args.loops = makeLoops<1>(request, nest);
  args.add = request.instruction.accumulate();
  if (!request.ok())
    return request.status();
  return makeJoining(
      [args](const KernelCall &call, Launcher &launcher) {
        if (call.scalars.empty())
          return Status::error("fill: expected 1 scalar, found 0");
        const FillArgs now = fillOf(args, call);
        return launcher.items<KernelId::Fill>(now, now.loops.count);
      },
      [args](const KernelCall &call) -> std::unique_ptr<Joint> {
        if (call.scalars.empty() || args.add || !isContiguous(args.loops, 0) ||
            !isAligned(call.outputs[0].data))
          return nullptr;
        return std::make_unique<FilledTensors>(call, fillOf(args, call));
      });
}

KernelResult createSlice(Request &request, const Device &) {
  cpu::AxisPart part;
  if (!request.counts(1, 1) ||
      !cpu::readAxisPart(request, request.inputs[0], request.outputs[0],
                         "output is no part of the input along the axis", part))
    return request.status();
  const CopyArgs args = makeCopy(request, part.view, request.outputs[0],
                                 request.instruction.accumulate());
  if (!request.ok())
    return request.status();
  return makeKernel([=](const KernelCall &call, Launcher &launcher) {
    const Result<int64_t> offset = part.offset(call, "slice");
    if (!offset)
      return offset.status();
    return runCopy(launcher, args,
                   static_cast<const char *>(call.inputs[0].data) + *offset,
                   call.outputs[0].data);
  });
}

// The adjoint: the part among zeros.
KernelResult createPlace(Request &request, const Device &) {
  cpu::AxisPart part;
  if (!request.counts(1, 1) ||
      !cpu::readAxisPart(request, request.outputs[0], request.inputs[0],
                         "input is no part of the output along the axis", part))
    return request.status();
  const View &out = request.outputs[0];
  const bool adds = request.instruction.accumulate();
  const CopyArgs args = makeCopy(request, request.inputs[0], part.view, adds);
  Nest nest(out.shape, {out.strides});
  nest.sortBy(0);
  const Loops<1> all = makeLoops<1>(request, nest);
  if (!request.ok())
    return request.status();
  return makeKernel([=](const KernelCall &call, Launcher &launcher) {
    const Result<int64_t> offset = part.offset(call, "place");
    if (!offset)
      return offset.status();
    if (!adds)
      MERAK_RETURN_IF_ERROR(runClear(launcher, all, ref(call.outputs[0])));
    return runCopy(launcher, args, call.inputs[0].data,
                   static_cast<char *>(call.outputs[0].data) + *offset);
  });
}

KernelResult createRotary(Request &request, const Device &) {
  if (!request.counts(3, 1))
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  expectAllReal(request);
  request.sameShape(x, "x", y, "y");
  if (!request.expect(x.rank() == 4 && x.shape[3] % 2 == 0,
                      "expected x [b, t, h, d] with even d"))
    return request.status();
  const bool interleaved = request.integer("interleaved", 0) != 0;
  const int64_t half = x.shape[3] / 2;
  const std::vector<int64_t> angles = {x.shape[0], x.shape[1], 1, half};
  std::vector<int64_t> cs, sn;
  const bool fits = cpu::broadcastStrides(request.inputs[1], angles, cs) &&
                    cpu::broadcastStrides(request.inputs[2], angles, sn);
  if (!request.expect(fits, fmt::format("cos or sin does not broadcast to "
                                        "[{}, {}, 1, {}]",
                                        angles[0], angles[1], half)))
    return request.status();
  auto lead = [](const std::vector<int64_t> &s) {
    return std::vector<int64_t>{s[0], s[1], s[2]};
  };
  RotaryArgs args;
  args.rows = makeLoops<4>(
      request, Nest(std::span(x.shape).first(3),
                    {lead(x.strides), lead(y.strides), lead(cs), lead(sn)}));
  args.half = half;
  args.xStep = x.strides[3];
  args.yStep = y.strides[3];
  args.cosStep = cs[3];
  args.sinStep = sn[3];
  args.pair = interleaved ? 2 : 1;
  args.other = interleaved ? 1 : half;
  args.inverse = request.integer("inverse", 0) != 0;
  if (!request.ok())
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    RotaryArgs now = args;
    now.x = ref(call.inputs[0]);
    now.cosine = ref(call.inputs[1]);
    now.sine = ref(call.inputs[2]);
    now.y = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.items<KernelId::Rotary>(now, now.rows.count * now.half);
  });
}

KernelResult createDropout(Request &request, const Device &) {
  cpu::DropoutRequest dropout;
  const bool reads = cpu::readDropout(request, dropout);
  expectAllReal(request);
  if (!reads || !request.ok())
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  DropoutArgs args;
  args.operands = makeLoops<2>(request, Nest(x.shape, {x.strides, y.strides}));
  args.global = makeLoops<1>(request, Nest(dropout.extents, {dropout.strides}));
  args.stream.op = dropout.id;
  args.threshold = philox::thresholdOf(dropout.ratio);
  args.scale = static_cast<float>(1 / (1 - dropout.ratio));
  if (!request.ok())
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    if (call.scalars.size() < 2)
      return Status::error("dropout: expected the scalars seed and step");
    DropoutArgs now = args;
    now.stream.seed = static_cast<uint64_t>(call.scalars[0].asInteger());
    now.stream.step = static_cast<uint32_t>(call.scalars[1].asInteger());
    for (size_t i = 2; i < call.scalars.size(); ++i)
      now.begin += call.scalars[i].asInteger();
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.items<KernelId::Dropout>(now, now.operands.count);
  });
}

constexpr KernelEntry kEntries[] = {
    {"copy", createCopy},     {"fill", createFill},
    {"slice", createSlice},   {"place", createPlace},
    {"rotary", createRotary}, {"dropout", createDropout},
};

} // namespace

std::span<const KernelEntry> moveKernels() { return kEntries; }

} // namespace merak::cuda
