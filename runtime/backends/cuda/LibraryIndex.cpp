// gather, scatter_add, scatter_reduce, coalesce, split_ids, pick, pick_grad.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/core/DType.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace merak::cuda {

namespace {

bool readGather(Request &request, const View &table, const View &ids,
                const View &other, GatherArgs &g) {
  request.expect(table.dtype == other.dtype ||
                     (isReal(table.dtype) && isReal(other.dtype)),
                 "table and rows differ in type");
  cpu::GatherRequest read;
  if (!cpu::readGather(request, table, ids, other, read))
    return false;
  g.rows = read.rows;
  g.rowStride = read.rowStride;
  g.globalRows = read.globalRows;
  g.groups = makeLoops<3>(request, read.groups);
  g.before = makeLoops<2>(request, read.before);
  g.idLoops = makeLoops<2>(request, read.ids);
  g.after = makeLoops<2>(request, read.after);
  return request.ok();
}

// Whether rows take packs, but for where their first elements are.
bool takesPacks(const GatherArgs &g, const View &table, const View &other) {
  constexpr int64_t kSize = kPackedElements;
  bool takes = isReal(table.dtype) && isReal(other.dtype) &&
               g.before.count == 1 && g.after.count % kSize == 0 &&
               isContiguous(g.after, 0) && isContiguous(g.after, 1) &&
               g.rowStride % kSize == 0;
  for (int d = 0; d < kMaxDims; ++d)
    takes = takes && g.groups.strides[0][d] % kSize == 0 &&
            g.groups.strides[1][d] % kSize == 0 &&
            g.idLoops.strides[1][d] % kSize == 0;
  return takes;
}
bool isPacked(const GatherArgs &g) {
  auto fits = [](const Ref &ref) {
    return isAligned(ref.data,
                     kPackedElements * (ref.type == Type::F32 ? 4 : 2));
  };
  return fits(g.table) && fits(g.other);
}

// Of a block for a row of packs. A block waits for an id, then for the row:
// small ones, of which a processor holds many, wait at the same time.
int64_t packThreads(const GatherArgs &g) {
  return std::min<int64_t>(g.after.count / kPackedElements, 64);
}

// Lists of ids by row, in the workspace: as many buckets as keep a device busy,
// and as many ids in each, where there are many.
class ListsPlan {
public:
  ListsPlan(const GatherArgs &g, const Device &device)
      : ids_(static_cast<uint64_t>(g.allIds())) {
    const int64_t each = g.idLoops.count;
    const int64_t many = std::max<int64_t>(
        2 * device.info().processors,
        static_cast<int64_t>(std::sqrt(static_cast<double>(each))));
    buckets_ = static_cast<int32_t>(std::clamp<int64_t>(each, 1, many) | 1);
    begins_ = static_cast<uint64_t>(g.groups.count * (buckets_ + 1));
  }
  uint64_t bytes() const {
    return 5 * alignUp(ids_ * sizeof(int32_t)) +
           alignUp(begins_ * sizeof(int32_t));
  }
  Status run(GatherArgs &g, Launcher &launcher) const {
    RowLists &lists = g.lists;
    lists.buckets = buckets_;
    for (int32_t **array :
         {&lists.row, &lists.bucket, &lists.id, &lists.idRow, &lists.first})
      *array = launcher.workspace<int32_t>(ids_);
    lists.begin = launcher.workspace<int32_t>(begins_);
    MERAK_RETURN_IF_ERROR(
        launcher.items<KernelId::ScatterIds>(g, static_cast<int64_t>(ids_)));
    return launcher.rows<KernelId::ScatterLists>(
        g, static_cast<int64_t>(begins_), kMaxRowThreads);
  }

private:
  uint64_t ids_, begins_;
  int32_t buckets_;
};

KernelResult createGather(Request &request, const Device &device) {
  GatherArgs args;
  if (!request.counts(2, 1) ||
      !readGather(request, request.inputs[0], request.inputs[1],
                  request.outputs[0], args))
    return request.status();
  // Words are moved, so adding and converting go through a copy.
  const View out = request.outputs[0];
  const bool adds =
      request.instruction.accumulate() || out.dtype != request.inputs[0].dtype;
  const GatherArgs direct = args;
  const bool packed = takesPacks(args, request.inputs[0], out);
  CopyArgs copy;
  uint64_t bytes = 0;
  if (adds) {
    View dense = denseView(out);
    dense.dtype = request.inputs[0].dtype;
    planpb::Instruction inner = request.instruction;
    inner.set_accumulate(false);
    Request again(inner, request.inputs, std::span(&dense, 1));
    if (!readGather(again, request.inputs[0], request.inputs[1], dense, args))
      return again.status();
    copy = makeCopy(request, dense, out, request.instruction.accumulate());
    bytes = denseBytes(dense);
  }
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        auto bind = [&](GatherArgs now) {
          now.table = ref(call.inputs[0]);
          now.ids = ref(call.inputs[1]);
          now.other = ref(call.outputs[0]);
          now.first = cpu::scalarInteger(call, 0);
          now.add = call.accumulate;
          return now;
        };
        GatherArgs now = bind(direct);
        now.packed = packed && isPacked(now);
        if (now.packed)
          return launcher.rows<KernelId::Gather>(now, now.allIds(),
                                                 packThreads(now));
        now = bind(args);
        if (adds)
          now.other = {launcher.workspace(bytes), now.table.type};
        const int64_t count = now.allIds() * now.before.count * now.after.count;
        MERAK_RETURN_IF_ERROR(launcher.items<KernelId::Gather>(now, count));
        return adds ? runCopy(launcher, copy, now.other.data,
                              call.outputs[0].data)
                    : Status();
      },
      bytes);
}

