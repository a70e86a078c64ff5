// The table of library kernels, and dense copies of operands that a kernel
// cannot take as they lie.
#include "runtime/backends/cuda/Kernel.h"
#include "runtime/core/DType.h"
#include "runtime/layout/Strides.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace merak::cuda {

Status Launcher::multiply(Matmul product, MatmulCall call, void *memory) {
  auto after = [](const void *data, int64_t elements, int64_t bytes) {
    return static_cast<const char *>(data) + elements * bytes;
  };
  int64_t left = product.batch;
  while (left > kMaxBatch) {
    product.batch = kMaxBatch;
    MERAK_RETURN_IF_ERROR(device.matmul(product, call, memory, stream));
    left -= kMaxBatch;
    const int64_t bytes = product.factorBytes();
    call.a = after(call.a, kMaxBatch * product.strideA, bytes);
    call.b = after(call.b, kMaxBatch * product.strideB, bytes);
    call.c = const_cast<char *>(after(call.c, kMaxBatch * product.strideC,
                                      product.c == Type::F32 ? 4 : 2));
  }
  product.batch = left;
  return device.matmul(product, call, memory, stream);
}

bool expectReal(Request &request, const View &view, const char *what) {
  return request.expect(isReal(view.dtype),
                        fmt::format("expected {} of type f32, bf16 or f16, "
                                    "found {}",
                                    what, runtime::dtypeName(view.dtype)));
}

bool expectAllReal(Request &request) {
  bool good = true;
  for (const View &view : request.inputs)
    good = expectReal(request, view, "an input") && good;
  for (const View &view : request.outputs)
    good = expectReal(request, view, "an output") && good;
  return good;
}

CopyArgs makeCopy(Request &request, const View &from, const View &to,
                  bool add) {
  CopyArgs args;
  Nest nest(from.shape, {from.strides, to.strides});
  nest.sortBy(1); // neighbouring threads write neighbours
  args.loops = makeLoops<2>(request, nest);
  args.from = ref(from);
  args.to = ref(to);
  args.add = add;
  if (from.dtype == to.dtype && !add)
    args.word = static_cast<int32_t>(runtime::dtypeSize(from.dtype));
  return args;
}

namespace {

// The same bytes in elements of `factor` times the size, if they lie so.
bool widen(CopyArgs &args, int64_t factor) {
  Loops<2> wide = args.loops;
  const int last = wide.rank - 1;
  const uint64_t bytes = static_cast<uint64_t>(args.word * factor);
  if (last < 0 || wide.strides[0][last] != 1 || wide.strides[1][last] != 1 ||
      wide.sizes[last] % factor != 0 || !isAligned(args.from.data, bytes) ||
      !isAligned(args.to.data, bytes))
    return false;
  wide.sizes[last] /= factor;
  wide.count /= factor;
  for (int o = 0; o < 2; ++o)
    for (int d = 0; d < last; ++d) {
      if (wide.strides[o][d] % factor != 0)
        return false;
      wide.strides[o][d] /= factor;
    }
  args.loops = wide;
  args.word *= static_cast<int32_t>(factor);
  return true;
}

} // namespace

Status runCopy(Launcher &launcher, CopyArgs args, const void *from, void *to) {
  args.from.data = static_cast<char *>(const_cast<void *>(from));
  args.to.data = static_cast<char *>(to);
  for (int32_t bytes = kPackBytes; args.word > 0 && bytes > args.word;
       bytes /= 2)
    if (widen(args, bytes / args.word))
      break;
  // Packs are moved four a thread where there are more than threads at once.
  const int64_t count = args.loops.count;
  const int64_t least = launcher.device.info().processors * kResidentThreads;
  return launcher.items<KernelId::Copy>(args,
                                        args.word < kPackBytes || count < least
                                            ? count
                                            : std::max(least, (count + 3) / 4));
}

Status runClear(Launcher &launcher, const Loops<1> &loops, const Ref &to) {
  const auto dtype = static_cast<planpb::DType>(to.type);
  const int64_t bytes = loops.count * int64_t(runtime::dtypeSize(dtype));
  FillDenseArgs dense;
  if (isContiguous(loops, 0) && isAligned(to.data) &&
      dense.tensors.add({to.data, bytes, 0}))
    return launcher.rows<KernelId::FillDense>(dense, dense.tensors.chunks,
                                              kItemThreads);
  FillArgs any;
  any.to = to;
  any.loops = loops;
  return launcher.items<KernelId::Fill>(any, loops.count);
}

