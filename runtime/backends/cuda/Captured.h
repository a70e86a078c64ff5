// A captured step of the CUDA backend: a graph, and which of its operations
// stand for the calls whose scalars change from step to step.
#pragma once

#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Kernel.h"

namespace merak::cuda {

class CudaBackend::Captured : public runtime::CapturedStep {
public:
  Captured(Device &device, CudaBackend &backend)
      : device_(device), backend_(backend) {}

  // While capturing: launches on the stream and keeps the operations, as those
  // of a changing call (KernelCall::changes).
  LaunchTap *recorder(int changing, Stream stream);
  // The changing call is launched together with the next one.
  void hold(int changing);
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
  CudaBackend &backend_;
  std::unique_ptr<LaunchTap> recorder_;
  struct Changing {
    std::vector<Node> nodes; // in order
    bool held = false;       // a later call has them
  };
  Changing &changing(int number);
  std::vector<Changing> changing_;
  std::unique_ptr<Joint> waiting_; // held calls, while they are updated
  std::unique_ptr<Graph> graph_;
};

} // namespace merak::cuda
