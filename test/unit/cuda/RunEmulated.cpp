// merak-run for plans of CPUs, whose kernels the emulated device can call, on
// the CUDA backend: streams, events, staging, workspaces, graphs and
// communication of ranks that share a device, without one.
//
//   MERAK_EMULATED_BYTES     memory of the device
//   MERAK_EMULATED_CAPTURES  operations that a capture takes before it fails
//   MERAK_EMULATED_PROCESSORS  multiprocessors of the device
//   MERAK_EMULATED_SEED      draws the order in which streams do their work
//   MERAK_NCCL_LIBRARY       with --ranks=env: ranks are processes, which
//                            communicate by NCCL's stand-in (nccl/StandIn.h);
//                            started by mpirun, by MPI besides (host memory)
//   --ranks=env              else this rank alone, all others mirror it
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/launch/RunMain.h"
#include "test/unit/cuda/EmulatedDevice.h"
#ifdef MERAK_HAS_NCCL
#include "runtime/comm/nccl/NcclWorld.h"
#include "runtime/comm/rendezvous/PairedWorld.h"
#include "test/unit/cuda/MirrorWorld.h"
#include "test/unit/cuda/nccl/StandInDevice.h"
#endif
#ifdef MERAK_HAS_MPI
#include "runtime/comm/mpi/MpiWorld.h"
#endif
#include "tools/prices/Prices.h"

#include <cstdlib>

int main(int argc, char **argv) {
  using namespace merak;
  cuda::Emulation emulation;
  if (const char *bytes = std::getenv("MERAK_EMULATED_BYTES"))
    emulation.memory = std::strtoull(bytes, nullptr, 10);
  if (const char *most = std::getenv("MERAK_EMULATED_CAPTURES"))
    emulation.captures = std::strtoull(most, nullptr, 10);
  if (const char *processors = std::getenv("MERAK_EMULATED_PROCESSORS"))
    emulation.processors = std::atoi(processors);
  if (const char *seed = std::getenv("MERAK_EMULATED_SEED"))
    emulation.seed = std::strtoull(seed, nullptr, 10);
  const char *nccl = std::getenv("MERAK_NCCL_LIBRARY");
  if (nccl && emulation.seed == 0)
    emulation.seed = 1; // work that waits for other processes needs queues
  auto device = std::make_shared<cuda::EmulatedDevice>(emulation);
  runtime::BackendRegistry backends;
  backends["cpu"] =
      [device](
          runtime::ThreadPool &) -> Result<std::unique_ptr<runtime::Backend>> {
    return std::unique_ptr<runtime::Backend>(
        std::make_unique<cuda::CudaBackend>(device));
  };
  runtime::WorldRegistry worlds;
#ifdef MERAK_HAS_NCCL
  worlds["cpu"] = [device, nccl](const runtime::LaunchIdentity &identity)
      -> Result<std::unique_ptr<runtime::World>> {
    if (!nccl)
      return cuda::openMirrorWorld(device, identity);
    if (Status status = cuda::useNcclStandIn(nccl, device); !status.ok())
      return status;
#ifdef MERAK_HAS_MPI
    if (identity.launcher == runtime::LaunchIdentity::Mpirun) {
      auto hosts = runtime::openMpiWorld(
          {identity.rank, identity.size, identity.masterAddress,
           identity.masterPort, identity.connectSeconds,
           identity.silenceSeconds, identity.plannedRank});
      if (!hosts)
        return hosts.status();
      return runtime::pairWorlds(std::move(*hosts), runtime::openNcclWorld);
    }
#endif
    auto store = runtime::openStore(identity);
    if (!store)
      return store.status();
    return runtime::openNcclWorld(std::move(*store));
  };
#endif
  const RunPrices costs = runPrices();
  return runtime::runMain(argc, argv, backends, nullptr, worlds, nullptr,
                          costs.expected, costs.predicted, costs.prices);
}
