// A captured step of the CUDA backend: a graph, and which of its operations
// stand for the calls whose scalars change from step to step.
#pragma once

#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Kernel.h"

#include <functional>

namespace merak::cuda {

class CudaBackend::Captured : public runtime::CapturedStep {
public:
  using Enqueue = std::function<Status(const KernelCall &, LaunchTap *)>;
  // `enqueue`: a call, its launches through the tap.
  Captured(Device &device, Enqueue enqueue)
      : device_(device), enqueue_(std::move(enqueue)) {}

  // While capturing: launches on the stream and keeps the operations.
  LaunchTap *recorder(const KernelCall &call, Stream stream);
  void setGraph(std::unique_ptr<Graph> graph) { graph_ = std::move(graph); }

  size_t operations() const override { return graph_->operations(); }
  Status update(const KernelCall &call) override;
  Status launch(runtime::StreamHandle stream) override {
    return graph_->launch(CudaBackend::native(stream));
  }

private:
  class Recorder;
  class Updater;
  Device &device_;
  Enqueue enqueue_;
  std::unique_ptr<LaunchTap> recorder_;
  std::vector<std::vector<Node>> nodes_; // of each changing call, in order
  std::unique_ptr<Graph> graph_;
};

} // namespace merak::cuda
