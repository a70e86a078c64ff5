#include "tools/merak-bench/BenchTool.h"

#include "passes/CostModel/PlanCosts.h"
#include "runtime/plan/Verify.h"
#include "tools/merak-bench/Measure.h"
#include "tools/merak-bench/SampleFile.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace merak::bench {
namespace {

struct Options {
  std::string output, backend = "cpu";
  std::vector<std::string> plans;
  int ranks = 0, threads = 1; // 0 ranks: two of a host, one of a device
  bool quick = false, quiet = false;
};

constexpr const char *kComputeSlowdown = "computation while communicating";
constexpr const char *kCommunicationSlowdown = "communication while computing";

std::string processorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.rfind("model name", 0) == 0)
      return line.substr(std::min(line.size(), line.find(": ") + 2));
  return "cpu";
}

int64_t memoryBytes() {
  return int64_t(sysconf(_SC_PHYS_PAGES)) * int64_t(sysconf(_SC_PAGESIZE));
}

class Calibration {
public:
  // `device`: null on a host, which makes a backend for each rank.
  Calibration(const Options &options,
              std::unique_ptr<runtime::Backend> device)
      : options_(options), device_(std::move(device)) {
    measure_.ranks = options.ranks > 0 ? options.ranks : device_ ? 1 : 2;
    measure_.threads = options.threads;
    measure_.secondsPerCase = options.quick ? 0.05 : 0.2;
  }

  Status run(const GridSizes &sizes) {
    measure_.distances = sizes.distances;
    if (device_) {
      if (measure_.ranks > 1)
        return Status::error(fmt::format(
            "--ranks: one rank is measured on a device, found {}",
            measure_.ranks));
      Result<uint64_t> free = device_->freeMemory();
      if (!free)
        return free.status();
      memoryBytes_ = int64_t(*free);
    }
    std::vector<LoadedPlan> plans;
    MERAK_RETURN_IF_ERROR(loadPlans(plans));
    planpb::Program grid = libraryProgram(sizes);
    // What a plan runs comes first: it is what is asked for by name.
    std::vector<Case> cases;
    auto take = [&](const std::vector<Case> &more) {
      cases.insert(cases.end(), more.begin(), more.end());
    };
    for (const LoadedPlan &plan : plans)
      if (device_)
        take(casesOf(plan, /*library=*/true));
    take(casesOf(grid));
    for (const LoadedPlan &plan : plans)
      if (!device_)
        take(casesOf(plan, /*library=*/false));
    std::vector<std::pair<std::string, int64_t>> messages;
    if (measure_.ranks > 1)
      for (const char *kind : {"transfer", "all_reduce", "all_gather",
                               "reduce_scatter", "all_to_all", "broadcast"})
        for (int64_t bytes = 256;
             bytes <= (options_.quick ? 4 << 20 : 16 << 20); bytes *= 8)
          messages.emplace_back(kind, bytes);
    total_ = cases.size() + messages.size();
    Result<SampleFile> file = SampleFile::open(
        options_.output + ".samples",
        fmt::format("ranks={} threads={} grid={} plan={} on {}",
                    measure_.ranks, options_.threads,
                    options_.quick ? "quick" : "full",
                    fmt::join(options_.plans, ","), machineName()));
    if (!file)
      return file.status();
    for (const Case &one : cases)
      MERAK_RETURN_IF_ERROR(kernel(one, *file));
    for (const auto &[kind, bytes] : messages)
      MERAK_RETURN_IF_ERROR(message(kind, bytes, *file));
    if (measure_.ranks > 1)
      MERAK_RETURN_IF_ERROR(slowdown(cases, *file));
    return finish(*file);
  }

private:
  Status loadPlans(std::vector<LoadedPlan> &plans) {
    for (const std::string &dir : options_.plans) {
      Result<LoadedPlan> loaded = loadPlan(dir);
      if (!loaded)
        return loaded.status();
      MERAK_RETURN_IF_ERROR(verifyStructure(*loaded).withContext(dir));
      if (loaded->file.device() != options_.backend)
        return Status::error(fmt::format(
            "{}: expected a plan for {}, found one for {}", dir,
            options_.backend, loaded->file.device()));
      plans.push_back(std::move(*loaded));
    }
    return {};
  }

  std::string machineName() const {
    return device_ ? device_->deviceName() : processorName();
  }

