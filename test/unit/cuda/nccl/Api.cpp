// The functions of libnccl that the runtime calls.
#include "test/unit/cuda/nccl/Comm.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

namespace merak::cuda {

namespace {

constexpr size_t kCommBytes = size_t{6} << 20; // of the device
constexpr int kBlocks = 32; // of an operation, where nothing is asked for

// All communicators that were ever opened: a handle that has ended is known.
struct Open {
  std::mutex mutex;
  std::vector<std::unique_ptr<std::shared_ptr<Comm>>> comms;
  std::set<const void *> live;
};
Open &opened() {
  static auto *open = new Open; // threads may outlive the program's end
  return *open;
}

std::mutex complaintMutex;
std::string complaint;

// What is said of how the library was used, when the process ends.
void report() {
  const char *path = std::getenv("MERAK_NCCL_REPORT");
  std::FILE *file = path ? std::fopen(path, "w") : nullptr;
  if (!file)
    return;
  const Counts &all = counts();
  std::fprintf(file,
               "{\"opened\": %d, \"used\": %d, \"ended\": %d, \"aborted\": %d, "
               "\"operations\": %lld, \"launches\": %lld, \"calls\": %lld, "
               "\"registered\": %lld}\n",
               all.opened.load(), all.used.load(), all.ended.load(),
               all.aborted.load(), (long long)all.operations,
               (long long)all.launches, (long long)all.calls,
               (long long)all.registered);
  std::fclose(file);
}

// A thread's open groups.
struct Group {
  int depth = 0;
  std::shared_ptr<Comm> comm;
  void *stream = nullptr;
  std::vector<Call> calls;
};
thread_local Group group;

ncclResult_t wrong(const std::string &what) {
  complain(what);
  return ncclInvalidUsage;
}

// Takes the handle away.
std::shared_ptr<Comm> close(ncclComm_t handle) {
  std::lock_guard lock(opened().mutex);
  if (opened().live.erase(handle) == 0)
    return nullptr;
  return std::exchange(*reinterpret_cast<std::shared_ptr<Comm> *>(handle), {});
}

ncclResult_t add(ncclComm_t handle, cudaStream_t stream, Call call) {
  const std::shared_ptr<Comm> comm = commOf(handle);
  if (!comm)
    return wrong("a call on a communicator that has ended");
  const CallRecord &record = call.record;
  if (sizeOf(record.type) == 0 || record.count == 0 ||
      record.peer >= comm->members || (record.reduce & ~ncclMax) != 0)
    return comm->misused("a call that the stand-in does not know: " +
                         describe(record));
  if (record.kind == CallRecord::Receive ? !call.out : !call.in)
    return comm->misused("a null pointer");
  const size_t bytes = record.count * sizeOf(record.type);
  call.known = (!call.in || comm->knows(call.in, bytes)) &&
               (!call.out || comm->knows(call.out, bytes));
  ++counts().calls;
  counts().registered += call.known;
  if (group.depth == 0)
    return comm->launch(comm, {call}, stream);
  if (group.comm && (group.comm != comm || group.stream != stream))
    return comm->misused("a group over two communicators or streams");
  group.comm = comm;
  group.stream = stream;
  group.calls.push_back(call);
  return ncclSuccess;
}

CallRecord record(CallRecord::Kind kind, size_t count, ncclDataType_t type,
                  int peer = -1, ncclRedOp_t op = ncclSum) {
  return {kind, type, op, peer, count};
}

} // namespace

std::shared_ptr<Comm> commOf(ncclComm_t handle) {
  std::lock_guard lock(opened().mutex);
  if (opened().live.count(handle) == 0)
    return nullptr;
  return *reinterpret_cast<std::shared_ptr<Comm> *>(handle);
}

StandInDevice *&device() {
  static StandInDevice *device = nullptr;
  return device;
}

Counts &counts() {
  static Counts counts;
  return counts;
}

void complain(const std::string &what) {
  std::lock_guard lock(complaintMutex);
  complaint = what;
  std::fprintf(stderr, "libnccl: %s\n", what.c_str());
}

const char *lastComplaint() {
  thread_local std::string text;
  std::lock_guard lock(complaintMutex);
  text = complaint;
  return text.c_str();
}

size_t sizeOf(int type) {
  switch (type) {
  case ncclInt8:
  case ncclUint8:
    return 1;
  case ncclFloat16:
  case ncclBfloat16:
    return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32:
    return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64:
    return 8;
  default:
    return 0;
  }
}

std::string describe(const CallRecord &record) {
  static const char *const kinds[] = {"AllReduce", "AllGather", "ReduceScatter",
                                      "Broadcast", "Send",      "Recv"};
  static const char *const types[] = {
      "int8",   "uint8",   "int32",   "uint32",  "int64",
      "uint64", "float16", "float32", "float64", "bfloat16"};
  std::string text = kinds[record.kind];
  text += " of " + std::to_string(record.count) + " ";
  text += record.type >= 0 && record.type < 10 ? types[record.type] : "?";
  if (record.kind == CallRecord::AllReduce ||
      record.kind == CallRecord::ReduceScatter)
    text += record.reduce == ncclMax ? " (maximum)" : " (sum)";
  if (record.peer >= 0)
    text += " with member " + std::to_string(record.peer);
  return text;
}

} // namespace merak::cuda

