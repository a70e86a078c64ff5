// reader-fuzz --target=NAME and the options of Loop.h: everything else that
// reads files of a user, on damaged ones.
//
//   npy tokens sqlite safetensors     data and weights: what is accepted is
//   read
//                                     whole
//   cluster strategy schedule frontier links rate   texts
//   stragglers                        a text; small problems are planned for
//   trace PLAN                        a run's timeline, laid beside the plan
#include "passes/CostModel/Cluster.h"
#include "passes/Planning/PlanFrontier.h"
#include "passes/Planning/Schedule.h"
#include "passes/Planning/Strategy.h"
#include "passes/Stragglers/Report.h"
#include "runtime/checkpoint/Safetensors.h"
#include "runtime/data/DataSource.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/LinkOption.h"
#include "runtime/plan/RateProgram.h"
#include "runtime/report/Measured.h"
#include "test/fuzz/Loop.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <unistd.h>

using namespace merak;
using namespace merak::fuzz;
using namespace merak::runtime;
namespace fs = std::filesystem;

namespace {

std::string folder;
std::vector<std::string> files; // the seeds
LoadedPlan tracedPlan;

std::string scratch(const std::string &name, const std::string &bytes) {
  const std::string path = folder + "/" + name;
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

Outcome outcome(bool accepted) {
  return accepted ? Outcome::Accepted : Outcome::Refused;
}

// Reads every byte; a sum keeps the compiler from leaving it out.
void touch(const char *data, uint64_t bytes) {
  volatile char sum = 0;
  for (uint64_t i = 0; i < bytes; ++i)
    sum = static_cast<char>(sum + data[i]);
}

uint64_t bytesOf(planpb::DType dtype, const std::vector<int64_t> &shape) {
  auto bytes = static_cast<uint64_t>(dtypeSize(dtype));
  for (int64_t size : shape)
    bytes *= static_cast<uint64_t>(size);
  return bytes;
}

Outcome readNpy(const std::string &input) {
  auto array = openNpy(scratch("x.npy", input));
  if (array)
    touch(array->data, bytesOf(array->dtype, array->shape));
  return outcome(array.ok());
}

Outcome readSafetensors(const std::string &input) {
  auto file = openSafetensors(scratch("x.safetensors", input));
  if (file)
    for (const auto &[name, entry] : file->tensors)
      touch(entry.data, bytesOf(entry.dtype, entry.shape));
  return outcome(file.ok());
}

// Two inputs of ids, as a language model has.
planpb::PlanFile idsPlan() {
  planpb::PlanFile plan;
  plan.set_global_batch(2);
  for (const char *name : {"input_ids", "labels"}) {
    planpb::Input &input = *plan.add_inputs();
    input.set_name(name);
    input.set_dtype(planpb::I64);
    input.add_shape(2);
    input.add_shape(4);
    input.set_batched(true);
    input.set_limit(1000);
  }
  return plan;
}

Outcome readSamples(const std::string &path, const DataOptions &more) {
  static const planpb::PlanFile plan = idsPlan();
  DataOptions options = more;
  options.path = path;
  auto data = openData(plan, options);
  if (!data)
    return Outcome::Refused;
  const layout::Box whole{{0, 0}, {0, 0}, {2, 4}};
  int64_t values[8];
  bool read = true;
  for (int64_t step : {int64_t{0}, int64_t{1}, int64_t{7}, INT64_MAX / 4})
    for (const planpb::Input &input : plan.inputs())
      read &= (*data)->read(input.name(), step, {whole}, values, {2, 4}).ok();
  return outcome(read);
}

// The first bytes stand for the options, which a user types.
Outcome readTokens(const std::string &input) {
  DataOptions options;
  uint64_t word = 0;
  for (size_t i = 0; i < 8 && i < input.size(); ++i)
    word = word << 8 | static_cast<unsigned char>(input[i]);
  options.tokenBytes = word % 2 ? 2 : 4;
  // Mostly what somebody would type.
  options.labelShift = word % 8 ? static_cast<int64_t>(word >> 8 & 3)
                                : static_cast<int64_t>(word >> 1);
  if (word % 4 == 0)
    options.shuffle = word;
  return readSamples(
      scratch("x.bin", input.size() > 8 ? input.substr(8) : std::string()),
      options);
}

Outcome readTable(const std::string &input) {
  return readSamples(scratch("x.sqlite", input), {});
}

Outcome readTrace(const std::string &input) {
  return outcome(report::measuredTimeline(tracedPlan, input).ok());
}

Outcome readRate(const std::string &input) {
  auto rate = RateProgram::parse(input);
  if (rate)
    for (int64_t step : {0, 1, 100})
      (void)rate->at(step);
  return outcome(rate.ok());
}

Outcome readSchedule(const std::string &input) {
  return outcome(planning::parseSchedule(input, "x.json").ok());
}

Outcome readStragglers(const std::string &input) {
  const auto found = stragglers::parseDescription(input, "x.json", "");
  if (!found)
    return Outcome::Refused;
  stragglers::ReplanOptions options;
  options.search.threads = 1;
  options.search.steps = options.search.nodes = 100;
  for (const stragglers::Situation &situation : found->situations) {
    const stragglers::Problem &problem = situation.problem;
    if (problem.devices.size() > 128)
      continue;
    const auto findings = stragglers::findingsOf(
        situation.name, problem,
        found->plan ? *found->plan : stragglers::uniformPlan(problem), options);
    if (findings &&
        !stragglers::verify(problem, findings->replanning.best().plan).ok())
      std::abort();
  }
  return Outcome::Accepted;
}

struct Reader {
  Outcome (*run)(const std::string &input);
  bool text;
};
const std::map<std::string, Reader> kReaders = {
    {"npy", {readNpy, false}},
    {"tokens", {readTokens, false}},
    {"sqlite", {readTable, false}},
    {"safetensors", {readSafetensors, false}},
    {"trace", {readTrace, true}},
    {"rate", {readRate, true}},
    {"schedule", {readSchedule, true}},
    {"stragglers", {readStragglers, true}},
    {"cluster",
     {[](const std::string &input) {
        return outcome(costmodel::parseCluster(input, "x.json").ok());
      },
      true}},
    {"strategy",
     {[](const std::string &input) {
        return outcome(planning::Strategy::parse(input, "x.json").ok());
      },
      true}},
    {"frontier",
     {[](const std::string &input) {
        return outcome(planning::PlanFrontier::parse(input, "x.json").ok());
      },
      true}},
    {"links",
     {[](const std::string &input) { return outcome(parseLinks(input).ok()); },
      true}},
};

// The header of a safetensors file is a text between bytes.
std::string mutateHeader(const std::string &file, Random &random) {
  uint64_t length = 0;
  if (file.size() < 8 || random() % 4 == 0)
    return mutate(file, files, random);
  std::memcpy(&length, file.data(), 8);
  if (length > file.size() - 8)
    return mutate(file, files, random);
  const std::string header = mutateText(file.substr(8, length), random);
  length = header.size();
  std::string out(reinterpret_cast<const char *>(&length), 8);
  return out + header +
         file.substr(8 + (file.size() - 8 < length ? file.size() - 8 : length));
}

std::string damaged(const std::string &name, const Reader &reader,
                    Random &random) {
  const std::string &seed = files[random() % files.size()];
  if (name == "safetensors" || name == "npy")
    return name == "npy" && random() % 2 ? mutateText(seed, random)
                                         : mutateHeader(seed, random);
  if (name == "tokens") {
    std::string options(8, '\0');
    for (char &c : options)
      c = static_cast<char>(random());
    return options + mutate(seed, files, random);
  }
  return reader.text ? mutateText(seed, random) : mutate(seed, files, random);
}

int usage() {
  std::string names;
  for (const auto &[name, reader] : kReaders)
    names += (names.empty() ? "" : "|") + name;
  std::fprintf(stderr,
               "usage: reader-fuzz FILE... --target=%s [--executions=N] "
               "[--from=N] [--seed=N] [--seconds=N] [--save=DIR]\n",
               names.c_str());
  return 2;
}

} // namespace

int main(int argc, char **argv) {
  LoopOptions options;
  if (!readArguments(argc, argv, options) || options.seeds.empty())
    return usage();
  const auto found = kReaders.find(options.target);
  if (found == kReaders.end())
    return usage();
  for (const std::string &path : options.seeds) {
    if (options.target == "trace" && fs::is_directory(path)) {
      auto plan = loadPlan(path);
      if (!plan) {
        std::fprintf(stderr, "%s\n", plan.status().str().c_str());
        return 1;
      }
      tracedPlan = std::move(*plan);
      continue;
    }
    files.push_back(contents(path));
  }
  const fs::path base =
      fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  folder = (base / ("reader-fuzz-" + std::to_string(getpid()))).string();
  fs::create_directories(folder);
  Target target;
  target.name = options.target;
  target.suffix = ".bin";
  target.make = [&](Random &random) {
    return damaged(options.target, found->second, random);
  };
  target.run = found->second.run;
  const int code = runLoop(options, target);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return code;
}
