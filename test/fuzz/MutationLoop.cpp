// A fuzzer of its own: mutates real models and imports them in a worker process
// with a bound on its memory, watched for crashes and hangs.
//
//   import-fuzz MODEL... [--executions=N] [--from=N] [--seed=N] [--seconds=N]
//               [--save=DIR] [--replay=DIR]
//
// Exit code 0 if nothing crashed, hung or went over the bound, else 1; what did
// so is saved. The same seed gives the same inputs; --from goes on with a later
// one. --replay imports the files of a folder as they are, before the others.
#include "test/fuzz/ImportTarget.h"
#include "test/fuzz/Mutate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
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
// long one import may last: naps of the watcher, so that a fuzzer that was
// stopped for a while goes on where it was.
constexpr uint64_t kMemoryBound = uint64_t{1} << 30;
constexpr int kNapMicroseconds = 5000, kHangNaps = 4000;
// Workers are replaced, so that a leak shows as growth of one.
constexpr uint64_t kExecutionsPerWorker = 20000;

// Shared with the worker.
struct Progress {
  std::atomic<uint64_t> next, imported;
};

struct Options {
  std::vector<std::string> models;
  uint64_t executions = 10000, from = 0, seed = 1, seconds = 0;
  std::string save = ".", replay;
};

// What is imported: seeds to mutate and, before them, inputs to keep.
struct Corpus {
  std::vector<std::string> seeds, kept;
  double weight = 0; // sum of 1 / size over the seeds
};

std::string contents(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

// The input of execution `index`; independent of all before it.
std::string inputOf(const Options &options, const Corpus &corpus,
                    uint64_t index) {
  if (index < corpus.kept.size())
    return corpus.kept[index];
  index += options.from - corpus.kept.size();
  const std::vector<std::string> &seeds = corpus.seeds;
  Random random(options.seed * 0x9e3779b97f4a7c15u + index);
  // As often as its size is small: a small one costs less and breaks as well,
  // so all get about the same time.
  double left = corpus.weight * static_cast<double>(random() % (1u << 30)) /
                static_cast<double>(1u << 30);
  size_t which = 0;
  while (which + 1 < seeds.size() &&
         (left -= 1 / static_cast<double>(seeds[which].size())) >= 0)
    ++which;
  return mutate(seeds[which], seeds, random);
}

uint64_t addressSpace() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

[[noreturn]] void work(const Options &options, const Corpus &corpus,
                       Progress &progress) {
  // Dialects and libraries are loaded before the bound is set.
  const std::string &first = corpus.seeds.front();
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(first.data()),
                         first.size());
  const uint64_t bound = addressSpace() + kMemoryBound;
  const rlimit limit = {bound, bound};
  setrlimit(RLIMIT_AS, &limit);
  const rlimit noCore = {0, 0};
  setrlimit(RLIMIT_CORE, &noCore);
  for (uint64_t done = 0; done < kExecutionsPerWorker; ++done) {
    const uint64_t index = progress.next;
    if (index >= options.executions)
      break;
    const std::string input = inputOf(options, corpus, index);
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
    else if (name == "--replay")
      options.replay = value;
    else if (name == "--from")
      options.from = std::strtoull(value.c_str(), nullptr, 10);
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
                         "[--from=N] [--seed=N] [--seconds=N] [--save=DIR] "
                         "[--replay=DIR]\n");
    return 2;
  }
  Corpus corpus;
  std::vector<std::string> &seeds = corpus.seeds;
  for (const std::string &path : options.models) {
    seeds.push_back(contents(path));
    if (seeds.back().empty()) {
      std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
      return 1;
    }
    corpus.weight += 1 / static_cast<double>(seeds.back().size());
  }
  if (!options.replay.empty()) {
    std::error_code missing;
    std::vector<std::string> paths;
    for (const auto &entry :
         std::filesystem::directory_iterator(options.replay, missing))
      paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const std::string &path : paths)
      corpus.kept.push_back(contents(path));
    if (missing || paths.empty()) {
      std::fprintf(stderr, "%s: no files\n", options.replay.c_str());
      return 1;
    }
    options.executions += corpus.kept.size();
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
  long largest = 0; // KiB in memory, of any worker
  bool late = false;
  while (progress->next < options.executions && !late) {
    const pid_t worker = fork();
    if (worker == 0)
      work(options, corpus, *progress);
    if (worker < 0) {
      std::perror("fork");
      return 1;
    }
    int status = 0;
    uint64_t last = progress->next;
    rusage used{};
    int naps = 0;
    bool hung = false;
    while (wait4(worker, &status, WNOHANG, &used) == 0) {
      usleep(kNapMicroseconds);
      late =
          options.seconds && elapsed() > static_cast<double>(options.seconds);
      if (progress->next != last) {
        last = progress->next;
        naps = 0;
      }
      hung = ++naps > kHangNaps;
      if (hung || late) {
        kill(worker, SIGKILL);
        wait4(worker, &status, 0, &used);
        break;
      }
    }
    largest = std::max(largest, used.ru_maxrss);
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
    const std::string input = inputOf(options, corpus, index);
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
              "1 GiB, %.0f s, at most %ld MiB in memory\n",
              static_cast<unsigned long long>(progress->next),
              static_cast<unsigned long long>(progress->imported),
              static_cast<unsigned long long>(found), elapsed(), largest >> 10);
  std::printf("%d passed, %llu failed\n", found ? 0 : 1,
              static_cast<unsigned long long>(found));
  return found ? 1 : 0;
}
