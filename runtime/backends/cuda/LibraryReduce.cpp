// reduce_sum, reduce_max, square_sum.
#include "runtime/backends/cuda/Kernel.h"

#include <fmt/format.h>

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

KernelResult finish(Request &request, Reduction r, const Nest &kept,
                    const Nest &reduced, const Device &device) {
  r.args.kept = makeLoops<2>(request, kept);
  r.args.reduced = makeLoops<1>(request, reduced);
  if (!request.ok())
    return request.status();
  const bool runs = reduced.rank() > 0 && reduced.strides[0].back() == 1;
  r.columns = !runs && kept.rank() > 0 && kept.strides[0].back() == 1 &&
              kept.sizes.back() >= 8;
  const int64_t size = r.args.reduced.count;
  const int64_t threads =
      r.columns ? 1 : rowGrid(1, size, device.info()).threads;
  r.args.pieces = pieceCount(r.args.kept.count, size, threads, device.info());
  return makeKernel([r](const KernelCall &call,
                        Launcher &launcher) { return r.run(call, launcher); },
                    r.bytes());
}

KernelResult createReduce(Request &request, Fold fold, const Device &device) {
  if (!request.counts(1, 1))
    return request.status();
  const View &x = request.inputs[0], &y = request.outputs[0];
  std::vector<bool> reduced(x.shape.size(), false);
  for (int64_t axis : request.list("axes")) {
    if (!request.expect(axis >= -x.rank() && axis < x.rank(),
                        fmt::format("expected axes in [{}, {}), found {}",
                                    -x.rank(), x.rank(), axis)))
      return request.status();
    reduced[axis < 0 ? axis + x.rank() : axis] = true;
  }
  request.expect(x.dtype != planpb::BOOL && y.dtype != planpb::BOOL,
                 "no arithmetic on bool");
  std::vector<int64_t> keptShape, reducedShape, withOnes;
  std::vector<std::vector<int64_t>> kept(2), inside(1);
  for (int64_t d = 0; d < x.rank(); ++d) {
    (reduced[d] ? reducedShape : keptShape).push_back(x.shape[d]);
    (reduced[d] ? inside[0] : kept[0]).push_back(x.strides[d]);
    withOnes.push_back(reduced[d] ? 1 : x.shape[d]);
  }
  if (y.rank() == x.rank()) {
    request.shape(y, "output", withOnes);
    for (int64_t d = 0; d < x.rank() && request.ok(); ++d)
      if (!reduced[d])
        kept[1].push_back(y.strides[d]);
  } else {
    request.shape(y, "output", keptShape);
    kept[1] = y.strides;
  }
  if (!request.ok())
    return request.status();
  Reduction r;
  r.args.fold = fold;
  r.carrier = isReal(x.dtype)          ? Carrier::F32
              : x.dtype == planpb::F64 ? Carrier::F64
                                       : Carrier::I64;
  Nest inner(reducedShape, inside);
  inner.sortBy(0);
  return finish(request, r, Nest(keptShape, kept), inner, device);
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
  Nest inner(x.shape, {x.strides});
  inner.sortBy(0);
  return finish(request, r,
                Nest(std::vector<int64_t>{}, {std::vector<int64_t>{}, {}}),
                inner, device);
}

constexpr KernelEntry kEntries[] = {
    {"reduce_sum", createSum},
    {"reduce_max", createMax},
    {"square_sum", createSquareSum},
};

} // namespace

std::span<const KernelEntry> reduceKernels() { return kEntries; }

} // namespace merak::cuda