using namespace merak::cuda;

extern "C" {

void merakStandInUse(StandInDevice *used) { device() = used; }

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
  case ncclSuccess:
    return "no error";
  case ncclInvalidUsage:
    return "invalid usage";
  case ncclRemoteError:
    return "a remote process exited or there was a network error";
  case ncclInProgress:
    return "in progress";
  case ncclUnhandledCudaError:
    return "unhandled cuda error";
  default:
    return "internal error";
  }
}
const char *ncclGetLastError(ncclComm_t) { return lastComplaint(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  const std::string words = Region::create(sizeof(id->internal) - 1);
  if (words.empty())
    return ncclSystemError;
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, words.data(), words.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int members,
                                    ncclUniqueId id, int me,
                                    ncclConfig_t *config) {
  if (!device())
    return wrong("the stand-in has no device");
  if (members < 1 || members > kMostMembers || me < 0 || me >= members)
    return wrong("a communicator of so many members");
  id.internal[sizeof(id.internal) - 1] = 0;
  auto region = Region::open(id.internal);
  if (!region)
    return wrong("nobody made the communicator's number");
  void *memory = device()->allocate(kCommBytes);
  if (!memory)
    return ncclUnhandledCudaError;
  const bool waits = !config || config->blocking != 0;
  const bool bounded = config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT;
  auto made =
      std::make_shared<Comm>(std::move(region), members, me, waits,
                             bounded ? config->maxCTAs : kBlocks, memory);
  {
    std::lock_guard lock(opened().mutex);
    if (opened().comms.empty())
      std::atexit(report);
    opened().comms.push_back(std::make_unique<std::shared_ptr<Comm>>(made));
    *comm = reinterpret_cast<ncclComm_t>(opened().comms.back().get());
    opened().live.insert(*comm);
  }
  ncclResult_t state = made->poll(made);
  while (waits && state == ncclInProgress)
    state = made->poll(made);
  return state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *state) {
  const std::shared_ptr<Comm> comm = commOf(handle);
  if (!comm)
    return wrong("the state of a communicator that has ended");
  *state = comm->poll(comm);
  if (comm->isMeeting())
    device()->advance();
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = close(handle);
  if (!comm)
    return wrong("the abort of a communicator that has ended");
  comm->abort();
  device()->release(comm->memory);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return commOf(handle) ? ncclSuccess
                        : wrong("the end of a communicator that has ended");
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  const std::shared_ptr<Comm> comm = close(handle);
  if (!comm)
    return wrong("the end of a communicator that has ended");
  const std::string problem = comm->end();
  device()->release(comm->memory);
  return problem.empty() ? ncclSuccess : wrong(problem);
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0)
    return wrong("the end of a group that did not begin");
  if (--group.depth > 0 || group.calls.empty())
    return ncclSuccess;
  Group ended;
  std::swap(ended, group);
  return ended.comm->launch(ended.comm, std::move(ended.calls), ended.stream);
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream,
             {record(CallRecord::AllReduce, count, type, -1, op), in, out});
}
ncclResult_t ncclAllGather(const void *in, void *out, size_t count,
                           ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream,
             {record(CallRecord::AllGather, count, type), in, out});
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count,
                               ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream,
             {record(CallRecord::ReduceScatter, count, type, -1, op), in, out});
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, stream,
             {record(CallRecord::Broadcast, count, type, root), in, out});
}
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type,
                      int peer, ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream,
             {record(CallRecord::Send, count, type, peer), in, nullptr});
}
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add(comm, stream,
             {record(CallRecord::Receive, count, type, peer), nullptr, out});
}

} // extern "C"
