// conv, max_pool, avg_pool and their gradients, on dense operands.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"

#include <algorithm>

namespace merak::cuda {

namespace {

Sliding sliding(const cpu::Window &w) {
  Sliding s{};
  for (int d = 0; d < 3; ++d) {
    s.in[d] = w.in[d], s.out[d] = w.out[d], s.kernel[d] = w.kernel[d];
    s.stride[d] = w.stride[d], s.dilation[d] = w.dilation[d];
    s.pad[d] = w.pad[d];
  }
  return s;
}

bool readConv(Request &request, const View &x, const View &w, const View &y,
              ConvArgs &c) {
  expectAllReal(request);
  cpu::ConvRequest conv;
  if (!cpu::readConv(request, x, w, y, conv))
    return false;
  c.groups = conv.groups;
  c.samples = conv.samples;
  c.window = sliding(conv.window);
  c.inChannels = conv.inChannels;
  c.outChannels = conv.outChannels;
  return true;
}

// A plan of the library for the convolution of x and w to y; null without one.
std::shared_ptr<FusedPlan> fusedConv(Request &request, const Device &device,
                                     FusedConvolution::Kind kind, const View &x,
                                     const View &w, const View &y) {
  const size_t dims = w.shape.size() - 2;
  if (dims < 2 || x.elements() == 0 || w.elements() == 0 || y.elements() == 0)
    return nullptr;
  std::vector<size_t> order(dims + 2);
  for (size_t d = 0; d < order.size(); ++d)
    order[d] = d;
  FusedConvolution c;
  c.kind = kind;
  c.x = fusedTensor(x, order);
  c.w = fusedTensor(w, order);
  c.y = fusedTensor(y, order);
  const std::vector<int64_t> ones(dims, 1);
  c.strides = request.list("strides", ones);
  c.dilations = request.list("dilations", ones);
  const std::vector<int64_t> pads =
      request.list("pads", std::vector<int64_t>(2 * dims, 0));
  c.padBegin.assign(pads.begin(), pads.begin() + dims);
  c.padEnd.assign(pads.begin() + dims, pads.end());
  return device.fused(c);
}

KernelResult createConv(Request &request, const Device &device) {
  ConvArgs args;
  args.biased = request.integer("bias", 0) != 0;
  if (!request.counts(2 + args.biased, 1) ||
      !readConv(request, request.inputs[0], request.inputs[1],
                request.outputs[0], args))
    return request.status();
  if (args.biased)
    request.shape(request.inputs[2], "bias", {request.inputs[1].shape[0]});
  if (!request.ok())
    return request.status();
  KernelResult direct =
      makeKernel([args](const KernelCall &call, Launcher &launcher) {
        ConvArgs now = args;
        now.x = ref(call.inputs[0]);
        now.w = ref(call.inputs[1]);
        if (now.biased)
          now.bias = ref(call.inputs[2]);
        now.y = ref(call.outputs[0]);
        now.add = call.accumulate;
        return launcher.items<KernelId::Conv>(now, call.outputs[0].elements());
      });
  if (args.biased || request.instruction.accumulate())
    return direct;
  return withFused(fusedConv(request, device, FusedConvolution::Forward,
                             request.inputs[0], request.inputs[1],
                             request.outputs[0]),
                   {0, 1, ~0}, std::move(direct));
}

KernelResult createConvGradInput(Request &request, const Device &device) {
  ConvArgs args;
  if (!request.counts(2, 1) ||
      !readConv(request, request.outputs[0], request.inputs[1],
                request.inputs[0], args))
    return request.status();
  KernelResult direct =
      makeKernel([args](const KernelCall &call, Launcher &launcher) {
        ConvArgs now = args;
        now.y = ref(call.inputs[0]);
        now.w = ref(call.inputs[1]);
        now.x = ref(call.outputs[0]);
        now.add = call.accumulate;
        return launcher.items<KernelId::ConvGradInput>(
            now, call.outputs[0].elements());
      });
  if (request.instruction.accumulate())
    return direct;
  return withFused(fusedConv(request, device, FusedConvolution::GradInput,
                             request.outputs[0], request.inputs[1],
                             request.inputs[0]),
                   {~0, 1, 0}, std::move(direct));
}

// The library's gradient of a weight in the workspace, from where it is
// converted to the type of the output, or added to it.
class StagedGradient : public Kernel {
public:
  StagedGradient(std::shared_ptr<FusedPlan> plan, CopyArgs copy, uint64_t bytes,
                 std::unique_ptr<Kernel> direct)
      : plan_(std::move(plan)), copy_(copy), bytes_(alignUp(bytes)),
        direct_(std::move(direct)) {
    workspace = std::max(bytes_ + plan_->workspace, direct_->workspace);
  }
  Status run(const KernelCall &call, Launcher &launcher) override {
    if (!plan_)
      return direct_->run(call, launcher);
    Launcher part = launcher; // both ways use the same workspace
    void *stage = part.workspace(bytes_);
    void *memory = part.workspace(plan_->workspace);
    void *operands[] = {call.inputs[0].data, stage, call.inputs[1].data};
    if (isAligned(operands)) {
      Status status = plan_->run(operands, memory, launcher.stream);
      if (status.ok())
        return runCopy(launcher, copy_, stage, call.outputs[0].data);
      if (launcher.capturing) // nothing else was captured here
        return status;
      plan_.reset(); // what it refuses once it would refuse again
    }
    return direct_->run(call, launcher);
  }

private:
  std::shared_ptr<FusedPlan> plan_;
  CopyArgs copy_;
  uint64_t bytes_;
  std::unique_ptr<Kernel> direct_;
};

KernelResult createConvGradWeight(Request &request, const Device &device) {
  ConvArgs args;
  if (!request.counts(2, 1) ||
      !readConv(request, request.inputs[0], request.outputs[0],
                request.inputs[1], args))
    return request.status();
  KernelResult direct = makeKernel([args](const KernelCall &call,
                                          Launcher &launcher) {
    ConvArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.inputs[1]);
    now.w = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.rows<KernelId::ConvGradWeight>(
        now, call.outputs[0].elements(), now.samples * now.window.outSize());
  });
  if (!direct.ok())
    return direct;
  const View &x = request.inputs[0], &y = request.inputs[1];
  const View &w = request.outputs[0];
  const auto kind = FusedConvolution::GradWeight;
  const bool adds = request.instruction.accumulate();
  std::shared_ptr<FusedPlan> plan = fusedConv(request, device, kind, x, w, y);
  if (plan && !adds)
    return withFused(std::move(plan), {0, ~0, 1}, std::move(direct));
  // A gradient in f32 of 16-bit operands: else by way of one in 16 bits.
  View stage = denseView(w);
  if (!plan && w.dtype != x.dtype) {
    stage.dtype = x.dtype;
    plan = fusedConv(request, device, kind, x, stage, y);
  }
  if (!plan)
    return direct;
  const CopyArgs copy = makeCopy(request, stage, w, adds);
  if (!request.ok())
    return request.status();
  return std::unique_ptr<Kernel>(std::make_unique<StagedGradient>(
      std::move(plan), copy, denseBytes(stage), std::move(*direct)));
}

// ---------------------------------------------------------------- pooling

bool readPool(Request &request, const View &in, const View &out, PoolArgs &p) {
  expectReal(request, in, "the wide operand");
  expectReal(request, out, "the narrow operand");
  cpu::PoolRequest pool;
  if (!cpu::readPool(request, in, out, pool))
    return false;
  p.window = sliding(pool.window);
  for (int d = 0; d < cpu::Window::kDims; ++d)
    p.window.padEnd[d] = pool.padEnd[size_t(d)];
  p.planes = pool.planes;
  p.inSize = pool.window.inSize();
  p.outSize = pool.window.outSize();
  p.countPad = pool.countPad;
  return true;
}

KernelResult createMaxPool(Request &request, const Device &) {
  PoolArgs args;
  if (!request.counts(1, 2) ||
      !readPool(request, request.inputs[0], request.outputs[0], args))
    return request.status();
  request.type(request.outputs[1], "index", planpb::I64);
  request.sameShape(request.outputs[0], "y", request.outputs[1], "index");
  if (!request.ok())
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    PoolArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    now.index = ref(call.outputs[1]);
    now.add = call.accumulate;
    return launcher.items<KernelId::MaxPool>(now, now.planes * now.outSize);
  });
}

