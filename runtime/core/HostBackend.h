// The part of a CPU backend that is not a library kernel: aligned memory,
// copies, and generated kernels from the plan's shared object, split over the
// rank's threads. A CPU backend derives from it and adds library kernels.
#pragma once

#include "runtime/core/Backend.h"

#include <map>
#include <mutex>

namespace merak::runtime {

// Host memory as a backend allocates it, cleared, which outlives any backend.
Result<std::shared_ptr<char>> sharedHostMemory(uint64_t bytes);

class HostBackend : public Backend {
public:
  // `pool`: the rank's threads; must outlive the backend.
  explicit HostBackend(ThreadPool &pool) : pool_(pool) {}
  ~HostBackend() override;

  const char *name() const override { return "cpu"; }
  bool isHost() const override { return true; }
  Result<void *> allocate(uint64_t bytes) override;
  void release(void *memory) override;
  Status copyToDevice(void *device, const void *host, uint64_t bytes,
                      StreamHandle stream) override;
  Status copyToHost(void *host, const void *device, uint64_t bytes,
                    StreamHandle stream) override;
  Status clear(void *device, uint64_t bytes, StreamHandle stream) override;
  Status loadKernels(const std::string &path) override;
  // KERNEL here, LIBRARY through the two functions below.
  Result<std::unique_ptr<Prepared>>
  prepare(const planpb::Instruction &instruction, std::span<const View> inputs,
          std::span<const View> outputs) final;
  Status run(const KernelCall &call) final;

protected:
  ThreadPool &pool() { return pool_; }
  virtual Result<std::unique_ptr<Prepared>>
  prepareLibrary(const planpb::Instruction &instruction,
                 std::span<const View> inputs,
                 std::span<const View> outputs) = 0;
  virtual Status runLibrary(const KernelCall &call) = 0;

private:
  Result<std::unique_ptr<Prepared>>
  prepareGenerated(const planpb::Instruction &instruction,
                   std::span<const View> inputs, std::span<const View> outputs);

  ThreadPool &pool_;
  void *kernels_ = nullptr; // dlopen handle
  std::string kernelsPath_;
  std::mutex mutex_;
  std::map<void *, int64_t> bytes_; // of what is allocated
};

} // namespace merak::runtime
