// gather, scatter_add, scatter_reduce, coalesce, pick, pick_grad.
#include "runtime/backends/cpu/Requests.h"
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/core/DType.h"

#include <algorithm>
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
        GatherArgs now = args;
        now.table = ref(call.inputs[0]);
        now.ids = ref(call.inputs[1]);
        now.other = ref(call.outputs[0]);
        now.first = cpu::scalarInteger(call, 0);
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

KernelResult createScatter(Request &request, const Device &) {
  GatherArgs args;
  cpu::Combine combine = cpu::Combine::Add;
  if (!request.counts(2, 1) || !cpu::readCombine(request, combine) ||
      !readGather(request, request.outputs[0], request.inputs[1],
                  request.inputs[0], args))
    return request.status();
  args.combine = static_cast<int>(combine);
  const View &table = request.outputs[0];
  request.expect(table.dtype != planpb::BOOL, "no arithmetic on bool");
  // Positions pass through f32 when lists are made.
  request.expect(args.allIds() < int64_t{1} << 24,
                 "expected fewer than 2^24 ids");
  request.expect(args.rows < INT32_MAX, "expected fewer than 2^31 rows");
  FillArgs clear;
  Nest nest(table.shape, {table.strides});
  nest.sortBy(0);
  clear.loops = makeLoops<1>(request, nest);
  if (!request.ok())
    return request.status();
  const uint64_t ids = static_cast<uint64_t>(args.allIds());
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        GatherArgs now = args;
        now.table = ref(call.outputs[0]);
        now.ids = ref(call.inputs[1]);
        now.other = ref(call.inputs[0]);
        now.first = cpu::scalarInteger(call, 0);
        now.add = call.accumulate;
        now.next = launcher.workspace<int32_t>(3 * ids);
        if (!call.accumulate) {
          FillArgs zero = clear;
          zero.to = now.table;
          MERAK_RETURN_IF_ERROR(
              launcher.items<KernelId::Fill>(zero, zero.loops.count));
        }
        const int64_t count = now.allIds();
        MERAK_RETURN_IF_ERROR(launcher.items<KernelId::ScatterIds>(now, count));
        MERAK_RETURN_IF_ERROR(launcher.rows<KernelId::ScatterLinks>(
            now, count, now.idLoops.count));
        return launcher.rows<KernelId::ScatterRows>(
            now, count, now.before.count * now.after.count);
      },
      alignUp(3 * ids * sizeof(int32_t)));
}

KernelResult createCoalesce(Request &request, const Device &) {
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
  args.lists.rows = args.lists.globalRows = read.size;
  args.lists.groups = makeLoops<3>(request, Nest({}, {{}, {}, {}}));
  args.lists.idLoops =
      makeLoops<2>(request, Nest(read.ids.sizes,
                                 {read.ids.strides[0], read.ids.strides[1]}));
  args.places =
      makeLoops<2>(request, Nest(read.ids.sizes,
                                 {read.ids.strides[2], read.ids.strides[3]}));
  args.columns = makeLoops<2>(request, read.columns);
  // As of scatter_add.
  request.expect(args.lists.allIds() < int64_t{1} << 24,
                 "expected fewer than 2^24 ids");
  request.expect(read.size < INT32_MAX, "expected fewer than 2^31 rows");
  if (!request.ok())
    return request.status();
  const auto count = args.lists.allIds();
  return makeKernel(
      [=](const KernelCall &call, Launcher &launcher) {
        CoalesceArgs now = args;
        now.lists.other = ref(call.inputs[0]);
        now.lists.ids = ref(call.inputs[1]);
        now.rows = ref(call.outputs[0]);
        now.unique = ref(call.outputs[1]);
        now.lists.next =
            launcher.workspace<int32_t>(3 * static_cast<uint64_t>(count));
        MERAK_RETURN_IF_ERROR(
            launcher.items<KernelId::ScatterIds>(now.lists, count));
        MERAK_RETURN_IF_ERROR(
            launcher.rows<KernelId::ScatterLinks>(now.lists, count, count));
        return launcher.rows<KernelId::CoalesceRows>(now, count,
                                                     now.columns.count);
      },
      alignUp(3 * static_cast<uint64_t>(count) * sizeof(int32_t)));
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
    {"scatter_reduce", createScatter},
    {"pick", createPick},
    {"pick_grad", createPickGrad},
    {"top_k", createTopK, Strides::Dense},
};

} // namespace

std::span<const KernelEntry> indexKernels() { return kEntries; }

} // namespace merak::cuda
