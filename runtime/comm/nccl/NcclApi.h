// The functions of libnccl that ranks call, found when the library is opened
// (private to this folder).
#pragma once

#include "runtime/backends/cuda/Library.h"
#include "runtime/core/Status.h"

#include <nccl.h>

namespace merak::runtime {

#define MERAK_NCCL_SYMBOLS(X)                                                  \
  X(GetUniqueId)                                                               \
  X(CommInitRankConfig)                                                        \
  X(CommAbort)                                                                 \
  X(CommDestroy)                                                               \
  X(CommFinalize)                                                              \
  X(CommGetAsyncError)                                                         \
  X(GetErrorString)                                                            \
  X(GetLastError)                                                              \
  X(GetVersion)                                                                \
  X(GroupStart)                                                                \
  X(GroupEnd)                                                                  \
  X(AllReduce)                                                                 \
  X(AllGather)                                                                 \
  X(ReduceScatter)                                                             \
  X(Broadcast)                                                                 \
  X(Send)                                                                      \
  X(Recv)                                                                      \
  X(MemAlloc)                                                                  \
  X(MemFree)                                                                   \
  X(CommRegister)                                                              \
  X(CommDeregister)

struct NcclApi {
  cuda::Library library;
#define MERAK_SYMBOL(name) decltype(&::nccl##name) name = nullptr;
  MERAK_NCCL_SYMBOLS(MERAK_SYMBOL)
#undef MERAK_SYMBOL

  // One sentence if the library is missing or too old.
  Status open();
  // What the library says; a call that is in progress is none.
  Status check(ncclResult_t result, const char *what) const;
};

} // namespace merak::runtime
