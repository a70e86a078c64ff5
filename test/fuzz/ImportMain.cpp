// import-fuzz MODEL... and the options of Loop.h: the importer under mutations
// of real models.
#include "test/fuzz/ImportTarget.h"
#include "test/fuzz/Loop.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

using namespace merak::fuzz;

namespace {

Outcome import(const std::string &input) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(input.data()),
                                input.size())
             ? Outcome::Accepted
             : Outcome::Refused;
}

// One of the models as often as its size is small: a small one costs less and
// breaks as well, so all get about the same time.
size_t choose(const std::vector<std::string> &seeds, Random &random) {
  double left = 0;
  for (const std::string &seed : seeds)
    left += 1 / static_cast<double>(seed.size());
  left *= static_cast<double>(random() % (1u << 30)) /
          static_cast<double>(1u << 30);
  size_t which = 0;
  while (which + 1 < seeds.size() &&
         (left -= 1 / static_cast<double>(seeds[which].size())) >= 0)
    ++which;
  return which;
}

bool readFolder(const std::string &folder, std::vector<std::string> &files) {
  std::error_code missing;
  std::vector<std::string> paths;
  for (const auto &entry : std::filesystem::directory_iterator(folder, missing))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const std::string &path : paths)
    files.push_back(contents(path));
  return !missing && !paths.empty();
}

} // namespace

int main(int argc, char **argv) {
  LoopOptions options;
  if (!readArguments(argc, argv, options) || options.seeds.empty()) {
    std::fprintf(stderr, "usage: import-fuzz MODEL... [--executions=N] "
                         "[--from=N] [--seed=N] [--seconds=N] [--save=DIR] "
                         "[--replay=DIR]\n");
    return 2;
  }
  std::vector<std::string> seeds;
  for (const std::string &path : options.seeds) {
    seeds.push_back(contents(path));
    if (seeds.back().empty()) {
      std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
      return 1;
    }
  }
  std::sort(seeds.begin(), seeds.end(),
            [](const auto &a, const auto &b) { return a.size() < b.size(); });
  Target target;
  target.name = "import";
  target.suffix = ".onnx";
  target.make = [&](Random &random) {
    return mutate(seeds[choose(seeds, random)], seeds, random);
  };
  target.run = import;
  // Dialects and libraries are loaded before memory is bounded.
  target.begin = [&] { import(seeds.front()); };
  if (!options.replay.empty() && !readFolder(options.replay, target.kept)) {
    std::fprintf(stderr, "%s: no files\n", options.replay.c_str());
    return 1;
  }
  return runLoop(options, target);
}