namespace {

// From the first element to behind the last.
uint64_t spannedBytes(const View &view) {
  if (view.elements() == 0)
    return 0;
  int64_t last = 0;
  for (size_t d = 0; d < view.shape.size(); ++d)
    last += (view.shape[d] - 1) * view.strides[d];
  return uint64_t(last + 1) * runtime::dtypeSize(view.dtype);
}

} // namespace

Rest restOf(Kernel &kernel, const KernelCall &call, Device &device) {
  Rest rest;
  // `call.instruction` has a name and attributes that times do not depend on.
  rest.name = call.instruction->op() + (call.accumulate ? " adds" : "");
  auto take = [&](std::span<const View> views, const char *what) {
    for (const View &view : views) {
      rest.bytes.push_back(spannedBytes(view));
      rest.name += fmt::format(
          ", {} {} [{}] by [{}]", what, runtime::dtypeName(view.dtype),
          fmt::join(view.shape, " "), fmt::join(view.strides, " "));
    }
  };
  take(call.inputs, "of");
  take(call.outputs, "to");
  rest.bytes.push_back(kernel.workspace);
  rest.run = [&](std::span<char *const> blocks, Stream stream) {
    std::vector<View> inputs(call.inputs.begin(), call.inputs.end());
    std::vector<View> outputs(call.outputs.begin(), call.outputs.end());
    size_t next = 0;
    for (std::vector<View> *views : {&inputs, &outputs})
      for (View &view : *views)
        view.data = blocks[next++];
    KernelCall here = call;
    here.inputs = inputs;
    here.outputs = outputs;
    Launcher launcher(device, stream, blocks[next]);
    return kernel.run(here, launcher);
  };
  return rest;
}

Joint::Joint(const KernelCall &call)
    : kind_(&static_cast<const Kernel &>(*call.prepared).kind),
      workspace_(static_cast<const Kernel &>(*call.prepared).workspace) {
  auto touch = [&](const View &view, bool written) {
    const char *begin = static_cast<const char *>(view.data);
    if (view.elements() > 0)
      touched_.push_back({begin, begin + spannedBytes(view), written});
  };
  for (const View &view : call.inputs)
    touch(view, false);
  for (const View &view : call.outputs)
    touch(view, true);
}

bool Joint::join(const Joint &other) {
  if (*kind_ != *other.kind_)
    return false;
  for (const Bytes &mine : touched_)
    for (const Bytes &its : other.touched_)
      if ((mine.written || its.written) && mine.begin < its.end &&
          its.begin < mine.end)
        return false;
  if (!take(other))
    return false;
  workspace_ = std::max(workspace_, other.workspace_);
  touched_.insert(touched_.end(), other.touched_.begin(), other.touched_.end());
  return true;
}

View denseView(const View &view) {
  return {nullptr, view.dtype, view.shape, layout::denseStrides(view.shape)};
}

uint64_t denseBytes(const View &view) {
  return alignUp(
      static_cast<uint64_t>(view.elements() * runtime::dtypeSize(view.dtype)));
}

namespace {

bool fits(Strides strides, const View &view) {
  if (strides == Strides::Any || view.dense())
    return true;
  if (strides == Strides::Dense || view.rank() != 4)
    return false;
  const int64_t width = view.shape[3];
  return (view.strides[3] == 1 || width == 1) &&
         (view.strides[1] >= width || view.shape[1] == 1);
}

class Adapted : public Kernel {
public:
  Adapted(std::unique_ptr<Kernel> kernel, std::span<const View> inputs,
          std::span<const View> outputs)
      : kernel_(std::move(kernel)), inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()) {
    workspace = kernel_->workspace;
  }
  void add(bool input, size_t operand, const CopyArgs &args, const View &view) {
    (input ? before_ : after_).push_back({operand, args, denseBytes(view)});
    (input ? inputs_ : outputs_)[operand] = denseView(view);
    workspace += denseBytes(view);
  }

