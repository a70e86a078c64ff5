// sgd_update, adamw_update, adagrad_update, the same with _rows, the steps that
// rows were left out of (_replay), clip_factor, scale.
// Parameters and states are f32; the gradient may be of 16 bits.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"

#include <algorithm>
#include <cmath>

namespace merak::cuda {

namespace {

// An update that notes how far rows are, or does not.
struct Reached : cpu::ReachedRequest {
  bool notes = false;
  size_t outputs() const { return notes ? 2 : 0; }
};

bool readRows(Request &request, size_t states, UpdateArgs &args,
              Reached &reached) {
  cpu::RowsRequest read;
  if (!cpu::readUpdateRows(request, args.clip, states, read) ||
      (reached.notes && !cpu::readReached(request, states, reached)))
    return false;
  args.loops = makeLoops<4>(request, read.columns);
  args.places = makeLoops<2>(request, read.ids);
  args.rows = read.rows;
  std::copy(read.rowStrides.begin(), read.rowStrides.end(), args.rowStrides);
  return request.ok();
}

// An output more of a dense update: the parameter in 16 bits.
bool hasCopy(const Request &request, bool sparse, size_t states) {
  return !sparse && request.outputs.size() == states + 1;
}

bool readUpdate(Request &request, size_t states, UpdateArgs &args,
                Reached &reached) {
  const View &grad = request.inputs[0];
  expectReal(request, grad, "the gradient");
  if (args.clip)
    request.expect(request.inputs[1].elements() == 1,
                   "expected one clip factor");
  if (args.sparse)
    return readRows(request, states, args, reached);
  if (hasCopy(request, args.sparse, states))
    cpu::expectCopy(request, states);
  std::vector<std::vector<int64_t>> strides = {grad.strides};
  for (const View &state : request.outputs.first(states)) {
    request.type(state, "a parameter or its state", planpb::F32);
    request.sameShape(grad, "the gradient", state, "a parameter or its state");
    strides.push_back(state.strides);
  }
  if (!request.ok())
    return false;
  args.loops = makeLoops<4>(request, Nest(grad.shape, strides));
  return request.ok();
}

// `tensors`: outputs that are a parameter and its states.
void bindStates(UpdateArgs &args, const KernelCall &call, size_t tensors) {
  args.param = ref(call.outputs[0]);
  if (tensors > 1)
    args.first = ref(call.outputs[1]);
  if (tensors > 2)
    args.second = ref(call.outputs[2]);
}

// `states`: without what is beside them.
void bind(UpdateArgs &args, const KernelCall &call, size_t states,
          const Reached &reached) {
  args.grad = ref(call.inputs[0]);
  if (args.clip)
    args.factor = ref(call.inputs[1]);
  if (args.sparse) {
    args.ids = ref(call.inputs[1 + args.clip]);
    args.firstRow = cpu::scalarInteger(call, 2);
  }
  bindStates(args, call, states);
  if (call.outputs.size() > states + reached.outputs())
    args.copy = ref(call.outputs[states]);
}

void set(UpdateNumbers &args, const cpu::AdamWStep &step) {
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

void set(UpdateNumbers &args, const cpu::SgdStep &step) {
  args.lr = step.lr;
  args.momentum = step.momentum;
  args.oneMinusDampening = step.oneMinusDampening;
  args.weightDecay = step.weightDecay;
  args.nesterov = step.nesterov;
  args.firstStep = step.first;
}

void set(UpdateNumbers &args, const cpu::AdagradStep &step) {
  args.l2 = step.l2;
  args.lr = step.rate;
  args.eps = step.eps;
}

// Updates of whole tensors that lie densely.
template <KernelId id> class JoinedUpdate : public Joint {
public:
  JoinedUpdate(const KernelCall &call, const UpdateArgs &args)
      : Joint(call), args_{args} {
    args_.factor = args.factor;
    args_.clip = args.clip;
    args_.gradType = args.grad.type;
    args_.copyType = args.copy.data ? args.copy.type : Type::F32;
    args_.tensors.add({args.grad.data, floats(args.param), floats(args.first),
                       floats(args.second),
                       reinterpret_cast<uint16_t *>(args.copy.data),
                       args.loops.count, 0});
  }
  Status run(Launcher &launcher) const override {
    return launcher.rows<id>(args_, args_.tensors.chunks, kItemThreads);
  }
  static bool takes(const UpdateArgs &args) {
    if (args.sparse)
      return false;
    for (int o = 0; o < 4; ++o) {
      const Ref &operand = o == 0   ? args.grad
                           : o == 1 ? args.param
                           : o == 2 ? args.first
                                    : args.second;
      if (operand.data &&
          !(isContiguous(args.loops, o) && isAligned(operand.data)))
        return false;
    }
    return !args.copy.data || isAligned(args.copy.data, sizeof(uint64_t));
  }

private:
  static float *floats(const Ref &ref) {
    return reinterpret_cast<float *>(ref.data);
  }
  bool take(const Joint &other) override {
    const auto *more = dynamic_cast<const JoinedUpdate *>(&other);
    if (!more || more->args_.gradType != args_.gradType ||
        more->args_.factor.data != args_.factor.data ||
        more->args_.factor.type != args_.factor.type)
      return false;
    // Those with a copy and those without one, but copies are of one type.
    const Type none = Type::F32, copies = more->args_.copyType;
    if (args_.copyType != none && copies != none && args_.copyType != copies)
      return false;
    if (!args_.tensors.addAll(more->args_.tensors))
      return false;
    if (copies != none)
      args_.copyType = copies;
    return true;
  }
  JoinedUpdateArgs args_;
};

// Null where the operands do not lie so, or there are not the scalars.
template <KernelId id, typename Scalars>
std::unique_ptr<Joint>
joinUpdate(const UpdateArgs &args, const Scalars &scalars, size_t states,
           const Reached &reached, const KernelCall &call) {
  if (call.scalars.size() < 2)
    return nullptr;
  UpdateArgs now = args;
  bind(now, call, states, reached);
  if (!JoinedUpdate<id>::takes(now))
    return nullptr;
  set(now, scalars.at(call.scalars[0].asDouble(), call.scalars[1].asInteger()));
  return std::make_unique<JoinedUpdate<id>>(call, now);
}

// Behind the update itself.
template <typename Step>
Status reach(Launcher &launcher, const UpdateArgs &args, const Reached &reached,
             const KernelCall &call, const Step &now) {
  if (!reached.notes)
    return {};
  const int64_t step = call.scalars[1].asInteger();
  ReachArgs to;
  to.factor = args.factor;
  to.ids = args.ids;
  to.places = args.places;
  to.rows = args.rows;
  to.firstRow = args.firstRow;
  to.clip = args.clip;
  to.reached = static_cast<int32_t *>(call.outputs[reached.reached].data);
  to.rowStride = reached.rowStride;
  to.noted = static_cast<float *>(call.outputs[reached.history].data) +
             reached.steps.at(step);
  to.numberStride = reached.steps.numberStride;
  to.step = static_cast<int32_t>(step);
  cpu::note(now, to.numbers);
  return launcher.items<KernelId::Reach>(to,
                                         std::max<int64_t>(1, to.places.count));
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
  const size_t states = args.hasBuffer ? 2 : 1;
  Reached reached;
  reached.notes = sparse && request.integer("reaches", 0) != 0;
  // The buffer may also be listed as an input: it is the same view.
  const size_t inputs = size_t{1} + args.clip + sparse;
  const bool listed = args.hasBuffer && request.inputs.size() == inputs + 1;
  request.counts(inputs + listed,
                 states + reached.outputs() + hasCopy(request, sparse, states));
  if (!request.ok() || !readUpdate(request, states, args, reached))
    return request.status();
  return makeJoining(
      [args, sgd, states, reached](const KernelCall &call, Launcher &launcher) {
        if (call.scalars.size() < 2)
          return Status::error("sgd_update: expected the scalars lr and step");
        UpdateArgs now = args;
        bind(now, call, states, reached);
        const cpu::SgdStep step =
            sgd.at(call.scalars[0].asDouble(), call.scalars[1].asInteger());
        set(now, step);
        MERAK_RETURN_IF_ERROR(launcher.items<KernelId::Sgd>(now, now.count()));
        return reach(launcher, now, reached, call, step);
      },
      [args, sgd, states, reached](const KernelCall &call) {
        return joinUpdate<KernelId::JoinedSgd>(args, sgd, states, reached,
                                               call);
      });
}

// Adam and Adagrad, whose scalars both backends compute alike.
template <KernelId id, KernelId joined, size_t states, typename Scalars>
KernelResult makeUpdate(Request &request, bool sparse, const Scalars &scalars) {
  UpdateArgs args;
  args.sparse = sparse;
  args.clip = request.integer("clip", 0) != 0;
  Reached reached;
  reached.notes = sparse && request.integer("reaches", 0) != 0;
  if (!request.counts(size_t{1} + args.clip + sparse,
                      states + reached.outputs() +
                          hasCopy(request, sparse, states)) ||
      !readUpdate(request, states, args, reached))
    return request.status();
  return makeJoining(
      [=](const KernelCall &call, Launcher &launcher) {
        if (call.scalars.size() < 2)
          return Status::error("an update: expected the scalars lr and step");
        UpdateArgs now = args;
        bind(now, call, states, reached);
        const auto step =
            scalars.at(call.scalars[0].asDouble(), call.scalars[1].asInteger());
        set(now, step);
        MERAK_RETURN_IF_ERROR(launcher.items<id>(now, now.count()));
        return reach(launcher, now, reached, call, step);
      },
      [=](const KernelCall &call) {
        return joinUpdate<joined>(args, scalars, states, reached, call);
      });
}

template <bool sparse>
KernelResult createAdamW(Request &request, const Device &) {
  cpu::AdamRequest adam;
  if (!cpu::readAdam(request, adam))
    return request.status();
  return makeUpdate<KernelId::AdamW, KernelId::JoinedAdamW, 3>(request, sparse,
                                                               adam);
}

template <bool sparse>
KernelResult createAdagrad(Request &request, const Device &) {
  cpu::AdagradRequest adagrad;
  if (!cpu::readAdagrad(request, adagrad))
    return request.status();
  return makeUpdate<KernelId::Adagrad, KernelId::JoinedAdagrad, 2>(
      request, sparse, adagrad);
}

// Steps that rows were left out of.
template <KernelId id>
KernelResult makeReplay(Request &request, size_t tensors, UpdateArgs update) {
  cpu::ReplayRequest read;
  if (!cpu::readReplay(request, tensors, read))
    return request.status();
  ReplayArgs args;
  args.update = update;
  args.named = read.named;
  args.rows = read.rows;
  args.globalRows = read.globalRows;
  args.steps = read.history.steps;
  args.stepStride = read.history.stepStride;
  args.numberStride = read.history.numberStride;
  args.count = read.named ? read.ids.count() : read.stripeRows();
  // Operand 0 of an update is its gradient, which there is none of here.
  std::vector<std::vector<int64_t>> strides = read.columns.strides;
  strides.insert(strides.begin(),
                 std::vector<int64_t>(read.columns.sizes.size(), 0));
  args.columns = makeLoops<4>(request, Nest(read.columns.sizes, strides));
  if (read.named)
    args.places = makeLoops<1>(request, read.ids);
  std::copy(read.rowStrides.begin(), read.rowStrides.end() - 1,
            args.update.rowStrides);
  args.rowStride = read.rowStrides.back();
  request.expect(args.count < INT32_MAX, "expected fewer than 2^31 ids");
  if (!request.ok())
    return request.status();
  const uint64_t places = read.named ? static_cast<uint64_t>(args.count) : 0;
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        ReplayArgs now = args;
        const int64_t step = cpu::scalarInteger(call, 0);
        bindStates(now.update, call, tensors);
        now.history = static_cast<const float *>(call.inputs[0].data);
        now.reached = static_cast<int32_t *>(call.outputs[tensors].data);
        now.until = static_cast<int32_t>(read.until(step));
        if (read.named) {
          now.ids = ref(call.inputs[1]);
          now.firstRow = cpu::scalarInteger(call, 1);
          now.before = launcher.workspace<int32_t>(places);
          MERAK_RETURN_IF_ERROR(
              launcher.items<KernelId::ReplayMark>(now, now.count));
          now.phase = ReplayPhase::Claim;
          MERAK_RETURN_IF_ERROR(
              launcher.items<KernelId::ReplayMark>(now, now.count));
        } else {
          now.begin = step % read.stripes * read.stripeRows();
        }
        MERAK_RETURN_IF_ERROR(
            launcher.items<id>(now, now.count * now.columns.count));
        now.phase = ReplayPhase::Reach;
        return launcher.items<KernelId::ReplayMark>(now, now.count);
      },
      alignUp(places * sizeof(int32_t)));
}

KernelResult createSgdReplay(Request &request, const Device &) {
  cpu::SgdRequest sgd;
  if (!cpu::readSgd(request, sgd))
    return request.status();
  UpdateArgs args;
  args.hasBuffer = sgd.momentum != 0;
  set(args, sgd.at(0, 1));
  return makeReplay<KernelId::ReplaySgd>(request, args.hasBuffer ? 2 : 1, args);
}

KernelResult createAdamWReplay(Request &request, const Device &) {
  cpu::AdamRequest adam;
  if (!cpu::readAdam(request, adam))
    return request.status();
  UpdateArgs args;
  set(args, adam.at(0, 1));
  return makeReplay<KernelId::ReplayAdamW>(request, 3, args);
}

KernelResult createAdagradReplay(Request &request, const Device &) {
  cpu::AdagradRequest adagrad;
  if (!cpu::readAdagrad(request, adagrad))
    return request.status();
  UpdateArgs args;
  set(args, adagrad.at(0, 1));
  return makeReplay<KernelId::ReplayAdagrad>(request, 2, args);
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
    if (!call.scalars.empty())
      now.scale = call.scalars[0].asDouble();
    now.add = call.accumulate;
    return launcher.items<KernelId::ClipFactor>(now, 1);
  });
}

