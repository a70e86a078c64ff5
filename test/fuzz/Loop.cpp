#include "test/fuzz/Loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace merak::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

// What a worker may take on top of its address space at the start, and how
// long one input may last: naps of the watcher, so that a fuzzer that was
// stopped for a while goes on where it was.
constexpr uint64_t kMemoryBound = uint64_t{1} << 30;
constexpr int kNapMicroseconds = 5000, kHangNaps = 4000;
// Workers are replaced, so that a leak shows as growth of one.
constexpr uint64_t kExecutionsPerWorker = 20000;

// Shared with the worker.
struct Progress {
  std::atomic<uint64_t> next, accepted, wrong;
};

// The sanitizer's shadow memory is larger than any bound.
constexpr bool isBounded() {
#ifdef __SANITIZE_ADDRESS__
  return false;
#else
  return true;
#endif
}

uint64_t addressSpace() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void boundMemory() {
  if (isBounded()) {
    const uint64_t bound = addressSpace() + kMemoryBound;
    const rlimit limit = {bound, bound};
    setrlimit(RLIMIT_AS, &limit);
  }
  const rlimit noCore = {0, 0};
  setrlimit(RLIMIT_CORE, &noCore);
}

std::string inputOf(const LoopOptions &options, const Target &target,
                    uint64_t index) {
  if (index < target.kept.size())
    return target.kept[index];
  index += options.from - target.kept.size();
  Random random(options.seed * 0x9e3779b97f4a7c15u + index);
  return target.make(random);
}

[[noreturn]] void work(const LoopOptions &options, const Target &target,
                       Progress &progress) {
  if (target.begin)
    target.begin();
  boundMemory();
  for (uint64_t done = 0; done < kExecutionsPerWorker; ++done) {
    const uint64_t index = progress.next;
    if (index >= options.executions)
      break;
    switch (target.run(inputOf(options, target, index))) {
    case Outcome::Refused:
      break;
    case Outcome::Accepted:
      ++progress.accepted;
      break;
    case Outcome::Wrong:
      ++progress.wrong;
      _exit(1); // as a crash: the watcher keeps the input
    }
    progress.next = index + 1;
  }
  _exit(0);
}

unsigned long long number(uint64_t value) { return value; }

// One worker at a time, and what became of it.
class Loop {
public:
  Loop(const LoopOptions &options, const Target &target)
      : options_(options), target_(target) {}

  int run() {
    void *shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
      std::perror("mmap");
      return 1;
    }
    progress_ = new (shared) Progress{};
    began_ = Clock::now();
    while (progress_->next < options_.executions && !late_)
      if (!runWorker())
        return 1;
    std::printf("%llu executions of %s, %llu accepted, %llu crashed, hung, "
                "wrong or above 1 GiB, %.0f s, at most %ld MiB in memory\n",
                number(progress_->next), target_.name.c_str(),
                number(progress_->accepted), number(found_), elapsed(),
                largest_ >> 10);
    std::printf("%d passed, %llu failed\n", found_ ? 0 : 1, number(found_));
    return found_ ? 1 : 0;
  }

private:
  double elapsed() const {
    return std::chrono::duration<double>(Clock::now() - began_).count();
  }

  bool runWorker() {
    std::fflush(nullptr);
    const pid_t worker = fork();
    if (worker == 0)
      work(options_, target_, *progress_);
    if (worker < 0) {
      std::perror("fork");
      return false;
    }
    int status = 0;
    const bool hung = watch(worker, status);
    report();
    if (late_ || (!hung && WIFEXITED(status) && WEXITSTATUS(status) == 0))
      return true;
    keep(hung                                             ? "hang"
         : WIFEXITED(status) && progress_->wrong > wrong_ ? "wrong result"
                                                          : "crash",
         WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit");
    wrong_ = progress_->wrong;
    return true;
  }

  // Until it ends, or is ended. True if it hung.
  bool watch(pid_t worker, int &status) {
    uint64_t last = progress_->next;
    rusage used{};
    int naps = 0;
    bool hung = false;
    while (wait4(worker, &status, WNOHANG, &used) == 0) {
      usleep(kNapMicroseconds);
      late_ =
          options_.seconds && elapsed() > static_cast<double>(options_.seconds);
      if (progress_->next != last) {
        last = progress_->next;
        naps = 0;
      }
      hung = ++naps > kHangNaps;
      if (hung || late_) {
        kill(worker, SIGKILL);
        wait4(worker, &status, 0, &used);
        break;
      }
    }
    largest_ = std::max(largest_, used.ru_maxrss);
    return hung;
  }

  void report() {
    if (progress_->next / 50000 == reported_)
      return;
    reported_ = progress_->next / 50000;
    std::printf("-- %llu executions, %llu accepted, %.0f s\n",
                number(progress_->next), number(progress_->accepted),
                elapsed());
  }

  // The input that did it, for a look and for --replay.
  void keep(const char *what, const char *how) {
    const uint64_t index = progress_->next;
    const std::string path = options_.save + "/found-" + target_.name + "-" +
                             std::to_string(index) + target_.suffix;
    const std::string input = inputOf(options_, target_, index);
    std::ofstream(path, std::ios::binary)
        .write(input.data(), static_cast<std::streamsize>(input.size()));
    std::printf("%s in execution %llu (%s): %s\n", what, number(index), how,
                path.c_str());
    ++found_;
    progress_->next = index + 1;
  }

  const LoopOptions &options_;
  const Target &target_;
  Progress *progress_ = nullptr;
  Clock::time_point began_;
  uint64_t found_ = 0, reported_ = 0, wrong_ = 0;
  long largest_ = 0; // KiB in memory, of any worker
  bool late_ = false;
};

} // namespace

bool readArguments(int argc, char **argv, LoopOptions &options) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equal = text.find('=');
    if (text.rfind("--", 0) != 0) {
      options.seeds.push_back(text);
      continue;
    }
    const std::string name = text.substr(0, equal);
    const std::string value = equal == text.npos ? "" : text.substr(equal + 1);
    const uint64_t count = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--save")
      options.save = value;
    else if (name == "--replay")
      options.replay = value;
    else if (name == "--target")
      options.target = value;
    else if (name == "--from")
      options.from = count;
    else if (name == "--executions")
      options.executions = count;
    else if (name == "--seed")
      options.seed = count;
    else if (name == "--seconds")
      options.seconds = count;
    else
      return false;
  }
  return true;
}

std::string contents(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

int runLoop(LoopOptions options, const Target &target) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0); // what was found is seen at once
  options.executions += target.kept.size();
  return Loop(options, target).run();
}

} // namespace merak::fuzz