KernelResult createScatter(Request &request, const Device &device) {
  GatherArgs args;
  cpu::Combine combine = cpu::Combine::Add;
  if (!request.counts(2, 1) || !cpu::readCombine(request, combine) ||
      !readGather(request, request.outputs[0], request.inputs[1],
                  request.inputs[0], args))
    return request.status();
  args.combine = static_cast<int>(combine);
  const View &table = request.outputs[0];
  request.expect(table.dtype != planpb::BOOL, "no arithmetic on bool");
  request.expect(args.allIds() < INT32_MAX, "expected fewer than 2^31 ids");
  request.expect(args.rows < INT32_MAX, "expected fewer than 2^31 rows");
  Nest nest(table.shape, {table.strides});
  nest.sortBy(0);
  const Loops<1> all = makeLoops<1>(request, nest);
  if (!request.ok())
    return request.status();
  const ListsPlan lists(args, device);
  const bool packed = combine == cpu::Combine::Add &&
                      takesPacks(args, table, request.inputs[0]);
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        GatherArgs now = args;
        now.table = ref(call.outputs[0]);
        now.ids = ref(call.inputs[1]);
        now.other = ref(call.inputs[0]);
        now.first = cpu::scalarInteger(call, 0);
        now.add = call.accumulate;
        if (!call.accumulate)
          MERAK_RETURN_IF_ERROR(runClear(launcher, all, now.table));
        MERAK_RETURN_IF_ERROR(lists.run(now, launcher));
        const int64_t columns = now.before.count * now.after.count;
        return packed && isPacked(now)
                   ? launcher.rows<KernelId::ScatterPacks>(now, now.allIds(),
                                                           packThreads(now))
                   : launcher.rows<KernelId::ScatterRows>(now, now.allIds(),
                                                          columns);
      },
      lists.bytes());
}

KernelResult createCoalesce(Request &request, const Device &device) {
  if (!request.counts(2, 2))
    return request.status();
  expectReal(request, request.inputs[0], "the slices");
  expectReal(request, request.outputs[0], "the rows");
  cpu::CoalesceRequest read;
  if (!cpu::readCoalesce(request, read))
    return request.status();
  if (!request.expect(!read.compact && read.block == 0,
                      "sums at the front are only made on hosts"))
    return request.status();
  CoalesceArgs args;
  args.add = request.instruction.accumulate();
  args.ids.rows = args.ids.globalRows = read.size;
  args.ids.groups = makeLoops<3>(request, Nest({}, {{}, {}, {}}));
  args.ids.idLoops =
      makeLoops<2>(request, Nest(read.ids.sizes,
                                 {read.ids.strides[0], read.ids.strides[1]}));
  args.places =
      makeLoops<2>(request, Nest(read.ids.sizes,
                                 {read.ids.strides[2], read.ids.strides[3]}));
  args.columns = makeLoops<2>(request, read.columns);
  // As of scatter_add.
  request.expect(args.ids.allIds() < INT32_MAX, "expected fewer than 2^31 ids");
  request.expect(read.size < INT32_MAX, "expected fewer than 2^31 rows");
  if (!request.ok())
    return request.status();
  const auto count = args.ids.allIds();
  const ListsPlan lists(args.ids, device);
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        CoalesceArgs now = args;
        now.ids.other = ref(call.inputs[0]);
        now.ids.ids = ref(call.inputs[1]);
        now.rows = ref(call.outputs[0]);
        now.unique = ref(call.outputs[1]);
        MERAK_RETURN_IF_ERROR(lists.run(now.ids, launcher));
        return launcher.rows<KernelId::CoalesceRows>(now, count,
                                                     now.columns.count);
      },
      lists.bytes());
}

