#include "test/unit/cuda/nccl/Region.h"

#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace merak::cuda {

namespace {

constexpr size_t kHeader =
    (sizeof(Slot) * kMostMembers + 4095) / 4096 * size_t{4096};
constexpr size_t kBytes = kHeader + kMostMembers * kSlotBytes;

} // namespace

// Pages of zeros are what slots begin as.
std::string Region::create(size_t longest) {
  const int file = memfd_create("merak-nccl", MFD_CLOEXEC);
  if (file < 0)
    return "";
  const std::string words =
      "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  if (words.size() > longest || ftruncate(file, off_t(kBytes)) != 0) {
    close(file);
    return "";
  }
  return words;
}

std::unique_ptr<Region> Region::open(const std::string &words) {
  const int file = ::open(words.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0)
    return nullptr;
  void *memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_NORESERVE, file, 0);
  close(file);
  if (memory == MAP_FAILED)
    return nullptr;
  return std::unique_ptr<Region>(new Region(memory));
}

Region::Region(void *memory)
    : slots_(static_cast<Slot *>(memory)),
      data_(static_cast<char *>(memory) + kHeader) {}
Region::~Region() { munmap(slots_, kBytes); }

} // namespace merak::cuda
