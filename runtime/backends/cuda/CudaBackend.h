// The CUDA backend of one rank: an arena on the device, a device stream with a
// workspace for each stream of the plan, generated kernels from the plan's
// module and the library kernels of this folder. Several ranks of a process may
// share a device.
#pragma once

#include "runtime/backends/cuda/Device.h"
#include "runtime/core/Backend.h"

#include <map>
#include <memory>
#include <mutex>

namespace merak::cuda {

class Joint;
class LaunchTap;

class CudaBackend final : public runtime::Backend {
public:
  explicit CudaBackend(std::shared_ptr<Device> device);
  ~CudaBackend() override;

  const char *name() const override { return "cuda"; }
  std::string deviceName() const override { return device_->info().name; }
  bool isHost() const override { return false; }
  const std::shared_ptr<Device> &device() const { return device_; }
  // The driver's stream behind a handle of this backend (null: the default).
  static Stream native(runtime::StreamHandle stream);

  Result<uint64_t> freeMemory() override { return device_->freeBytes(); }
  Result<void *> allocate(uint64_t bytes) override;
  void release(void *memory) override;
  Status copyToDevice(void *device, const void *host, uint64_t bytes,
                      runtime::StreamHandle stream) override;
  Status copyToHost(void *host, const void *device, uint64_t bytes,
                    runtime::StreamHandle stream) override;
  Status clear(void *device, uint64_t bytes,
               runtime::StreamHandle stream) override;
  Result<runtime::StreamHandle>
  createStream(runtime::Priority priority = runtime::Priority::Usual) override;
  void destroyStream(runtime::StreamHandle stream) override;
  Result<runtime::EventHandle> createEvent() override;
  void destroyEvent(runtime::EventHandle event) override;
  Status recordEvent(runtime::EventHandle event,
                     runtime::StreamHandle stream) override;
  Status waitEvent(runtime::StreamHandle stream,
                   runtime::EventHandle event) override;
  Status synchronize(runtime::StreamHandle stream) override;
  Result<runtime::EventHandle> createTimer() override {
    return device_->createTimer();
  }
  Result<double> elapsed(runtime::EventHandle from,
                         runtime::EventHandle to) override {
    return device_->elapsed(from, to);
  }

  Status beginCapture(runtime::StreamHandle stream) override;
  Result<std::unique_ptr<runtime::CapturedStep>>
  endCapture(runtime::StreamHandle stream) override;
  Result<void *> allocateStaging(uint64_t bytes) override;
  void releaseStaging(void *memory) override;
  Status upload(void *device, const void *staging, uint64_t bytes,
                runtime::StreamHandle stream) override;

  void askWorkspace(runtime::StreamHandle stream, uint64_t bytes) override;
  uint64_t workspaceBytes(runtime::StreamHandle stream) const override;
  Status takeWorkspaces(runtime::MemorySource *source) override;
  Result<void *> workspace(runtime::StreamHandle stream,
                           uint64_t bytes) override;

  Status loadKernels(const std::string &path) override;
  Result<std::unique_ptr<runtime::Prepared>>
  prepare(const planpb::Instruction &instruction,
          std::span<const runtime::View> inputs,
          std::span<const runtime::View> outputs) override;
  Status run(const runtime::KernelCall &call) override;
  Status combine(std::span<const runtime::View> in, const runtime::View &out,
                 bool maximum, bool accumulate,
                 runtime::StreamHandle stream) override;

private:
  struct Lane; // a stream and its workspace
  struct Staging;
  class Captured; // Captured.h

  Lane &lane(runtime::StreamHandle stream) const;
  Status growWorkspace(Lane &lane, uint64_t bytes);
  // Enqueues, or hands the launches to `tap`.
  Status enqueue(const runtime::KernelCall &call, LaunchTap *tap);
  Status enqueue(const Joint &joint, Lane &lane, LaunchTap *tap);
  // Null: a call that is not joined with others.
  static std::unique_ptr<Joint> jointOf(const runtime::KernelCall &call);
  // Enqueues what waits for calls to join it.
  Status flush(Lane &lane);
  Result<std::unique_ptr<runtime::Prepared>>
  prepareGenerated(const planpb::Instruction &instruction, size_t operands);

  std::shared_ptr<Device> device_;
  std::unique_ptr<Lane> default_; // of calls without a stream
  std::vector<Lane *> lanes_;     // in the order of creation
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Captured> capturing_; // between begin and end
  void *module_ = nullptr;
  std::string modulePath_;
};

} // namespace merak::cuda
