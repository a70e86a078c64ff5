#include "runtime/core/MappedFile.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

// Mappings that the signal handler knows. Slots are taken and given back under
// a lock; the handler, which may take none, reads `begin` first and last.
struct Guarded {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> torn{false};
};
constexpr int kGuarded = 4096;
Guarded guarded[kGuarded];
std::mutex guardLock;
struct sigaction previous;

Guarded *guardOf(uintptr_t address) {
  for (Guarded &guard : guarded) {
    const uintptr_t begin = guard.begin.load();
    if (begin && address >= begin && address < guard.end.load())
      return &guard;
  }
  return nullptr;
}

// Puts a page of zeros where the file has none any more. Only calls of the
// kernel, so it may run anywhere.
void onMissingPage(int number, siginfo_t *info, void *context) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  Guarded *guard = info->si_code == BUS_ADRERR ? guardOf(address) : nullptr;
  if (guard) {
    // The system call itself: ThreadSanitizer would take mmap(), which it
    // intercepts, for a write to what other threads read there.
    if (syscall(SYS_mmap, address & ~(page - 1), page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1L, 0L) != -1) {
      guard->torn = true;
      errno = error;
      return;
    }
  }
  // None of ours: as if there were no handler here.
  if (previous.sa_flags & SA_SIGINFO && previous.sa_sigaction)
    return previous.sa_sigaction(number, info, context);
  std::signal(number, SIG_DFL);
  std::raise(number);
}

void installHandler() {
  struct sigaction action = {};
  action.sa_sigaction = onMissingPage;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &previous);
}

// -1 if so many files are mapped that no slot is left.
int guardMapping(const char *data, uint64_t size) {
  static std::once_flag once;
  std::call_once(once, installHandler);
  std::lock_guard<std::mutex> lock(guardLock);
  for (int i = 0; i < kGuarded; ++i)
    if (!guarded[i].begin.load()) {
      const auto begin = reinterpret_cast<uintptr_t>(data);
      guarded[i].torn = false;
      guarded[i].end = begin + size;
      guarded[i].begin = begin;
      return i;
    }
  return -1;
}

} // namespace

Result<std::shared_ptr<MappedFile>> MappedFile::open(const std::string &path) {
  // A pipe would wait for its writer.
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0)
    return Status::error(
        fmt::format("\"{}\": cannot open: {}", path, std::strerror(errno)));
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  Status status = file->map(fd);
  close(fd);
  if (!status.ok())
    return status;
  return file;
}

Status MappedFile::map(int fd) {
  auto fail = [&](const char *what) {
    return Status::error(
        fmt::format("\"{}\": {}: {}", path_, what, std::strerror(errno)));
  };
  struct stat info;
  if (fstat(fd, &info) != 0)
    return fail("cannot read its size");
  if (!S_ISREG(info.st_mode))
    return Status::error(fmt::format("\"{}\" is not a file", path_));
  size_ = static_cast<uint64_t>(info.st_size);
  if (size_ == 0)
    return {};
  void *data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) {
    size_ = 0;
    return fail("cannot map");
  }
  data_ = static_cast<const char *>(data);
  slot_ = guardMapping(data_, size_);
  return {};
}

Status MappedFile::intact() const {
  if (slot_ < 0 || !guarded[slot_].torn.load())
    return {};
  struct stat info;
  const bool there = stat(path_.c_str(), &info) == 0;
  return Status::error(fmt::format(
      "\"{}\" became shorter while it was read: expected {} bytes, found {}",
      path_, size_, there ? fmt::format("{}", info.st_size) : "no file"));
}

MappedFile::~MappedFile() {
  if (slot_ >= 0)
    guarded[slot_].begin = 0;
  if (data_)
    munmap(const_cast<char *>(data_), size_);
}

} // namespace merak::runtime
