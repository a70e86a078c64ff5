// The backends and communicators of this build.
#include "test/conformance/Targets.h"

#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/launch/LaunchIdentity.h"
#include "test/conformance/CommCases.h"
#ifdef MERAK_HAS_CUDA
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Driver.h"
#include "runtime/comm/inproc/DeviceCommunicator.h"
#endif
#ifdef MERAK_HAS_NCCL
#include "runtime/comm/nccl/NcclWorld.h"
#endif
#ifdef MERAK_HAS_MPI
#include "runtime/comm/mpi/MpiWorld.h"
#endif

#include <cstdlib>

namespace merak::conformance {

using namespace runtime;

namespace {

std::string noSumOfBools(const CommCase &c) {
  const bool sums = (c.spec.kind == CommSpec::AllReduce ||
                     c.spec.kind == CommSpec::ReduceScatter) &&
                    !c.spec.maximum;
  return c.dtype == planpb::BOOL && sums
             ? "a bool has no sum; plans reduce bools by maximum"
             : "";
}

BackendTarget cpuTarget() {
  return {"cpu", [](ThreadPool &pool) -> Result<std::unique_ptr<Backend>> {
            return std::unique_ptr<Backend>(
                std::make_unique<cpu::CpuBackend>(pool));
          }};
}

// Threads that read each other's memory.
CommTarget inprocTarget() {
  CommTarget target;
  target.name = "inproc";
  target.open = []() -> Result<std::unique_ptr<World>> {
    return std::unique_ptr<World>(std::make_unique<InprocWorld>(kRanks));
  };
  target.communicator = [](World &world, int rank, Backend &backend) {
    return world.communicator(rank, backend);
  };
  target.excuse = noSumOfBools;
  return target;
}

#ifdef MERAK_HAS_CUDA
// Processes of a host take its devices in turn.
Result<std::shared_ptr<cuda::Device>> ownDevice() {
  auto identity =
      launchIdentity([](const char *name) { return std::getenv(name); });
  return cuda::openLocalDevice(identity.ok() ? identity->localRank : 0);
}

BackendTarget cudaTarget() {
  BackendTarget target{"cuda",
                       [](ThreadPool &) -> Result<std::unique_ptr<Backend>> {
                         auto device = ownDevice();
                         if (!device.ok())
                           return device.status();
                         return std::unique_ptr<Backend>(
                             std::make_unique<cuda::CudaBackend>(*device));
                       }};
  target.slack = 4; // sums in another order than the CPU
  return target;
}

// Ranks that share one device.
CommTarget deviceTarget() {
  CommTarget target = inprocTarget();
  target.name = "inproc on cuda";
  target.backend = "cuda";
  target.communicator =
      [](World &world, int rank,
         Backend &backend) -> Result<std::unique_ptr<Communicator>> {
    return deviceCommunicator(static_cast<InprocWorld &>(world), rank, backend);
  };
  return target;
}
#endif

#ifdef MERAK_HAS_NCCL
// Processes with a GPU each.
CommTarget ncclTarget() {
  CommTarget target = inprocTarget();
  target.name = "nccl";
  target.backend = "cuda";
  target.processes = true;
  target.needs = []() -> std::string {
    auto device = ownDevice();
    if (!device.ok())
      return device.status().str();
    return "it needs a process for each GPU, with RANK, WORLD_SIZE, "
           "LOCAL_RANK, MASTER_ADDR and MASTER_PORT set (test/gpu/run.sh)";
  };
  target.open = []() -> Result<std::unique_ptr<World>> {
    auto device = ownDevice();
    if (!device.ok())
      return device.status();
    auto identity =
        launchIdentity([](const char *name) { return std::getenv(name); });
    if (!identity.ok())
      return identity.status();
    auto store = openStore(*identity);
    if (!store.ok())
      return store.status();
    return openNcclWorld(std::move(*store));
  };
  return target;
}
#endif

#ifdef MERAK_HAS_MPI
CommTarget mpiTarget() {
  CommTarget target = inprocTarget();
  target.name = "mpi";
  target.processes = true;
  target.needs = [] {
    return "it needs several processes: mpirun -np 4 merak-conformance mpi";
  };
  target.open = []() -> Result<std::unique_ptr<World>> {
    auto identity =
        launchIdentity([](const char *name) { return std::getenv(name); });
    if (!identity.ok())
      return identity.status();
    return openMpiWorld({identity->rank, identity->size,
                         identity->masterAddress, identity->masterPort});
  };
  return target;
}
#endif

} // namespace

const std::vector<BackendTarget> &backendTargets() {
  static const std::vector<BackendTarget> targets = {
      cpuTarget(),
#ifdef MERAK_HAS_CUDA
      cudaTarget(),
#endif
  };
  return targets;
}

const std::vector<CommTarget> &commTargets() {
  static const std::vector<CommTarget> targets = {
      inprocTarget(),
#ifdef MERAK_HAS_CUDA
      deviceTarget(),
#endif
#ifdef MERAK_HAS_NCCL
      ncclTarget(),
#endif
#ifdef MERAK_HAS_MPI
      mpiTarget(),
#endif
  };
  return targets;
}

} // namespace merak::conformance
