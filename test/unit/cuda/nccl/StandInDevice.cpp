#include "test/unit/cuda/nccl/StandInDevice.h"

#include "runtime/comm/inproc/StridedOps.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>

namespace merak::cuda {

namespace {

planpb::DType typeOf(int type) {
  switch (type) {
  case ncclInt8:
    return planpb::I8;
  case ncclUint8:
    return planpb::U8;
  case ncclInt32:
    return planpb::I32;
  case ncclUint32:
    return planpb::U32;
  case ncclInt64:
    return planpb::I64;
  case ncclUint64:
    return planpb::U64;
  case ncclFloat16:
    return planpb::F16;
  case ncclBfloat16:
    return planpb::BF16;
  case ncclFloat32:
    return planpb::F32;
  case ncclFloat64:
    return planpb::F64;
  default:
    return planpb::DTYPE_INVALID;
  }
}

} // namespace

std::string DeviceOfStandIn::enqueue(void *stream, StandInWork work) {
  auto run = [run = std::move(work.run)] {
    const std::string problem = run();
    return problem.empty() ? Status() : Status::error(problem);
  };
  return device_->enqueue(stream, {std::move(work.ready), std::move(run)})
      .str();
}

void DeviceOfStandIn::advance() { device_->advance(); }

void *DeviceOfStandIn::allocate(size_t bytes) {
  auto memory = device_->allocate(bytes);
  return memory.ok() ? *memory : nullptr;
}

void DeviceOfStandIn::reduce(const std::vector<const void *> &parts,
                             int64_t count, int type, bool maximum, void *out) {
  std::vector<runtime::View> inputs;
  for (const void *part : parts)
    inputs.push_back({const_cast<void *>(part), typeOf(type), {count}, {1}});
  runtime::reduceViews(inputs, {out, typeOf(type), {count}, {1}}, maximum,
                       false);
}

Status useNcclStandIn(const char *path,
                      std::shared_ptr<EmulatedDevice> device) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return Status::error(dlerror());
  auto *use = reinterpret_cast<StandInUse *>(dlsym(library, kStandInUse));
  if (!use)
    return Status::error(fmt::format("\"{}\" is no stand-in for NCCL", path));
  // Threads that abort communicators may outlive all else.
  use(new DeviceOfStandIn(std::move(device)));
  return {};
}

} // namespace merak::cuda
