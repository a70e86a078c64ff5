#include "runtime/backends/cuda/Captured.h"

namespace merak::cuda {

class CudaBackend::Captured::Recorder : public LaunchTap {
public:
  Recorder(Device &device, Stream stream, std::vector<Node> &nodes)
      : device_(device), stream_(stream), nodes_(nodes) {}

  Status launch(KernelId kernel, Grid grid, const void *args) override {
    MERAK_RETURN_IF_ERROR(device_.launch(kernel, grid, args, stream_));
    return keep();
  }
  Status launch(Function function, Grid grid, size_t operands,
                const std::vector<uint64_t> &words) override {
    MERAK_RETURN_IF_ERROR(
        device_.launch(function, grid, operands, words, stream_));
    return keep();
  }

private:
  Status keep() {
    auto node = device_.lastCaptured(stream_);
    if (node.ok())
      nodes_.push_back(*node);
    return node.status();
  }
  Device &device_;
  Stream stream_;
  std::vector<Node> &nodes_;
};

class CudaBackend::Captured::Updater : public LaunchTap {
public:
  Updater(Graph &graph, const std::vector<Node> &nodes)
      : graph_(graph), nodes_(nodes) {}

  Status launch(KernelId kernel, Grid grid, const void *args) override {
    return next_ < nodes_.size()
               ? graph_.update(nodes_[next_++], kernel, grid, args)
               : more();
  }
  Status launch(Function function, Grid grid, size_t operands,
                const std::vector<uint64_t> &words) override {
    return next_ < nodes_.size()
               ? graph_.update(nodes_[next_++], function, grid, operands, words)
               : more();
  }

private:
  static Status more() {
    return Status::error("launches more kernels than when it was captured");
  }
  Graph &graph_;
  const std::vector<Node> &nodes_;
  size_t next_ = 0;
};

CudaBackend::Captured::Changing &CudaBackend::Captured::changing(int number) {
  if (changing_.size() <= size_t(number))
    changing_.resize(size_t(number) + 1);
  return changing_[size_t(number)];
}

LaunchTap *CudaBackend::Captured::recorder(int number, Stream stream) {
  recorder_ =
      std::make_unique<Recorder>(device_, stream, changing(number).nodes);
  return recorder_.get();
}

void CudaBackend::Captured::hold(int number) { changing(number).held = true; }

Status CudaBackend::Captured::update(const KernelCall &call) {
  const Changing &one = changing(call.changes);
  Updater updater(*graph_, one.nodes);
  if (!waiting_ && !one.held)
    return backend_.enqueue(call, &updater);
  // Calls were joined for what stays the same from step to step.
  std::unique_ptr<Joint> joint = jointOf(call);
  if (!joint || (waiting_ && !waiting_->join(*joint)))
    return Status::error("is not launched with the calls that it was captured "
                         "with");
  if (!waiting_)
    waiting_ = std::move(joint);
  if (one.held)
    return {};
  joint = std::move(waiting_);
  return backend_.enqueue(*joint, backend_.lane(call.stream), &updater);
}

} // namespace merak::cuda
