// sgd_update, adamw_update, adagrad_update, the same with _rows, clip_factor.
// Parameters and states are f32; the gradient may be of 16 bits.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"

#include <algorithm>
#include <cmath>

namespace merak::cuda {

namespace {

bool readRows(Request &request, UpdateArgs &args) {
  cpu::RowsRequest read;
  if (!cpu::readUpdateRows(request, args.clip, read))
    return false;
  args.loops = makeLoops<4>(request, read.columns);
  args.places = makeLoops<2>(request, read.ids);
  args.rows = read.rows;
  std::copy(read.rowStrides.begin(), read.rowStrides.end(), args.rowStrides);
  return request.ok();
}

bool readUpdate(Request &request, UpdateArgs &args) {
  const View &grad = request.inputs[0];
  expectReal(request, grad, "the gradient");
  if (args.clip)
    request.expect(request.inputs[1].elements() == 1,
                   "expected one clip factor");
  if (args.sparse)
    return readRows(request, args);
  std::vector<std::vector<int64_t>> strides = {grad.strides};
  for (const View &state : request.outputs) {
    request.type(state, "a parameter or its state", planpb::F32);
    request.sameShape(grad, "the gradient", state, "a parameter or its state");
    strides.push_back(state.strides);
  }
  if (!request.ok())
    return false;
  args.loops = makeLoops<4>(request, Nest(grad.shape, strides));
  return request.ok();
}

void bind(UpdateArgs &args, const KernelCall &call) {
  args.grad = ref(call.inputs[0]);
  if (args.clip)
    args.factor = ref(call.inputs[1]);
  if (args.sparse) {
    args.ids = ref(call.inputs[1 + args.clip]);
    args.firstRow = cpu::scalarInteger(call, 2);
  }
  args.param = ref(call.outputs[0]);
  if (call.outputs.size() > 1)
    args.first = ref(call.outputs[1]);
  if (call.outputs.size() > 2)
    args.second = ref(call.outputs[2]);
}

void set(UpdateArgs &args, const cpu::AdamWStep &step) {
  args.l2 = step.l2;
  args.decay = step.decay;
  args.beta1 = step.beta1;
  args.beta2 = step.beta2;
  args.oneMinusBeta1 = step.oneMinusBeta1;
  args.oneMinusBeta2 = step.oneMinusBeta2;
  args.stepSize = step.stepSize;
  args.rootCorrection = step.rootCorrection;
  args.eps = step.eps;
  args.keep = step.keep;
}

void set(UpdateArgs &args, const cpu::SgdStep &step) {
  args.lr = step.lr;
  args.momentum = step.momentum;
  args.oneMinusDampening = step.oneMinusDampening;
  args.weightDecay = step.weightDecay;
  args.nesterov = step.nesterov;
  args.firstStep = step.first;
}

void set(UpdateArgs &args, const cpu::AdagradStep &step) {
  args.l2 = step.l2;
  args.lr = step.rate;
  args.eps = step.eps;
}

template <bool sparse>
KernelResult createSgd(Request &request, const Device &) {
  UpdateArgs args;
  args.sparse = sparse;
  args.clip = request.integer("clip", 0) != 0;
  cpu::SgdRequest sgd;
  if (!cpu::readSgd(request, sgd))
    return request.status();
  args.hasBuffer = sgd.momentum != 0;
  // The buffer may also be listed as an input: it is the same view.
  const size_t inputs = size_t{1} + args.clip + sparse;
  const bool listed = args.hasBuffer && request.inputs.size() == inputs + 1;
  request.counts(inputs + listed, args.hasBuffer ? 2 : 1);
  if (!request.ok() || !readUpdate(request, args))
    return request.status();
  return makeKernel([args, sgd](const KernelCall &call, Launcher &launcher) {
    if (call.scalars.size() < 2)
      return Status::error("sgd_update: expected the scalars lr and step");
    UpdateArgs now = args;
    bind(now, call);
    set(now, sgd.at(call.scalars[0].asDouble(), call.scalars[1].asInteger()));
    return launcher.items<KernelId::Sgd>(now, now.count());
  });
}

// Adam and Adagrad, whose scalars both backends compute alike.
template <KernelId id, size_t states, typename Scalars>
KernelResult makeUpdate(Request &request, bool sparse, const Scalars &scalars) {
  UpdateArgs args;
  args.sparse = sparse;
  args.clip = request.integer("clip", 0) != 0;
  if (!request.counts(size_t{1} + args.clip + sparse, states) ||
      !readUpdate(request, args))
    return request.status();
  return makeKernel([=](const KernelCall &call, Launcher &launcher) {
    if (call.scalars.size() < 2)
      return Status::error("an update: expected the scalars lr and step");
    UpdateArgs now = args;
    bind(now, call);
    set(now,
        scalars.at(call.scalars[0].asDouble(), call.scalars[1].asInteger()));
    return launcher.items<id>(now, now.count());
  });
}

template <bool sparse>
KernelResult createAdamW(Request &request, const Device &) {
  cpu::AdamRequest adam;
  if (!cpu::readAdam(request, adam))
    return request.status();
  return makeUpdate<KernelId::AdamW, 3>(request, sparse, adam);
}

template <bool sparse>
KernelResult createAdagrad(Request &request, const Device &) {
  cpu::AdagradRequest adagrad;
  if (!cpu::readAdagrad(request, adagrad))
    return request.status();
  return makeUpdate<KernelId::Adagrad, 2>(request, sparse, adagrad);
}

KernelResult createClipFactor(Request &request, const Device &) {
  if (!request.counts(1, 2))
    return request.status();
  expectAllReal(request);
  request.expect(request.inputs[0].rank() == 1, "expected a list of squares");
  for (const View &out : request.outputs)
    request.expect(out.elements() == 1, "expected one element an output");
  ClipArgs args;
  args.maxNorm = request.real("max_norm");
  if (!request.ok())
    return request.status();
  args.count = request.inputs[0].shape[0];
  args.step = request.inputs[0].strides[0];
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    ClipArgs now = args;
    now.squares = ref(call.inputs[0]);
    now.norm = ref(call.outputs[0]);
    now.factor = ref(call.outputs[1]);
    now.add = call.accumulate;
    return launcher.items<KernelId::ClipFactor>(now, 1);
  });
}

constexpr KernelEntry kEntries[] = {
    {"sgd_update", createSgd<false>, Strides::Any, true},
    {"adamw_update", createAdamW<false>, Strides::Any, true},
    {"adagrad_update", createAdagrad<false>, Strides::Any, true},
    {"sgd_update_rows", createSgd<true>, Strides::Any, true},
    {"adamw_update_rows", createAdamW<true>, Strides::Any, true},
    {"adagrad_update_rows", createAdagrad<true>, Strides::Any, true},
    {"clip_factor", createClipFactor},
};

} // namespace

std::span<const KernelEntry> updateKernels() { return kEntries; }

} // namespace merak::cuda