KernelResult createScale(Request &request, const Device &) {
  if (!request.counts(1, 1))
    return request.status();
  expectAllReal(request);
  const View &x = request.inputs[0], &y = request.outputs[0];
  request.expect(x.shape == y.shape, "expected an output of the input's shape");
  if (!request.ok())
    return request.status();
  ScaleArgs args;
  args.loops = makeLoops<2>(request, Nest(x.shape, {x.strides, y.strides}));
  if (!request.ok())
    return request.status();
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    if (call.scalars.empty())
      return Status::error("scale: expected 1 scalar, found 0");
    ScaleArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    now.factor = static_cast<float>(call.scalars[0].asDouble());
    now.add = call.accumulate;
    return launcher.items<KernelId::Scale>(now, now.loops.count);
  });
}

constexpr KernelEntry kEntries[] = {
    {"sgd_update", createSgd<false>, Strides::Any, true},
    {"adamw_update", createAdamW<false>, Strides::Any, true},
    {"adagrad_update", createAdagrad<false>, Strides::Any, true},
    {"sgd_update_rows", createSgd<true>, Strides::Any, true},
    {"adamw_update_rows", createAdamW<true>, Strides::Any, true},
    {"adagrad_update_rows", createAdagrad<true>, Strides::Any, true},
    {"sgd_replay", createSgdReplay, Strides::Any, true},
    {"adamw_replay", createAdamWReplay, Strides::Any, true},
    {"adagrad_replay", createAdagradReplay, Strides::Any, true},
    {"clip_factor", createClipFactor},
    {"scale", createScale},
};

} // namespace

std::span<const KernelEntry> updateKernels() { return kEntries; }

} // namespace merak::cuda
