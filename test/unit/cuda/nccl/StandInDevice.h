// The emulated device as the stand-in for libnccl (nccl/StandIn.h) sees it.
#pragma once

#include "test/unit/cuda/EmulatedDevice.h"
#include "test/unit/cuda/nccl/StandIn.h"

namespace merak::cuda {

class DeviceOfStandIn : public StandInDevice {
public:
  explicit DeviceOfStandIn(std::shared_ptr<EmulatedDevice> device)
      : device_(std::move(device)) {}
  std::string enqueue(void *stream, StandInWork work) override;
  bool isUrgent(void *stream) override {
    return device_->isFirst(stream) ||
           device_->priority(stream) == Priority::High;
  }
  int processors() override { return device_->info().processors; }
  void advance() override;
  void *allocate(size_t bytes) override;
  void release(void *memory) override { device_->release(memory); }
  void reduce(const std::vector<const void *> &parts, int64_t count, int type,
              bool maximum, void *out) override;

private:
  const std::shared_ptr<EmulatedDevice> device_;
};

// Gives the stand-in at `path` the device, for the rest of the process.
Status useNcclStandIn(const char *path, std::shared_ptr<EmulatedDevice> device);

} // namespace merak::cuda