  Result<std::vector<double>> measure(const Case &one) {
    if (!device_)
      return measureKernel(one, measure_);
    if (!one.kernels.empty() && one.kernels != kernels_) {
      MERAK_RETURN_IF_ERROR(device_->loadKernels(one.kernels));
      kernels_ = one.kernels;
    }
    return measureOnDevice(one, *device_, measure_);
  }

  Status kernel(const Case &one, SampleFile &file) {
    auto key = [&](int64_t distance) {
      return fmt::format("{} @ {:g} MiB", one.key, double(distance) * 0x1p-20);
    };
    const std::vector<int64_t> &distances = measure_.distances;
    if (known(key(distances.back()), file)) // is stored last
      return {};
    Result<std::vector<double>> seconds = measure(one);
    if (!seconds)
      return seconds.status();
    const costmodel::Kernel work =
        costmodel::kernelOf(*one.program, *one.instruction);
    ++done_;
    for (size_t i = 0; i < seconds->size(); ++i)
      if (std::string name = key(distances[i]); !file.find(name))
        MERAK_RETURN_IF_ERROR(
            store({name, work, (*seconds)[i], double(distances[i])}, file));
    return {};
  }

  Status message(const std::string &kind, int64_t bytes, SampleFile &file) {
    std::string key = fmt::format("{} {} bytes", kind, bytes);
    if (known(key, file))
      return {};
    Result<double> seconds = measureCommunication(kind, bytes, measure_);
    if (!seconds)
      return seconds.status();
    ++done_;
    return store({key, {kind, 0, double(bytes)}, *seconds}, file);
  }

  // Two samples, of a factor instead of seconds.
  Status slowdown(const std::vector<Case> &cases, SampleFile &file) {
    if (file.find(kComputeSlowdown) && file.find(kCommunicationSlowdown))
      return {};
    constexpr double kProduct = 2.0 * 256 * 256 * 256;
    constexpr int64_t kMessage = 1 << 20;
    const Case *product = nullptr;
    for (const Case &one : cases)
      if (!product && one.instruction->op() == "einsum" &&
          one.instruction->flops() >= kProduct)
        product = &one;
    if (!product)
      return Status::error("no contraction to measure the slowdown with");
    Result<Slowdown> found = measureSlowdown(*product, kMessage, measure_);
    if (!found)
      return found.status();
    if (!options_.quiet)
      fmt::print(stderr,
                 "computing beside communication takes {:.2f} times as long, "
                 "communication {:.2f} times\n",
                 found->compute, found->communication);
    MERAK_RETURN_IF_ERROR(
        file.add({kComputeSlowdown, {"slowdown"}, found->compute}));
    return file.add(
        {kCommunicationSlowdown, {"slowdown"}, found->communication});
  }

  bool known(const std::string &key, const SampleFile &file) {
    if (!file.find(key))
      return false;
    ++done_;
    return true;
  }

  Status store(const costmodel::Sample &sample, SampleFile &file) {
    if (!options_.quiet) {
      std::string rate =
          sample.work.k > 0
              ? fmt::format("{:8.2f} GFLOP/s",
                            sample.work.flops / sample.seconds * 1e-9)
              : fmt::format("{:8.2f} GB/s",
                            sample.work.bytes / sample.seconds * 1e-9);
      fmt::print(stderr, "[{}/{}] {}: {:.3f} us, {}\n", done_, total_,
                 sample.key, sample.seconds * 1e6, rate);
    }
    return file.add(sample);
  }

  Status finish(const SampleFile &file) {
    costmodel::Cluster cluster = device_ ? deviceCluster() : hostCluster();
    costmodel::Device &device = cluster.kinds.front();
    std::vector<costmodel::Sample> samples;
    for (const costmodel::Sample &sample : file.samples())
      if (sample.key == kComputeSlowdown)
        device.computeSlowdown = sample.seconds;
      else if (sample.key == kCommunicationSlowdown)
        device.communicationSlowdown = sample.seconds;
      else
        samples.push_back(sample);
    MERAK_RETURN_IF_ERROR(costmodel::fitDevice(samples, device));
    if (measure_.ranks > 1) {
      Result<costmodel::Link> link = costmodel::fitLink(samples);
      if (!link)
        return link.status();
      cluster.intra = cluster.inter = *link;
    }
    std::ofstream out(options_.output);
    out << cluster.toJson();
    if (!out.flush())
      return Status::error(fmt::format("cannot write '{}'", options_.output));
    file.remove();
    if (!options_.quiet)
      report(samples, cluster);
    return {};
  }

