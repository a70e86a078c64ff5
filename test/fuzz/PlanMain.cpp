// plan-fuzz PLAN... --target=plan|repaired and the options of Loop.h.
//
//   plan      files of plans as they are after damage: loading refuses them, or
//             finds the same plan
//   repaired  the same with all checksums put right: what the verifier calls
//             sound is printed, drawn, simulated, compared, reported and run,
//             and each of these ends with exit code 0 or 1
#include "runtime/launch/RunMain.h"
#include "runtime/plan/Plan.h"
#include "runtime/plan/Verify.h"
#include "test/fuzz/Loop.h"
#include "tools/devices/Devices.h"
#include "tools/merak-plan/PlanTool.h"

#include <google/protobuf/util/message_differencer.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <unistd.h>

using namespace merak;
using namespace merak::fuzz;
namespace fs = std::filesystem;

namespace {

constexpr size_t kTrailer = 10; // the checksum that closes a manifest

// A plan in memory, and a copy of it on disk in which one file is changed.
struct Seed {
  std::string original, copy;
  std::map<std::string, std::string> files;
  std::vector<std::string> names; // of files that are changed
  LoadedPlan plan;
};

std::vector<Seed> seeds;
std::vector<std::string> lenders; // all files, to take pieces from

void writeFile(const std::string &path, const std::string &bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

bool readSeed(const std::string &path) {
  auto plan = loadPlan(path);
  if (!plan || !verifyPlan(*plan).ok()) {
    std::fprintf(stderr, "%s: is no sound plan\n", path.c_str());
    return false;
  }
  Seed seed;
  seed.original = path;
  seed.plan = std::move(*plan);
  seed.names = {"plan.pb"};
  for (const std::string &name : seed.plan.file.programs())
    seed.names.push_back(name);
  for (const auto &entry : fs::directory_iterator(path))
    seed.files[entry.path().filename()] = contents(entry.path());
  for (const std::string &name : seed.names)
    lenders.push_back(seed.files[name]);
  seeds.push_back(std::move(seed));
  return true;
}

// Which plan, which file, and its bytes: an input of the loop.
std::string pack(size_t seed, size_t file, const std::string &bytes) {
  return {std::string() + static_cast<char>(seed) + static_cast<char>(file) +
          bytes};
}

std::string damage(Random &random) {
  const size_t which = random() % seeds.size();
  const Seed &seed = seeds[which];
  const size_t file = random() % seed.names.size();
  std::string bytes = seed.files.at(seed.names[file]);
  if (file == 0)
    bytes.resize(bytes.size() - kTrailer);
  return pack(which, file, mutate(bytes, lenders, random));
}

std::string closed(std::string manifest) {
  const uint64_t sum = planChecksum(manifest.data(), manifest.size());
  manifest += "\xc9\x01";
  manifest.append(reinterpret_cast<const char *>(&sum), 8);
  return manifest;
}

// Every checksum as the damaged file wants it.
void repair(const Seed &seed, size_t file, const std::string &bytes) {
  if (file == 0)
    return writeFile(seed.copy + "/plan.pb", closed(bytes));
  const std::string &name = seed.names[file];
  planpb::PlanFile manifest = seed.plan.file;
  manifest.clear_checksum();
  for (planpb::FileCheck &check : *manifest.mutable_files())
    if (check.name() == name) {
      check.set_bytes(bytes.size());
      check.set_checksum(planChecksum(bytes.data(), bytes.size()));
    }
  writeFile(seed.copy + "/" + name, bytes);
  writeFile(seed.copy + "/plan.pb", closed(manifest.SerializeAsString()));
}

void restore(const Seed &seed, size_t file) {
  for (const std::string &name : {std::string("plan.pb"), seed.names[file]})
    writeFile(seed.copy + "/" + name, seed.files.at(name));
}

bool samePlan(const LoadedPlan &a, const LoadedPlan &b) {
  using google::protobuf::util::MessageDifferencer;
  if (!MessageDifferencer::Equals(a.file, b.file) ||
      a.programs.size() != b.programs.size())
    return false;
  for (size_t i = 0; i < a.programs.size(); ++i)
    if (!MessageDifferencer::Equals(a.programs[i], b.programs[i]))
      return false;
  return true;
}

Outcome loadDamaged(const std::string &input) {
  const Seed &seed = seeds[static_cast<size_t>(input[0])];
  const auto file = static_cast<size_t>(input[1]);
  std::string bytes = input.substr(2);
  if (file == 0)
    bytes += seed.files.at("plan.pb").substr(seed.files.at("plan.pb").size() -
                                             kTrailer);
  writeFile(seed.copy + "/" + seed.names[file], bytes);
  auto plan = loadPlan(seed.copy);
  restore(seed, file);
  if (!plan)
    return Outcome::Refused;
  return samePlan(*plan, seed.plan) ? Outcome::Accepted : Outcome::Wrong;
}

int tool(const std::vector<std::string> &arguments) {
  std::vector<const char *> argv = {"merak-plan"};
  for (const std::string &argument : arguments)
    argv.push_back(argument.c_str());
  std::ostringstream out, err;
  return planToolMain(static_cast<int>(argv.size()), argv.data(), out, err);
}

int runPlan(const std::string &plan) {
  std::vector<std::string> arguments = {"merak-run", plan, "--data=synthetic",
                                        "--steps=2", "--threads=1"};
  std::vector<char *> argv;
  for (std::string &argument : arguments)
    argv.push_back(argument.data());
  return runtime::runMain(static_cast<int>(argv.size()), argv.data(),
                          deviceBackends());
}

Outcome useRepaired(const std::string &input) {
  const Seed &seed = seeds[static_cast<size_t>(input[0])];
  const auto file = static_cast<size_t>(input[1]);
  repair(seed, file, input.substr(2));
  const std::string &plan = seed.copy;
  const std::string page = plan + ".html";
  bool fine = true;
  auto ends = [&](int code) { fine &= code == 0 || code == 1; };
  // A broken plan is printed and compared too.
  ends(tool({"print", plan}));
  ends(tool({"diff", seed.original, plan}));
  const int sound = tool({"verify", plan});
  ends(sound);
  // These check for themselves what they need.
  ends(tool({"draw", plan}));
  ends(tool({"simulate", plan, "--detailed"}));
  ends(tool({"report", plan, "-o", page}));
  ends(runPlan(plan));
  restore(seed, file);
  return !fine        ? Outcome::Wrong
         : sound == 0 ? Outcome::Accepted
                      : Outcome::Refused;
}

// Plans that are changed lie in memory.
void copySeeds(const std::string &folder) {
  for (size_t i = 0; i < seeds.size(); ++i) {
    seeds[i].copy = folder + "/" + std::to_string(i) + ".plan";
    fs::create_directories(seeds[i].copy);
    for (const auto &[name, bytes] : seeds[i].files)
      writeFile(seeds[i].copy + "/" + name, bytes);
  }
}

} // namespace

int main(int argc, char **argv) {
  LoopOptions options;
  if (!readArguments(argc, argv, options) || options.seeds.empty() ||
      (options.target != "plan" && options.target != "repaired")) {
    std::fprintf(stderr, "usage: plan-fuzz PLAN... --target=plan|repaired "
                         "[--executions=N] [--from=N] [--seed=N] "
                         "[--seconds=N] [--save=DIR]\n");
    return 2;
  }
  for (const std::string &path : options.seeds)
    if (!readSeed(path))
      return 1;
  const fs::path base =
      fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  const std::string folder =
      (base / ("plan-fuzz-" + std::to_string(getpid()))).string();
  copySeeds(folder);
  setenv("MERAK_WATCHDOG_SECONDS", "10", 1);
  Target target;
  target.name = options.target;
  target.suffix = ".bin";
  target.make = damage;
  target.run = options.target == "plan" ? loadDamaged : useRepaired;
  // What tools say is not looked at.
  target.begin = [&] {
    copySeeds(folder);
    const int none = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(none, STDOUT_FILENO);
    dup2(none, STDERR_FILENO);
  };
  const int code = runLoop(options, target);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return code;
}
