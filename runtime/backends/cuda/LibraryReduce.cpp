// reduce_sum, reduce_max, square_sum.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"

namespace merak::cuda {

namespace {

enum class Carrier { F32, F64, I64 };

struct Reduction {
  ReduceArgs args;
  Carrier carrier = Carrier::F32;
  bool columns = false; // neighbouring results lie together, summands do not

  uint64_t bytes() const {
    return alignUp(static_cast<uint64_t>(args.kept.count * args.pieces) * 8);
  }

  template <KernelId rowId, KernelId columnId, KernelId finishId>
  Status runAs(const ReduceArgs &a, Launcher &launcher) const {
    if (a.kept.count == 0)
      return {};
    const int64_t work = a.kept.count * a.pieces;
    MERAK_RETURN_IF_ERROR(
        columns ? launcher.items<columnId>(a, work)
                : launcher.rows<rowId>(a, work, a.reduced.count / a.pieces));
    return launcher.items<finishId>(a, a.kept.count);
  }
  Status run(const KernelCall &call, Launcher &launcher) const {
    ReduceArgs now = args;
    now.x = ref(call.inputs[0]);
    now.y = ref(call.outputs[0]);
    now.add = call.accumulate;
    now.partial = launcher.workspace(bytes());
    switch (carrier) {
    case Carrier::F32:
      return runAs<KernelId::ReduceRowsF32, KernelId::ReduceColumnsF32,
                   KernelId::ReduceFinishF32>(now, launcher);
    case Carrier::F64:
      return runAs<KernelId::ReduceRowsF64, KernelId::ReduceColumnsF64,
                   KernelId::ReduceFinishF64>(now, launcher);
    case Carrier::I64:
      break;
    }
    return runAs<KernelId::ReduceRowsI64, KernelId::ReduceColumnsI64,
                 KernelId::ReduceFinishI64>(now, launcher);
  }
};

KernelResult finish(Request &request, Reduction r,
                    const cpu::ReduceRequest &read, const Device &device) {
  r.args.kept = makeLoops<2>(request, read.kept);
  r.args.reduced = makeLoops<1>(request, read.reduced);
  if (!request.ok())
    return request.status();
  r.columns = read.columns();
  const int64_t size = r.args.reduced.count;
  const int64_t threads =
      r.columns ? 1 : rowGrid(1, size, device.info()).threads;
  r.args.pieces = pieceCount(r.args.kept.count, size, threads, device.info());
  return makeKernel([r](const KernelCall &call,
                        Launcher &launcher) { return r.run(call, launcher); },
                    r.bytes());
}

KernelResult createReduce(Request &request, Fold fold, const Device &device) {
  cpu::ReduceRequest read;
  if (!cpu::readReduce(request, read))
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  request.expect(x.dtype != planpb::BOOL && y.dtype != planpb::BOOL,
                 "no arithmetic on bool");
  if (!request.ok())
    return request.status();
  Reduction r;
  r.args.fold = fold;
  r.carrier = isReal(x.dtype)          ? Carrier::F32
              : x.dtype == planpb::F64 ? Carrier::F64
                                       : Carrier::I64;
  return finish(request, r, read, device);
}

KernelResult createSum(Request &request, const Device &device) {
  return createReduce(request, Fold::Sum, device);
}
KernelResult createMax(Request &request, const Device &device) {
  return createReduce(request, Fold::Max, device);
}

// In double, as everything about the norm of the gradient.
KernelResult createSquareSum(Request &request, const Device &device) {
  if (!request.counts(1, 1))
    return request.status();
  expectAllReal(request);
  request.expect(request.outputs[0].elements() == 1, "expected one output");
  if (!request.ok())
    return request.status();
  const View &x = request.inputs[0];
  Reduction r;
  r.args.fold = Fold::Squares;
  r.carrier = Carrier::F64;
  cpu::ReduceRequest read;
  read.kept = Nest(std::vector<int64_t>{}, {std::vector<int64_t>{}, {}});
  read.reduced = Nest(x.shape, {x.strides});
  read.reduced.sortBy(0);
  return finish(request, r, read, device);
}

constexpr KernelEntry kEntries[] = {
    {"reduce_sum", createSum},
    {"reduce_max", createMax},
    {"square_sum", createSquareSum},
};

} // namespace

std::span<const KernelEntry> reduceKernels() { return kEntries; }

} // namespace merak::cuda