KernelResult createSplitIds(Request &request, const Device &) {
  cpu::SplitIdsRequest read;
  if (!request.counts(2, 2) || !cpu::readSplitIds(request, read))
    return request.status();
  SplitIdsArgs args;
  args.size = read.size;
  args.count = read.ids;
  args.others = read.named;
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    SplitIdsArgs now = args;
    now.ids = ref(call.inputs[0]);
    now.named = ref(call.inputs[1]);
    now.prior = ref(call.outputs[0]);
    now.delayed = ref(call.outputs[1]);
    now.add = call.accumulate;
    return launcher.items<KernelId::SplitIds>(now, now.count);
  });
}

bool readPick(Request &request, const View &matrix, const View &labels,
              const View &vector, PickArgs &p) {
  expectReal(request, matrix, "the matrix");
  expectReal(request, vector, "the picked values");
  cpu::PickRequest read;
  if (!cpu::readPick(request, matrix, labels, vector, read))
    return false;
  p.hasIgnored = read.hasIgnored;
  p.ignored = read.ignored;
  p.columns = read.columns;
  p.columnStride = read.columnStride;
  p.rows = makeLoops<3>(request, read.rows);
  return request.ok();
}

// The matrix is the input of pick and the output of its gradient.
template <KernelId id, bool gradient> KernelResult makePick(Request &request) {
  if (!request.counts(2, 1))
    return request.status();
  auto matrixOf = [](auto &from) {
    return gradient ? from.outputs[0] : from.inputs[0];
  };
  auto vectorOf = [](auto &from) {
    return gradient ? from.inputs[0] : from.outputs[0];
  };
  PickArgs args;
  if (!readPick(request, matrixOf(request), request.inputs[1],
                vectorOf(request), args))
    return request.status();
  return makeKernel([=](const KernelCall &call, Launcher &launcher) {
    PickArgs now = args;
    now.matrix = ref(matrixOf(call));
    now.labels = ref(call.inputs[1]);
    now.vector = ref(vectorOf(call));
    now.first = cpu::scalarInteger(call, 0);
    now.add = call.accumulate;
    return launcher.items<id>(now,
                              now.rows.count * (gradient ? now.columns : 1));
  });
}

KernelResult createPick(Request &request, const Device &) {
  return makePick<KernelId::Pick, false>(request);
}
KernelResult createPickGrad(Request &request, const Device &) {
  return makePick<KernelId::PickGrad, true>(request);
}

KernelResult createTopK(Request &request, const Device &) {
  cpu::TopKRequest read;
  if (!cpu::readTopK(request, read))
    return request.status();
  TopKArgs args;
  args.smallest = read.smallest;
  args.length = read.length;
  args.k = read.k;
  args.rows = read.rows;
  return makeKernel([args](const KernelCall &call, Launcher &launcher) {
    TopKArgs now = args;
    now.x = ref(call.inputs[0]);
    now.values = ref(call.outputs[0]);
    now.indices = ref(call.outputs[1]);
    now.add = call.accumulate;
    return launcher.items<KernelId::TopK>(now, now.rows);
  });
}

constexpr KernelEntry kEntries[] = {
    {"gather", createGather},
    {"scatter_add", createScatter},
    {"coalesce", createCoalesce},
    {"split_ids", createSplitIds, Strides::Dense},
    {"scatter_reduce", createScatter},
    {"pick", createPick},
    {"pick_grad", createPickGrad},
    {"top_k", createTopK, Strides::Dense},
};

} // namespace

std::span<const KernelEntry> indexKernels() { return kEntries; }

} // namespace merak::cuda
