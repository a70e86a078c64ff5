// The table of library kernels, and the adapter for what a kernel does not do
// itself: operands with gaps, and adding to the outputs.
#include "runtime/backends/cpu/Copy.h"
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/core/DType.h"

#include <fmt/format.h>
#include <map>

namespace merak::cpu {

namespace {

// Runs a kernel on dense copies of some operands.
class Adapted : public Kernel {
public:
  Adapted(std::unique_ptr<Kernel> kernel, std::span<const View> inputs,
          std::span<const View> outputs, bool strides, bool accumulate)
      : kernel_(std::move(kernel)), inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (strides && !inputs[i].dense())
        before_.push_back(makeCopy(inputs_, i, inputs[i], true, false));
    for (size_t i = 0; i < outputs.size(); ++i)
      if (accumulate || (strides && !outputs[i].dense()))
        after_.push_back(makeCopy(outputs_, i, outputs[i], false, accumulate));
    overwrites_ = accumulate;
  }

  Status run(const KernelCall &call, ThreadPool &pool) override {
    bind(inputs_, call.inputs, before_);
    bind(outputs_, call.outputs, after_);
    for (Copy &copy : before_)
      copy.plan.run(call.inputs[copy.operand].data, copy.bytes.data(), pool);
    KernelCall inner = call;
    inner.inputs = inputs_;
    inner.outputs = outputs_;
    inner.accumulate = call.accumulate && !overwrites_;
    // What an accumulating kernel adds to must be in its copy.
    if (inner.accumulate)
      for (Copy &copy : after_)
        copy.fill.run(call.outputs[copy.operand].data, copy.bytes.data(), pool);
    MERAK_RETURN_IF_ERROR(kernel_->run(inner, pool));
    for (Copy &copy : after_)
      copy.plan.run(copy.bytes.data(), call.outputs[copy.operand].data, pool);
    return {};
  }

private:
  struct Copy {
    size_t operand;
    CopyPlan plan, fill;
    std::vector<std::byte> bytes;
  };

  Copy makeCopy(std::vector<View> &views, size_t i, const View &view,
                bool isInput, bool accumulate) {
    View dense = denseView(view, nullptr);
    Copy copy{i,
              isInput ? CopyPlan(view, dense, false)
                      : CopyPlan(dense, view, accumulate),
              CopyPlan(view, dense, false),
              {}};
    copy.bytes.resize(
        static_cast<size_t>(view.elements() * runtime::dtypeSize(view.dtype)));
    views[i] = dense;
    return copy;
  }
  static void bind(std::vector<View> &views, std::span<const View> actual,
                   std::vector<Copy> &copies) {
    for (size_t i = 0; i < views.size(); ++i)
      views[i].data = actual[i].data;
    for (Copy &copy : copies)
      views[copy.operand].data = copy.bytes.data();
  }

  std::unique_ptr<Kernel> kernel_;
  std::vector<View> inputs_, outputs_;
  std::vector<Copy> before_, after_;
  bool overwrites_ = false;
};

std::vector<View> denseViews(std::span<const View> views) {
  std::vector<View> dense;
  for (const View &view : views)
    dense.push_back(denseView(view, nullptr));
  return dense;
}

bool allDense(std::span<const View> views) {
  for (const View &view : views)
    if (!view.dense())
      return false;
  return true;
}

} // namespace

std::vector<std::span<const KernelEntry>> allKernels() {
  return {einsumKernels(),    copyKernels(),         reduceKernels(),
          gatherKernels(),    softmaxKernels(),      normKernels(),
          attentionKernels(), crossEntropyKernels(), rotaryKernels(),
          dropoutKernels(),   convKernels(),         poolKernels(),
          topKKernels(),      optimizerKernels()};
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

KernelResult prepareKernel(const planpb::Instruction &instruction,
                           std::span<const View> inputs,
                           std::span<const View> outputs) {
  const KernelEntry *entry = findKernel(instruction.op());
  if (!entry)
    return Status::error(fmt::format("the cpu backend has no library kernel "
                                     "'{}'",
                                     instruction.op()));
  const bool accumulate = instruction.accumulate();
  if (accumulate && entry->updates)
    return Status::error(fmt::format("{}: an update in place cannot accumulate",
                                     instruction.op()));
  const bool copies =
      !entry->anyStrides && !(allDense(inputs) && allDense(outputs));
  const bool adds = accumulate && !entry->accumulates;
  if (!copies && !adds) {
    Request request(instruction, inputs, outputs);
    return entry->create(request);
  }
  std::vector<View> denseIn(inputs.begin(), inputs.end());
  std::vector<View> denseOut = denseViews(outputs);
  if (!entry->anyStrides)
    denseIn = denseViews(inputs);
  else if (!adds)
    denseOut.assign(outputs.begin(), outputs.end());
  planpb::Instruction inner = instruction;
  inner.set_accumulate(accumulate && !adds);
  Request request(inner, denseIn, denseOut);
  KernelResult kernel = entry->create(request);
  if (!kernel.ok())
    return kernel.status();
  return std::unique_ptr<Kernel>(std::make_unique<Adapted>(
      std::move(*kernel), inputs, outputs, !entry->anyStrides, adds));
}

} // namespace merak::cpu
