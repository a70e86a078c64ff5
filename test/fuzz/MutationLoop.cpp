// A fuzzer of its own: mutates real models and imports them in a worker process
// with a bound on its memory, watched for crashes and hangs.
//
//   import-fuzz MODEL... [--executions=N] [--seed=N] [--seconds=N] [--save=DIR]
//
// Exit code 0 if nothing crashed, hung or went over the bound, else 1; what did
// so is saved. The same seed gives the same inputs.
#include "test/fuzz/ImportTarget.h"
#include "test/fuzz/Mutate.h"

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

using namespace merak::fuzz;
using Clock = std::chrono::steady_clock;

namespace {

// What a worker may take on top of its address space at the start, and how
// long one import may last.
constexpr uint64_t kMemoryBound = uint64_t{1} << 30;
constexpr int kHangSeconds = 20;
// Workers are replaced, so that a leak shows as growth of one.
constexpr uint64_t kExecutionsPerWorker = 20000;

// Shared with the worker.
struct Progress {
  std::atomic<uint64_t> next, imported;
};

struct Options {
  std::vector<std::string> models;
  uint64_t executions = 10000, seed = 1, seconds = 0;
  std::string save = ".";
};

// The input of execution `index`; independent of all before it.
std::string inputOf(const Options &options,
                    const std::vector<std::string> &seeds, uint64_t index) {
  Random random(options.seed * 0x9e3779b97f4a7c15u + index);
  // Small models more often: they cost less and break as well.
  size_t which = random() % seeds.size();
  which = std::min(which, size_t(random() % seeds.size()));
  return mutate(seeds[which], seeds, random);
}

uint64_t addressSpace() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void work(const Options &options,
                       const std::vector<std::string> &seeds,
                       Progress &progress) {
  // Dialects and libraries are loaded before the bound is set.
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(seeds[0].data()),
                         seeds[0].size());
  const uint64_t bound = addressSpace() + kMemoryBound;
  const rlimit limit = {bound, bound};
  setrlimit(RLIMIT_AS, &limit);
  const rlimit noCore = {0, 0};
  setrlimit(RLIMIT_CORE, &noCore);
  for (uint64_t done = 0; done < kExecutionsPerWorker; ++done) {
    const uint64_t index = progress.next;
    if (index >= options.executions)
      break;
    const std::string input = inputOf(options, seeds, index);
    progress.imported += LLVMFuzzerTestOneInput(
        reinterpret_cast<const uint8_t *>(input.data()), input.size());
    progress.next = index + 1;
  }
  _exit(0);
}

bool readArguments(int argc, char **argv, Options &options) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equal = text.find('=');
    if (text.rfind("--", 0) != 0) {
      options.models.push_back(text);
      continue;
    }
    const std::string name = text.substr(0, equal);
    const std::string value = equal == text.npos ? "" : text.substr(equal + 1);
    if (name == "--save")
      options.save = value;
    else if (name == "--executions")
      options.executions = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--seed")
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    else if (name == "--seconds")
      options.seconds = std::strtoull(value.c_str(), nullptr, 10);
    else
      return false;
  }
  return !options.models.empty();
}

} // namespace

int main(int argc, char **argv) {
  Options options;
  if (!readArguments(argc, argv, options)) {
    std::fprintf(stderr, "usage: import-fuzz MODEL... [--executions=N] "
                         "[--seed=N] [--seconds=N] [--save=DIR]\n");
    return 2;
  }
  std::vector<std::string> seeds;
  for (const std::string &path : options.models) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file),
                       std::istreambuf_iterator<char>());
    if (seeds.back().empty()) {
      std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
      return 1;
    }
  }
  std::sort(seeds.begin(), seeds.end(),
            [](const auto &a, const auto &b) { return a.size() < b.size(); });
  auto *progress = static_cast<Progress *>(
      mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (progress == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  new (progress) Progress{};
  const auto began = Clock::now();
  auto elapsed = [&] {
    return std::chrono::duration<double>(Clock::now() - began).count();
  };
  uint64_t found = 0, reported = 0;
  bool late = false;
  while (progress->next < options.executions && !late) {
    const pid_t worker = fork();
    if (worker == 0)
      work(options, seeds, *progress);
    if (worker < 0) {
      std::perror("fork");
      return 1;
    }
    int status = 0;
    uint64_t last = progress->next;
    auto moved = Clock::now();
    bool hung = false;
    while (waitpid(worker, &status, WNOHANG) == 0) {
      usleep(5000);
      late =
          options.seconds && elapsed() > static_cast<double>(options.seconds);
      if (progress->next != last) {
        last = progress->next;
        moved = Clock::now();
      }
      hung = Clock::now() - moved > std::chrono::seconds(kHangSeconds);
      if (hung || late) {
        kill(worker, SIGKILL);
        waitpid(worker, &status, 0);
        break;
      }
    }
    if (progress->next / 50000 != reported) {
      reported = progress->next / 50000;
      std::printf("-- %llu executions, %llu imported, %.0f s\n",
                  static_cast<unsigned long long>(progress->next),
                  static_cast<unsigned long long>(progress->imported),
                  elapsed());
      std::fflush(stdout);
    }
    if (late || (!hung && WIFEXITED(status) && WEXITSTATUS(status) == 0))
      continue;
    const uint64_t index = progress->next;
    const std::string path =
        options.save + "/found-" + std::to_string(index) + ".onnx";
    const std::string input = inputOf(options, seeds, index);
    std::ofstream(path, std::ios::binary)
        .write(input.data(), static_cast<std::streamsize>(input.size()));
    std::printf("%s in execution %llu (%s): %s\n", hung ? "hang" : "crash",
                static_cast<unsigned long long>(index),
                WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit",
                path.c_str());
    std::fflush(stdout);
    ++found;
    progress->next = index + 1;
  }
  std::printf("%llu executions, %llu accepted, %llu crashed, hung or above "
              "1 GiB, %.0f s\n",
              static_cast<unsigned long long>(progress->next),
              static_cast<unsigned long long>(progress->imported),
              static_cast<unsigned long long>(found), elapsed());
  std::printf("%d passed, %llu failed\n", found ? 0 : 1,
              static_cast<unsigned long long>(found));
  return found ? 1 : 0;
}
