#include "runtime/backends/cuda/Kernel.h"

#include <algorithm>

namespace merak::cuda {

namespace {

class Fused : public Kernel {
public:
  Fused(std::shared_ptr<FusedPlan> plan, FusedOrder order,
        std::unique_ptr<Kernel> other)
      : plan_(std::move(plan)), order_(std::move(order)),
        other_(std::move(other)), operands_(order_.size()) {
    workspace = std::max(plan_->workspace, other_->workspace);
  }

  Status run(const KernelCall &call, Launcher &launcher) override {
    for (size_t i = 0; i < order_.size(); ++i)
      operands_[i] = order_[i] >= 0 ? call.inputs[size_t(order_[i])].data
                                    : call.outputs[size_t(~order_[i])].data;
    ran_ = plan_ && isAligned(operands_);
    if (ran_) {
      Launcher part = launcher; // both ways use the same workspace
      void *memory = part.workspace(plan_->workspace);
      Status status = plan_->run(operands_, memory, launcher.stream);
      if (status.ok() || launcher.capturing) // nothing else was captured here
        return status;
      ran_ = false;
      plan_.reset(); // what it refuses once it would refuse again
    }
    return other_->run(call, launcher);
  }
  bool ranFused() const override { return ran_; }

private:
  std::shared_ptr<FusedPlan> plan_;
  FusedOrder order_;
  std::unique_ptr<Kernel> other_;
  std::vector<void *> operands_;
  bool ran_ = false;
};

} // namespace

KernelResult withFused(std::shared_ptr<FusedPlan> plan, FusedOrder order,
                       KernelResult other) {
  if (!plan || !other.ok())
    return other;
  return std::unique_ptr<Kernel>(std::make_unique<Fused>(
      std::move(plan), std::move(order), std::move(*other)));
}

FusedTensor fusedTensor(const View &view, const std::vector<size_t> &order) {
  FusedTensor tensor;
  tensor.type = typeOf(view.dtype);
  for (size_t d : order) {
    tensor.sizes.push_back(view.shape[d]);
    tensor.strides.push_back(view.strides[d]);
  }
  return tensor;
}

} // namespace merak::cuda
