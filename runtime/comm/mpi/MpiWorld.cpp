#include "runtime/comm/mpi/MpiWorld.h"

#include "runtime/comm/mpi/MpiCommunicator.h"
#include "runtime/comm/rendezvous/TcpStore.h"
#include "runtime/comm/rendezvous/Wire.h"
#include "runtime/trust/Hmac.h"

#include <fmt/format.h>

#include <algorithm>

namespace merak::runtime {
namespace {

class MpiWorld : public ProcessWorld {
public:
  MpiWorld(std::unique_ptr<Store> store, MPI_Comm comm)
      : ProcessWorld(std::move(store)), comm_(comm),
        engine_(std::make_unique<MpiEngine>(comm, aborted())) {}
  ~MpiWorld() override {
    engine_.reset();
    // Finalising waits for all processes: only if they are still there.
    if (aborted())
      return;
    MPI_Comm_free(&comm_);
    MPI_Finalize();
  }
  Result<std::unique_ptr<Communicator>>
  communicator(int, Backend &backend) override {
    if (!backend.isHost())
      return Status::error(fmt::format(
          "MPI communicates host memory, the backend is {}", backend.name()));
    return std::unique_ptr<Communicator>(
        std::make_unique<MpiCommunicator>(*this, *engine_));
  }

private:
  MPI_Comm comm_;
  std::unique_ptr<MpiEngine> engine_;
};

// What rank 0 tells all others: where it listens.
struct Meeting {
  std::vector<std::string> addresses;
  int port = 0;
  std::string token;
};

Meeting tell(Meeting meeting, int rank, MPI_Comm comm) {
  std::vector<std::string> parts = {std::to_string(meeting.port),
                                    meeting.token};
  parts.insert(parts.end(), meeting.addresses.begin(), meeting.addresses.end());
  std::string text = packStrings(parts);
  int length = int(text.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, comm);
  text.resize(size_t(length));
  MPI_Bcast(text.data(), length, MPI_BYTE, 0, comm);
  if (rank == 0)
    return meeting;
  parts = unpackStrings(text);
  meeting.port = std::stoi(parts.at(0));
  meeting.token = parts.at(1);
  meeting.addresses.assign(parts.begin() + 2, parts.end());
  return meeting;
}

// A communicator of all processes, of its own.
MPI_Comm asPlanned(int rank, int size) {
  std::vector<int> all(size_t(size), -1);
  MPI_Allgather(&rank, 1, MPI_INT, all.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::sort(all.begin(), all.end());
  bool isOrder = true;
  for (int i = 0; i < size; ++i)
    isOrder &= all[size_t(i)] == i;
  MPI_Comm comm;
  if (isOrder)
    MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &comm);
  else
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  return comm;
}

} // namespace

Result<std::unique_ptr<World>> openMpiWorld(const MpiOptions &options) {
  int initialised = 0, granted = 0, rank = 0, size = 0;
  MPI_Initialized(&initialised);
  if (!initialised && MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED,
                                      &granted) != MPI_SUCCESS)
    return Status::error("MPI cannot be initialised");
  if (!initialised && granted < MPI_THREAD_SERIALIZED)
    return Status::error("this MPI library allows calls from one thread only, "
                         "MPI_THREAD_SERIALIZED is needed");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != options.rank || size != options.size)
    return Status::error(fmt::format(
        "the environment says rank {} of {}, MPI says rank {} of {}: start "
        "with the mpirun or srun of the MPI library that this build links",
        options.rank, options.size, rank, size));
  const MPI_Comm comm = asPlanned(options.plannedRank, size);
  MPI_Comm_rank(comm, &rank);
  std::unique_ptr<StoreListener> listener;
  Meeting meeting;
  Status failure;
  if (rank == 0) {
    auto opened = StoreListener::open(options.masterPort);
    failure = opened.status();
    if (opened.ok()) {
      listener = std::move(*opened);
      meeting.port = listener->port();
    }
    meeting.addresses = options.masterAddress.empty() || options.rank != 0
                            ? localAddresses()
                            : std::vector<std::string>{options.masterAddress};
    meeting.token = trust::toHex(trust::randomBytes(16));
  }
  meeting = tell(std::move(meeting), rank, comm);
  if (!meeting.port)
    return rank == 0 ? failure : Status::error("rank 0 cannot listen");
  auto store =
      openTcpStore({rank, size, meeting.addresses, meeting.port, meeting.token,
                    options.connectSeconds, options.silenceSeconds},
                   std::move(listener));
  if (!store.ok())
    return store.status();
  return std::unique_ptr<World>(
      std::make_unique<MpiWorld>(std::move(*store), comm));
}

std::string mpiVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
    return "MPI: of no known version";
  const std::string all(text, size_t(length));
  return "MPI: " + all.substr(0, all.find_first_of(",\n"));
}

} // namespace merak::runtime
