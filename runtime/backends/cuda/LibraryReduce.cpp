// reduce_sum, reduce_max, square_sum.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"

#include <algorithm>

namespace merak::cuda {

namespace {

enum class Carrier { F32, F64, I64 };

struct Reduction {
  ReduceArgs args;
  Carrier carrier = Carrier::F32;
  bool columns = false; // neighbouring results lie together, summands do not
  bool packed = false;  // they do so in packs, but for the first one's place

  uint64_t bytes() const {
    return alignUp(static_cast<uint64_t>(args.kept.count * args.pieces) * 8);
  }

  template <KernelId rowId, KernelId columnId, KernelId finishId>
  Status runAs(const ReduceArgs &a, Launcher &launcher) const {
    const int64_t results = a.kept.count;
    if (results == 0)
      return {};
    Status status;
    if (packed && isAligned(a.x.data))
      status = launcher.rowsOf<KernelId::SumPacksF32, KernelId::SumPacksBf16,
                               KernelId::SumPacksF16>(
          a.x.type, a,
          tileCount(results / packSize(a.x.type), kPackLanes) * a.pieces,
          kPackThreads);
    else if (columns)
      status = launcher.rows<columnId>(a, tileCount(results) * a.pieces,
                                       kTileThreads);
    else
      status = launcher.rows<rowId>(a, results * a.pieces,
                                    a.reduced.count / a.pieces);
    MERAK_RETURN_IF_ERROR(status);
    return launcher.rows<finishId>(a, tileCount(results, finishLanes(a.pieces)),
                                   kTileThreads);
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

Status finish(Request &request, Reduction &r, const cpu::ReduceRequest &read,
              const Device &device) {
  r.args.kept = makeLoops<2>(request, read.kept);
  r.args.reduced = makeLoops<1>(request, read.reduced);
  if (!request.ok())
    return request.status();
  r.columns = read.columns();
  const int64_t size = r.args.reduced.count, results = r.args.kept.count;
  if (r.columns) {
    const Type type = typeOf(request.inputs[0].dtype);
    const int64_t pack = packSize(type);
    r.packed = r.carrier == Carrier::F32 && r.args.fold == Fold::Sum &&
               isContiguous(r.args.kept, 0) && results % pack == 0 &&
               r.args.reduced.rank <= 1 &&
               r.args.reduced.strides[0][0] % pack == 0;
    r.args.pieces =
        r.packed ? tilePieceCount(tileCount(results / pack, kPackLanes), size,
                                  ReduceArgs::kBlocks, device.info())
                 : tilePieceCount(tileCount(results), size, kTileBlocks,
                                  device.info());
  } else {
    const int threads = rowGrid(1, size, device.info()).threads;
    r.args.pieces = pieceCount(results, size, threads, device.info());
  }
  r.args.pieceSize = (size + r.args.pieces - 1) / r.args.pieces;
  return {};
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
  MERAK_RETURN_IF_ERROR(finish(request, r, read, device));
  return makeKernel([r](const KernelCall &call,
                        Launcher &launcher) { return r.run(call, launcher); },
                    r.bytes());
}

KernelResult createSum(Request &request, const Device &device) {
  return createReduce(request, Fold::Sum, device);
}
KernelResult createMax(Request &request, const Device &device) {
  return createReduce(request, Fold::Max, device);
}

// Of whole tensors. Chunks of one launch are few enough for a workspace that is
// known beforehand.
class SquareSums : public Joint {
public:
  static constexpr int64_t kChunks = 1 << 15;
  using Tensors = decltype(SquareSumsArgs::tensors);

  static int64_t chunks(int64_t elements) {
    return (elements + Tensors::kChunk - 1) / Tensors::kChunk;
  }
  static uint64_t workspace(int64_t elements) {
    return alignUp(static_cast<uint64_t>(std::max(kChunks, chunks(elements))) *
                   sizeof(double));
  }
  explicit SquareSums(const KernelCall &call) : Joint(call) {
    const View &x = call.inputs[0], &sum = call.outputs[0];
    args_.type = typeOf(x.dtype);
    args_.sumType = typeOf(sum.dtype);
    args_.add = call.accumulate;
    args_.tensors.add({ref(x).data, ref(sum).data, x.elements(), 0});
  }
  Status run(Launcher &launcher) const override {
    SquareSumsArgs now = args_;
    now.partial =
        launcher.workspace<double>(static_cast<uint64_t>(now.tensors.chunks));
    MERAK_RETURN_IF_ERROR(launcher.rows<KernelId::SquareSums>(
        now, now.tensors.chunks, kTileThreads));
    return launcher.rows<KernelId::SquareSumsFinish>(now, now.tensors.size,
                                                     kTileThreads);
  }

private:
  bool take(const Joint &other) override {
    const auto *more = dynamic_cast<const SquareSums *>(&other);
    if (!more || more->args_.type != args_.type ||
        more->args_.sumType != args_.sumType ||
        args_.tensors.chunks + more->args_.tensors.chunks > kChunks)
      return false;
    return args_.tensors.addAll(more->args_.tensors);
  }
  SquareSumsArgs args_;
};

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
  MERAK_RETURN_IF_ERROR(finish(request, r, read, device));
  const bool dense = isContiguous(r.args.reduced, 0);
  const uint64_t workspace = std::max(
      r.bytes(), dense ? SquareSums::workspace(x.elements()) : uint64_t{0});
  return makeJoining([r](const KernelCall &call,
                         Launcher &launcher) { return r.run(call, launcher); },
                     [dense](const KernelCall &call) -> std::unique_ptr<Joint> {
                       if (!dense || !isAligned(call.inputs[0].data))
                         return nullptr;
                       return std::make_unique<SquareSums>(call);
                     },
                     workspace);
}

constexpr KernelEntry kEntries[] = {
    {"reduce_sum", createSum},
    {"reduce_max", createMax},
    {"square_sum", createSquareSum},
};

} // namespace

std::span<const KernelEntry> reduceKernels() { return kEntries; }

} // namespace merak::cuda
