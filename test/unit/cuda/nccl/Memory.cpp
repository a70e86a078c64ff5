// Memory of the library, and memory that communicators are told of.
#include "test/unit/cuda/nccl/Comm.h"

namespace merak::cuda {

namespace {

// What was allocated, and how many communicators know it.
struct Allocated {
  std::mutex mutex;
  struct Block {
    size_t bytes = 0;
    int known = 0;
  };
  std::map<const char *, Block> blocks;
  // The one that holds the bytes; null: none does.
  Block *find(const void *memory, size_t bytes) {
    const char *begin = static_cast<const char *>(memory);
    auto next = blocks.upper_bound(begin);
    if (next == blocks.begin())
      return nullptr;
    auto &[at, block] = *std::prev(next);
    return begin + bytes <= at + block.bytes ? &block : nullptr;
  }
  // A communicator no longer knows it.
  void ends(const std::pair<const char *const, size_t> &known) {
    if (Block *block = find(known.first, known.second))
      --block->known;
  }
};
Allocated &allocated() {
  static auto *allocated = new Allocated; // threads may outlive the end
  return *allocated;
}

ncclResult_t said(const std::string &problem) {
  if (problem.empty())
    return ncclSuccess;
  complain(problem);
  return ncclInvalidUsage;
}

} // namespace

std::string Comm::add(char *memory, size_t bytes) {
  std::lock_guard lock(mutex_);
  if (!open_)
    return "memory for a communicator that is not open yet";
  std::lock_guard all(allocated().mutex);
  Allocated::Block *block = allocated().find(memory, bytes);
  if (!block)
    return "a communicator is told of memory that is not NCCL's";
  if (!known_.emplace(memory, bytes).second)
    return "a communicator is told of memory that it knows";
  ++block->known;
  return "";
}

std::string Comm::remove(const void *memory) {
  std::lock_guard lock(mutex_);
  auto found = known_.find(static_cast<const char *>(memory));
  if (found == known_.end())
    return "memory that the communicator was not told of";
  std::lock_guard all(allocated().mutex);
  allocated().ends(*found);
  known_.erase(found);
  return "";
}

void Comm::forget() {
  std::lock_guard all(allocated().mutex);
  for (const auto &known : known_)
    allocated().ends(known);
  known_.clear();
}

bool Comm::knows(const void *memory, size_t bytes) {
  std::lock_guard lock(mutex_);
  const char *begin = static_cast<const char *>(memory);
  auto next = known_.upper_bound(begin);
  return next != known_.begin() &&
         begin + bytes <= std::prev(next)->first + std::prev(next)->second;
}

} // namespace merak::cuda

using namespace merak::cuda;

extern "C" {

ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
  if (!device())
    return said("the stand-in has no device");
  *memory = device()->allocate(bytes);
  if (!*memory)
    return ncclUnhandledCudaError;
  std::lock_guard lock(allocated().mutex);
  allocated().blocks[static_cast<char *>(*memory)] = {bytes, 0};
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory) {
  {
    std::lock_guard lock(allocated().mutex);
    auto found = allocated().blocks.find(static_cast<char *>(memory));
    if (found == allocated().blocks.end())
      return said("the release of memory that is not NCCL's");
    if (found->second.known > 0)
      return said("the release of memory that communicators still know");
    allocated().blocks.erase(found);
  }
  device()->release(memory);
  return ncclSuccess;
}

// Handles are the memory.
ncclResult_t ncclCommRegister(const ncclComm_t handle, void *memory,
                              size_t bytes, void **known) {
  const std::shared_ptr<Comm> comm = commOf(handle);
  *known = memory;
  return said(comm ? comm->add(static_cast<char *>(memory), bytes)
                   : "memory for a communicator that has ended");
}

ncclResult_t ncclCommDeregister(const ncclComm_t handle, void *known) {
  const std::shared_ptr<Comm> comm = commOf(handle);
  return said(comm ? comm->remove(known)
                   : "memory for a communicator that has ended");
}

} // extern "C"
