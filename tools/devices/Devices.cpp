#include "tools/devices/Devices.h"

#include "runtime/backends/cpu/CpuBackend.h"
#ifdef MERAK_HAS_CUDA
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/backends/cuda/Driver.h"
#include "runtime/backends/cuda/Tuning.h"
#include "runtime/backends/cuda/Versions.h"
#endif
#ifdef MERAK_HAS_NCCL
#include "runtime/comm/nccl/NcclWorld.h"
#include "runtime/comm/rendezvous/PairedWorld.h"
#endif
#ifdef MERAK_HAS_MPI
#include "runtime/comm/mpi/MpiWorld.h"
#endif

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <memory>
#include <mutex>

namespace merak {
namespace {

// Among the processes of this host, and of its devices; 0 where ranks are
// threads.
[[maybe_unused]] int localRank = 0, localDevice = 0;

#ifdef MERAK_HAS_CUDA
Result<std::unique_ptr<runtime::Backend>> cudaBackend(runtime::ThreadPool &) {
  // Plans have more streams than the 8 queues of the default: two that share
  // one wait for each other, and a collective in front waits for another rank.
  // Read when the device is opened, before streams are made, of which libraries
  // have some besides; with fewer streams unused queues change nothing.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*replace=*/0);
  auto device = cuda::openLocalDevice(localDevice);
  if (!device)
    return device.status();
  // Once a host: which library runs what costs most.
  static std::once_flag said;
  std::call_once(said, [&] {
    if (localRank == 0)
      fmt::print(stderr, "attention and convolutions on {} run {}\n",
                 (*device)->info().name, (*device)->fusedBy());
  });
  return std::unique_ptr<runtime::Backend>(
      std::make_unique<cuda::CudaBackend>(*device));
}
#else
Result<std::unique_ptr<runtime::Backend>> cudaBackend(runtime::ThreadPool &) {
  return Status::error("this program was built without the CUDA toolkit");
}
#endif

#ifdef MERAK_HAS_MPI
Result<std::unique_ptr<runtime::World>>
openMpi(const runtime::LaunchIdentity &identity) {
  return runtime::openMpiWorld({identity.rank, identity.size,
                                identity.masterAddress, identity.masterPort,
                                identity.connectSeconds,
                                identity.silenceSeconds, identity.plannedRank});
}
#endif

// Ranks of CPUs as processes.
Result<std::unique_ptr<runtime::World>>
mpiWorld(const runtime::LaunchIdentity &identity) {
#ifdef MERAK_HAS_MPI
  if (identity.launcher == runtime::LaunchIdentity::Torchrun)
    return Status::error("cpu ranks in several processes communicate through "
                         "MPI: start them with mpirun or srun, not with "
                         "torchrun's variables");
  return openMpi(identity);
#else
  return Status::error("cpu ranks in several processes communicate through "
                       "MPI, which this build does not have: install "
                       "libopenmpi-dev and configure again");
#endif
}

#if defined(MERAK_HAS_NCCL) && defined(MERAK_HAS_MPI)
// Ranks of GPUs have MPI besides where the run sends host memory, or needs to
// be told where rank 0 is, and their launcher brings it: an srun that does not
// would be ended by MPI.
bool takesMpi(const runtime::LaunchIdentity &identity) {
  using Identity = runtime::LaunchIdentity;
  if (identity.launcher == Identity::Mpirun)
    return identity.hostMemory || identity.masterAddress.empty() ||
           identity.masterPort == 0;
  return identity.launcher == Identity::Slurm && identity.hostMemory &&
         (std::getenv("PMIX_RANK") || std::getenv("PMI_RANK"));
}
#endif

// Ranks of GPUs as processes.
Result<std::unique_ptr<runtime::World>>
ncclWorld(const runtime::LaunchIdentity &identity) {
#ifdef MERAK_HAS_NCCL
  localRank = identity.localRank;
  localDevice = identity.localDevice;
  cuda::Tuning::ofProcess().shareWithProcesses();
#ifdef MERAK_HAS_MPI
  if (takesMpi(identity)) {
    auto hosts = openMpi(identity);
    if (!hosts)
      return hosts.status();
    return runtime::pairWorlds(std::move(*hosts), runtime::openNcclWorld);
  }
#endif
  if (identity.masterAddress.empty() || identity.masterPort == 0)
    return Status::error("this build has no MPI: cuda ranks under mpirun meet "
                         "where MASTER_ADDR and MASTER_PORT say: set both");
  auto store = runtime::openStore(identity);
  if (!store)
    return store.status();
  return runtime::openNcclWorld(std::move(*store));
#else
  return Status::error("cuda ranks in several processes communicate through "
                       "NCCL, which this build does not have");
#endif
}

Result<std::unique_ptr<runtime::Backend>>
cpuBackend(runtime::ThreadPool &pool) {
  return std::unique_ptr<runtime::Backend>(
      std::make_unique<cpu::CpuBackend>(pool));
}

} // namespace

const runtime::BackendRegistry &deviceBackends() {
  static const runtime::BackendRegistry backends = {{"cpu", cpuBackend},
                                                    {"cuda", cudaBackend}};
  return backends;
}

const runtime::WorldRegistry &deviceWorlds() {
  static const runtime::WorldRegistry worlds = {{"cpu", mpiWorld},
                                                {"cuda", ncclWorld}};
  return worlds;
}

std::string deviceVersions() {
  std::vector<std::string> lines;
#ifdef MERAK_HAS_CUDA
  lines = cuda::libraryVersions();
#else
  lines.push_back("CUDA: not built in");
#endif
#ifdef MERAK_HAS_NCCL
  lines.push_back(runtime::ncclVersions());
#else
  lines.push_back("NCCL: not built in");
#endif
#ifdef MERAK_HAS_MPI
  lines.push_back(runtime::mpiVersion());
#else
  lines.push_back("MPI: not built in");
#endif
  return fmt::format("plans of version {}\n{}", kPlanVersion,
                     fmt::join(lines, "\n"));
}

} // namespace merak