  costmodel::Cluster hostCluster() const {
    costmodel::Cluster cluster;
    cluster.name = fmt::format("{} ranks of {} threads on {}", measure_.ranks,
                               options_.threads, machineName());
    cluster.count = cluster.perNode = measure_.ranks;
    // Rates were measured with all ranks at work: sharing is in them.
    cluster.cores = std::max<int64_t>(
        {1, int64_t(std::thread::hardware_concurrency()),
         int64_t(measure_.ranks) * options_.threads});
    cluster.threads = options_.threads;
    cluster.algorithm = costmodel::Algorithm::Direct;
    cluster.kinds.front().memoryBytes = memoryBytes() / measure_.ranks;
    return cluster;
  }

  costmodel::Cluster deviceCluster() const {
    costmodel::Cluster cluster;
    cluster.name = machineName();
    cluster.algorithm = costmodel::Algorithm::Nccl;
    costmodel::Device &device = cluster.kinds.front();
    device.name = "gpu";
    device.backend = options_.backend;
    device.memoryBytes = memoryBytes_;
    return cluster;
  }

  // How well the file gives back what was measured, class by class.
  static void report(const std::vector<costmodel::Sample> &samples,
                     const costmodel::Cluster &cluster) {
    std::map<std::string, std::pair<double, int>> errors;
    for (const costmodel::Sample &sample : samples) {
      costmodel::Kernel work = sample.work;
      work.shares = costmodel::distanceShares(cluster.device().distances,
                                              sample.distance);
      double predicted = costmodel::kernelSeconds(cluster.device(), work);
      auto &[sum, count] = errors[sample.work.name];
      sum += std::abs(std::log(predicted / sample.seconds));
      ++count;
    }
    for (const auto &[name, error] : errors)
      fmt::print("{:28} {:4} samples, given back within {:5.1f} % on average\n",
                 name, error.second,
                 100 * (std::exp(error.first / error.second) - 1));
  }

  const Options &options_;
  std::unique_ptr<runtime::Backend> device_;
  int64_t memoryBytes_ = 0; // of the device, before anything is measured
  std::string kernels_;     // that the device has loaded
  MeasureOptions measure_;
  size_t done_ = 0, total_ = 0;
};

} // namespace

int benchToolMain(int argc, const char *const *argv,
                  const OpenDevice &openDevice,
                  const GridSizes *grid) {
  Options options;
  CLI::App app("Measures the machine it stands on", "merak-bench");
  app.require_subcommand(1);
  CLI::App *calibrate = app.add_subcommand(
      "calibrate", "measures kernels and communication of in-process CPU "
                   "ranks, or kernels of a GPU, and writes a cluster file for "
                   "merakc --cluster");
  calibrate->add_option("-o,--output", options.output, "cluster file to write")
      ->required();
  calibrate->add_option("--backend", options.backend, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  calibrate->add_option("--ranks", options.ranks,
                        "ranks that run at once; 2, of a GPU 1")
      ->check(CLI::Range(1, 256));
  calibrate->add_option("--threads", options.threads, "threads of each rank")
      ->check(CLI::Range(1, 256));
  calibrate->add_flag("--quick", options.quick,
                      "a smaller grid, in less than a minute");
  calibrate->add_option("--plan", options.plans,
                        "plan whose generated kernels are measured as well, "
                        "of a GPU all its kernels; may be repeated");
  calibrate->add_flag("--quiet", options.quiet, "prints errors only");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  Status status;
  std::unique_ptr<runtime::Backend> device;
  if (options.backend != "cpu") {
    auto opened = openDevice();
    status = opened.status();
    if (status.ok())
      device = std::move(*opened);
  }
  if (status.ok()) {
    if (!grid)
      grid = &(device ? deviceGrid : hostGrid)(options.quick);
    status = Calibration(options, std::move(device)).run(*grid);
  }
  for (const std::string &message : status.messages())
    fmt::print(stderr, "merak-bench: error: {}\n", message);
  return status.ok() ? 0 : 1;
}

} // namespace merak::bench
