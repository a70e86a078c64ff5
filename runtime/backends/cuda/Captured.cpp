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

LaunchTap *CudaBackend::Captured::recorder(const KernelCall &call,
                                           Stream stream) {
  if (nodes_.size() <= size_t(call.changes))
    nodes_.resize(size_t(call.changes) + 1);
  recorder_ =
      std::make_unique<Recorder>(device_, stream, nodes_[size_t(call.changes)]);
  return recorder_.get();
}

Status CudaBackend::Captured::update(const KernelCall &call) {
  Updater updater(*graph_, nodes_[size_t(call.changes)]);
  return enqueue_(call, &updater);
}

} // namespace merak::cuda