KernelResult createMaxPoolGrad(Request &request, const Device &) {
  if (!request.counts(2, 1))
    return request.status();
  const View &dy = request.inputs[0], &index = request.inputs[1];
  const View &dx = request.outputs[0];
  expectReal(request, dy, "dy");
  request.type(index, "index", planpb::I64);
  expectReal(request, dx, "dx");
  request.sameShape(dy, "dy", index, "index");
  if (!request.expect(dy.rank() >= 2 && dx.rank() >= 2 &&
                          dy.shape[0] == dx.shape[0] &&
                          dy.shape[1] == dx.shape[1],
                      "samples and channels differ"))
    return request.status();
  if (!request.ok())
    return request.status();
  PoolArgs args;
  args.planes = dy.shape[0] * dy.shape[1];
  args.outSize = args.planes ? dy.elements() / args.planes : 0;
  args.inSize = args.planes ? dx.elements() / args.planes : 0;
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    PoolArgs now = args;
    now.y = ref(call.inputs[0]);
    now.index = ref(call.inputs[1]);
    now.x = ref(call.outputs[0]);
    if (!call.accumulate) {
      Loops<1> all;
      all.rank = 1;
      all.count = all.sizes[0] = now.planes * now.inSize;
      all.strides[0][0] = 1;
      MERAK_RETURN_IF_ERROR(runClear(launcher, all, now.x));
    }
    return launcher.items<KernelId::MaxPoolGrad>(now, now.planes);
  });
}

KernelResult createAveragePool(Request &request, const Device &) {
  PoolArgs args;
  if (!request.counts(1, 1) ||
      !readPool(request, request.inputs[0], request.outputs[0], args))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    PoolArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.items<KernelId::AveragePool>(now, now.planes * now.outSize);
  });
}

KernelResult createAveragePoolGrad(Request &request, const Device &) {
  PoolArgs args;
  if (!request.counts(1, 1) ||
      !readPool(request, request.outputs[0], request.inputs[0], args))
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    PoolArgs now = args;
    now.y = ref(call.inputs[0]);
    now.x = ref(call.outputs[0]);
    now.add = call.accumulate;
    return launcher.items<KernelId::AveragePoolGrad>(now,
                                                     now.planes * now.inSize);
  });
}

constexpr KernelEntry kEntries[] = {
    {"conv", createConv, Strides::Dense},
    {"conv_grad_input", createConvGradInput, Strides::Dense},
    {"conv_grad_weight", createConvGradWeight, Strides::Dense},
    {"max_pool", createMaxPool, Strides::Dense},
    {"max_pool_grad", createMaxPoolGrad, Strides::Dense},
    {"avg_pool", createAveragePool, Strides::Dense},
    {"avg_pool_grad", createAveragePoolGrad, Strides::Dense},
};

} // namespace

std::span<const KernelEntry> windowKernels() { return kEntries; }

} // namespace merak::cuda