  Status run(const KernelCall &call, Launcher &launcher) override {
    bind(inputs_, call.inputs);
    bind(outputs_, call.outputs);
    for (const Copy &copy : before_) {
      void *dense = launcher.workspace(copy.bytes);
      MERAK_RETURN_IF_ERROR(
          runCopy(launcher, copy.args, call.inputs[copy.operand].data, dense));
      inputs_[copy.operand].data = dense;
    }
    for (const Copy &copy : after_)
      outputs_[copy.operand].data = launcher.workspace(copy.bytes);
    KernelCall inner = call;
    inner.inputs = inputs_;
    inner.outputs = outputs_;
    inner.accumulate = call.accumulate && after_.empty();
    MERAK_RETURN_IF_ERROR(kernel_->run(inner, launcher));
    for (const Copy &copy : after_)
      MERAK_RETURN_IF_ERROR(runCopy(launcher, copy.args,
                                    outputs_[copy.operand].data,
                                    call.outputs[copy.operand].data));
    return {};
  }

private:
  struct Copy {
    size_t operand;
    CopyArgs args;
    uint64_t bytes;
  };
  static void bind(std::vector<View> &views, std::span<const View> actual) {
    for (size_t i = 0; i < views.size(); ++i)
      views[i].data = actual[i].data;
  }

  std::unique_ptr<Kernel> kernel_;
  std::vector<View> inputs_, outputs_;
  std::vector<Copy> before_, after_;
};

} // namespace

std::vector<std::span<const KernelEntry>> allKernels() {
  return {contractionKernels(), moveKernels(),   indexKernels(),
          reduceKernels(),      rowKernels(),    normKernels(),
          attentionKernels(),   windowKernels(), updateKernels()};
}

const KernelEntry *findKernel(const std::string &name) {
  static const auto *table = [] {
    auto *entries = new std::map<std::string, const KernelEntry *>;
    for (std::span<const KernelEntry> group : allKernels())
      for (const KernelEntry &entry : group)
        entries->emplace(entry.name, &entry);
    return entries;
  }();
  auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

namespace {

KernelResult createKernel(const planpb::Instruction &instruction,
                          std::span<const View> inputs,
                          std::span<const View> outputs, const Device &device) {
  const KernelEntry *entry = findKernel(instruction.op());
  if (!entry)
    return Status::error(fmt::format("the cuda backend has no library kernel "
                                     "'{}'",
                                     instruction.op()));
  if (instruction.accumulate() && entry->updates)
    return Status::error(fmt::format("{}: an update in place cannot accumulate",
                                     instruction.op()));
  bool copiesIn = false;
  bool copiesOut = instruction.accumulate() && entry->overwrites &&
                   entry->overwrites(instruction);
  for (const View &view : inputs)
    copiesIn = copiesIn || !fits(entry->strides, view);
  for (const View &view : outputs)
    copiesOut = copiesOut || !fits(entry->strides, view);
  if (!copiesIn && !copiesOut) {
    Request request(instruction, inputs, outputs);
    return entry->create(request, device);
  }
  // With a copied output all outputs are, so that either all or none add.
  std::vector<View> denseIn, denseOut;
  for (const View &view : inputs)
    denseIn.push_back(fits(entry->strides, view) ? view : denseView(view));
  for (const View &view : outputs)
    denseOut.push_back(copiesOut ? denseView(view) : view);
  planpb::Instruction inner = instruction;
  inner.set_accumulate(instruction.accumulate() && !copiesOut);
  Request request(inner, denseIn, denseOut);
  KernelResult kernel = entry->create(request, device);
  if (!kernel.ok())
    return kernel.status();
  auto adapted = std::make_unique<Adapted>(std::move(*kernel), inputs, outputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!fits(entry->strides, inputs[i]))
      adapted->add(true, i, makeCopy(request, inputs[i], denseIn[i], false),
                   inputs[i]);
  for (size_t i = 0; copiesOut && i < outputs.size(); ++i)
    adapted->add(
        false, i,
        makeCopy(request, denseOut[i], outputs[i], instruction.accumulate()),
        outputs[i]);
  if (!request.ok())
    return request.status();
  return std::unique_ptr<Kernel>(std::move(adapted));
}

std::string kindOf(const planpb::Instruction &instruction) {
  std::map<std::string, std::string> sorted(instruction.attrs().begin(),
                                            instruction.attrs().end());
  std::string kind = instruction.op();
  for (const auto &[key, value] : sorted)
    kind += fmt::format(" {}={}", key, value);
  for (const planpb::Scalar &scalar : instruction.scalars())
    kind += " " + scalar.ShortDebugString();
  return kind + (instruction.accumulate() ? " +" : "");
}

} // namespace

KernelResult prepareKernel(const planpb::Instruction &instruction,
                           std::span<const View> inputs,
                           std::span<const View> outputs,
                           const Device &device) {
  KernelResult kernel = createKernel(instruction, inputs, outputs, device);
  if (kernel.ok())
    (*kernel)->kind = kindOf(instruction);
  return kernel;
}

} // namespace merak::cuda
