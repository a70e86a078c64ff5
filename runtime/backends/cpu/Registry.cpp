// The table of library kernels, and the adapter for what a kernel does not do
// itself: operands with gaps, and adding to the outputs.
#include "runtime/backends/cpu/Copy.h"
#include "runtime/backends/cpu/Kernel.h"
#include "runtime/core/DType.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

namespace merak::cpu {

namespace {

bool isHalf(const View &view) {
  return view.dtype == planpb::BF16 || view.dtype == planpb::F16;
}

// The dense view that a kernel sees of an operand; f32 for 16 bits.
View adaptedView(const View &view) {
  View dense = denseView(view, nullptr);
  if (isHalf(view))
    dense.dtype = planpb::F32;
  return dense;
}

// Runs a kernel on dense copies of some operands: of those that are not dense
// or have 16-bit floats, for kernels that do not know these.
class Adapted : public Kernel {
public:
  struct Needs {
    bool dense = false, f32 = false, accumulate = false;
    // Of an update, which takes its outputs as they lie: they are f32, but
    // for the copy of the parameter in 16 bits.
    bool updates = false;
    bool copies(const View &view) const {
      return (dense && !view.dense()) || (f32 && isHalf(view));
    }
    Needs ofOutputs() const {
      return updates ? Needs{.accumulate = accumulate} : *this;
    }
  };
  Adapted(std::unique_ptr<Kernel> kernel, std::span<const View> inputs,
          std::span<const View> outputs, Needs needs)
      : kernel_(std::move(kernel)), inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()),
        overwrites_(needs.accumulate) {
    for (size_t i = 0; i < inputs.size(); ++i)
      if (needs.copies(inputs[i]))
        before_.push_back(makeCopy(inputs_, i, inputs[i], true, false));
    for (size_t i = 0; i < outputs.size(); ++i)
      if (needs.accumulate || needs.ofOutputs().copies(outputs[i]))
        after_.push_back(
            makeCopy(outputs_, i, outputs[i], false, needs.accumulate));
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
    View dense = adaptedView(view);
    Copy copy{i,
              isInput ? CopyPlan(view, dense, false)
                      : CopyPlan(dense, view, accumulate),
              CopyPlan(view, dense, false),
              {}};
    copy.bytes.resize(
        static_cast<size_t>(view.elements() * runtime::dtypeSize(dense.dtype)));
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

// What the kernel sees of all operands.
std::vector<View> seen(std::span<const View> views, Adapted::Needs needs) {
  std::vector<View> result(views.begin(), views.end());
  for (View &view : result)
    if (needs.copies(view))
      view = adaptedView(view);
    else if (needs.dense)
      view = denseView(view, nullptr);
  return result;
}

} // namespace

std::vector<std::span<const KernelEntry>> allKernels() {
  return {einsumKernels(), copyKernels(),      reduceKernels(),
          gatherKernels(), coalesceKernels(),  softmaxKernels(),
          normKernels(),   attentionKernels(), crossEntropyKernels(),
          rotaryKernels(), dropoutKernels(),   convKernels(),
          poolKernels(),   topKKernels(),      optimizerKernels(),
          replayKernels()};
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
  Adapted::Needs needs{!entry->anyStrides, !entry->anyTypes,
                       accumulate && !entry->accumulates, entry->updates};
  bool adapts = needs.accumulate;
  for (const View &view : inputs)
    adapts |= needs.copies(view);
  for (const View &view : outputs)
    adapts |= needs.ofOutputs().copies(view);
  if (!adapts) {
    Request request(instruction, inputs, outputs);
    return entry->create(request);
  }
  std::vector<View> adaptedIn = seen(inputs, needs);
  std::vector<View> adaptedOut = seen(outputs, needs.ofOutputs());
  if (needs.accumulate)
    for (View &view : adaptedOut)
      view = adaptedView(view);
  planpb::Instruction inner = instruction;
  inner.set_accumulate(accumulate && !needs.accumulate);
  Request request(inner, adaptedIn, adaptedOut);
  KernelResult kernel = entry->create(request);
  if (!kernel.ok())
    return kernel.status();
  return std::unique_ptr<Kernel>(
      std::make_unique<Adapted>(std::move(*kernel), inputs, outputs, needs));
}

} // namespace merak::cpu
