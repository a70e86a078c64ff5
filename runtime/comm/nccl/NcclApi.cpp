#include "runtime/comm/nccl/NcclApi.h"

#include "runtime/comm/nccl/NcclWorld.h"

#include <fmt/format.h>

#include <cstdlib>

namespace merak::runtime {
namespace {

// The first with memory that communicators know (ncclCommRegister).
constexpr int kOldest = NCCL_VERSION(2, 19, 0);

std::vector<std::string> libraryNames() {
  if (const char *path = std::getenv("MERAK_NCCL_LIBRARY"))
    return {path};
  return {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};
}

} // namespace

Status NcclApi::open() {
  MERAK_RETURN_IF_ERROR(library.open(libraryNames(), "NCCL"));
#define MERAK_SYMBOL(name)                                                     \
  name = reinterpret_cast<decltype(name)>(library.symbol("nccl" #name));
  MERAK_NCCL_SYMBOLS(MERAK_SYMBOL)
#undef MERAK_SYMBOL
  MERAK_RETURN_IF_ERROR(library.complete());
  int version = 0;
  MERAK_RETURN_IF_ERROR(check(GetVersion(&version), "ncclGetVersion"));
  if (version < kOldest)
    return Status::error(
        fmt::format("NCCL is of version {}, 2.19 or newer is needed", version));
  return {};
}

Status NcclApi::check(ncclResult_t result, const char *what) const {
  if (result == ncclSuccess || result == ncclInProgress)
    return {};
  const char *detail = GetLastError(nullptr);
  return Status::error(fmt::format("{}: {}{}{}", what, GetErrorString(result),
                                   detail && *detail ? ": " : "",
                                   detail ? detail : ""));
}

std::string ncclVersions() {
  const std::string built = fmt::format("NCCL: built with {}.{}.{}", NCCL_MAJOR,
                                        NCCL_MINOR, NCCL_PATCH);
  cuda::Library library;
  if (Status status = library.open(libraryNames(), "NCCL"); !status.ok())
    return built + ", not found: " + status.messages().front();
  auto get = reinterpret_cast<decltype(&::ncclGetVersion)>(
      library.symbol("ncclGetVersion"));
  int version = 0;
  if (!get || get(&version) != ncclSuccess)
    return built + ", found, of no known version";
  return fmt::format("{}, found {}.{}.{}", built, version / 10000,
                     version / 100 % 100, version % 100);
}

} // namespace merak::runtime
