#include "tools/merak-bench/Calibration.h"

#include "passes/CostModel/PlanCosts.h"
#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/comm/rendezvous/Store.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"
#include "tools/merak-bench/Links.h"
#include "tools/merak-bench/Measure.h"
#include "tools/merak-bench/Report.h"
#include "tools/merak-bench/SampleFile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <thread>
#include <unistd.h>

namespace merak::bench {
namespace {

constexpr const char *kComputeSlowdown = "computation while communicating";
constexpr const char *kCommunicationSlowdown = "communication while computing";
constexpr const char *kCommunications[] = {"transfer",   "all_reduce",
                                           "all_gather", "reduce_scatter",
                                           "all_to_all", "broadcast"};

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
  Calibration(const CalibrationOptions &options,
              std::unique_ptr<runtime::Backend> device, runtime::World *world)
      : options_(options), device_(std::move(device)), world_(world) {
    measure_.ranks = options.ranks > 0   ? options.ranks
                     : device_ || world_ ? 1
                                         : 2;
    measure_.threads = options.threads;
    measure_.secondsPerCase = options.quick ? 0.05 : 0.2;
  }

  Status run(const GridSizes &sizes) {
    measure_.distances = sizes.distances;
    if (device_ && measure_.ranks > 1)
      return Status::error(fmt::format(
          "--ranks: one rank is measured on a device, found {}; several "
          "devices have a process each, --ranks=env",
          measure_.ranks));
    MERAK_RETURN_IF_ERROR(lookAround());
    Status status = options_.rates.empty() ? kernels(sizes) : takeRates();
    if (!status.ok()) {
      if (file_ && file_->samples().empty())
        file_->remove(); // nothing to go on with
      return status;
    }
    if (world_) {
      MERAK_RETURN_IF_ERROR(links());
    }
    if (world_ && !world_->leads())
      return {};
    return finish();
  }

private:
  // What device and memory there are, and where the ranks are.
  Status lookAround() {
    memoryBytes_ = memoryBytes();
    if (device_) {
      Result<uint64_t> free = device_->freeMemory();
      if (!free)
        return free.status();
      memoryBytes_ = int64_t(*free);
    }
    if (!world_)
      return {};
    runtime::Store &store = *world_->store();
    Result<Places> places = findPlaces(store);
    if (!places)
      return places.status();
    places_ = std::move(*places);
    auto names =
        store.gather("bench names", machineName(), runtime::kPatienceSeconds);
    if (!names)
      return names.status();
    for (size_t rank = 1; rank < names->size(); ++rank)
      if ((*names)[rank] != names->front())
        return Status::error(fmt::format(
            "rank 0 runs on {}, rank {} on {}: calibrate each kind by itself",
            names->front(), rank, (*names)[rank]));
    auto memory = store.gather("bench memory", std::to_string(memoryBytes_),
                               runtime::kPatienceSeconds);
    if (!memory)
      return memory.status();
    for (const std::string &bytes : *memory)
      memoryBytes_ = std::min<int64_t>(memoryBytes_, std::stoll(bytes));
    return {};
  }

  // Ranks that are threads have their communication measured as kernels are.
  bool threadsCommunicate() const { return !world_ && measure_.ranks > 1; }

  Status kernels(const GridSizes &sizes) {
    if (world_ && places_.nodeOf[size_t(world_->ranks().front())] != 0)
      return follow({});
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
    if (world_ && !world_->leads())
      return follow(cases);
    std::vector<std::pair<std::string, int64_t>> messages;
    if (threadsCommunicate())
      for (const char *kind : kCommunications)
        for (int64_t bytes = 256;
             bytes <= (options_.quick ? 4 << 20 : 16 << 20); bytes *= 8)
          messages.emplace_back(kind, bytes);
    total_ = cases.size() + messages.size();
    Result<SampleFile> file = SampleFile::open(
        options_.output + ".samples",
        fmt::format("ranks={}{} threads={} grid={} plan={} on {}",
                    ranksOfNode(), world_ ? " processes" : "", options_.threads,
                    options_.quick ? "quick" : "full",
                    fmt::join(options_.plans, ","), machineName()));
    if (!file)
      return file.status();
    file_.emplace(std::move(*file));
    for (size_t i = 0; i < cases.size(); ++i)
      MERAK_RETURN_IF_ERROR(kernel(cases[i], i));
    if (world_)
      MERAK_RETURN_IF_ERROR(lead(kNoMore));
    for (const auto &[kind, bytes] : messages)
      MERAK_RETURN_IF_ERROR(message(kind, bytes));
    if (threadsCommunicate())
      MERAK_RETURN_IF_ERROR(slowdown(cases));
    return {};
  }

  // Rates that were measured before.
  Status takeRates() {
    Result<costmodel::Cluster> cluster = costmodel::readCluster(options_.rates);
    if (!cluster)
      return cluster.status();
    if (cluster->kinds.size() != 1 ||
        cluster->device().backend != options_.backend)
      return Status::error(fmt::format(
          "{}: expected one kind of devices, of backend {}, found {} of {}",
          options_.rates, options_.backend, cluster->kinds.size(),
          cluster->device().backend));
    // Communication of threads says nothing of processes.
    for (const char *name : kCommunications)
      cluster->kinds.front().kernels.erase(name);
    rates_ = std::move(*cluster);
    return {};
  }

  // The ranks of the first node measure each case at once, as they work at once
  // in a step; what rank 0 sees counts, and it says which case is next.
  static constexpr const char *kNextCase = "bench case", *kNoMore = "";
  Status lead(const std::string &next) {
    return world_->store()
        ->gather(kNextCase, next, runtime::kPatienceSeconds)
        .status();
  }
  // `cases`: none on other nodes.
  Status follow(const std::vector<Case> &cases) {
    for (;;) {
      auto next =
          world_->store()->gather(kNextCase, "", runtime::kPatienceSeconds);
      if (!next)
        return next.status();
      if (next->front() == kNoMore)
        return {};
      if (cases.empty())
        continue;
      Result<std::vector<double>> seconds =
          measure(cases.at(std::stoul(next->front())));
      if (!seconds)
        return seconds.status();
    }
  }

  int64_t ranksOfNode() const {
    return world_ ? int64_t(places_.on(0).size()) : measure_.ranks;
  }

  Status links() {
    runtime::ThreadPool pool(1);
    std::unique_ptr<runtime::Backend> host;
    if (!device_)
      host = std::make_unique<cpu::CpuBackend>(pool);
    Result<MeasuredLinks> found = measureLinks(
        *world_, device_ ? *device_ : *host, places_, options_.quick);
    if (!found)
      return found.status();
    links_ = std::move(*found);
    return {};
  }

  Status loadPlans(std::vector<LoadedPlan> &plans) {
    for (const std::string &dir : options_.plans) {
      Result<LoadedPlan> loaded = loadPlanToRun(dir, options_.trustPlan);
      if (!loaded)
        return loaded.status();
      MERAK_RETURN_IF_ERROR(verifyStructure(*loaded).withContext(dir));
      const std::string device =
          loaded->file.device().empty() ? "cpu" : loaded->file.device();
      if (device != options_.backend)
        return Status::error(
            fmt::format("{}: expected a plan for {}, found one for {}", dir,
                        options_.backend, device));
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

  Status kernel(const Case &one, size_t number) {
    SampleFile &file = *file_;
    auto key = [&](int64_t distance) {
      return fmt::format("{} @ {:g} MiB", one.key, double(distance) * 0x1p-20);
    };
    const std::vector<int64_t> &distances = measure_.distances;
    if (known(key(distances.back()))) // is stored last
      return {};
    if (world_)
      MERAK_RETURN_IF_ERROR(lead(std::to_string(number)));
    Result<std::vector<double>> seconds = measure(one);
    if (!seconds)
      return seconds.status();
    const costmodel::Kernel work =
        costmodel::kernelOf(*one.program, *one.instruction);
    ++done_;
    for (size_t i = 0; i < seconds->size(); ++i)
      if (std::string name = key(distances[i]); !file.find(name))
        MERAK_RETURN_IF_ERROR(
            store({name, work, (*seconds)[i], double(distances[i])}));
    return {};
  }

  Status message(const std::string &kind, int64_t bytes) {
    std::string key = fmt::format("{} {} bytes", kind, bytes);
    if (known(key))
      return {};
    Result<double> seconds = measureCommunication(kind, bytes, measure_);
    if (!seconds)
      return seconds.status();
    ++done_;
    return store({key, {kind, 0, double(bytes)}, *seconds});
  }

  // Two samples, of a factor instead of seconds.
  Status slowdown(const std::vector<Case> &cases) {
    SampleFile &file = *file_;
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
                 "computing beside communication is {:.2f}x slower, "
                 "communication {:.2f}x slower\n",
                 found->compute, found->communication);
    MERAK_RETURN_IF_ERROR(
        file.add({kComputeSlowdown, {"slowdown"}, found->compute}));
    return file.add(
        {kCommunicationSlowdown, {"slowdown"}, found->communication});
  }

  bool known(const std::string &key) {
    if (!file_->find(key))
      return false;
    ++done_;
    return true;
  }

  Status store(const costmodel::Sample &sample) {
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
    return file_->add(sample);
  }

  Status finish() {
    costmodel::Cluster cluster;
    cluster.name =
        device_ ? machineName()
                : fmt::format("{} ranks of {} threads on {}", ranksOfNode(),
                              options_.threads, machineName());
    costmodel::Device &device = cluster.kinds.front();
    cluster.algorithm =
        device_ ? costmodel::Algorithm::Nccl : costmodel::Algorithm::Direct;
    if (!device_) {
      // Rates were measured with all ranks at work: sharing is in them.
      cluster.cores =
          rates_ ? rates_->cores
                 : std::max<int64_t>(
                       {1, int64_t(std::thread::hardware_concurrency()),
                        ranksOfNode() * options_.threads});
      cluster.threads = rates_ ? rates_->threads : options_.threads;
    }
    if (rates_)
      device = rates_->device();
    else
      MERAK_RETURN_IF_ERROR(fit(device));
    cluster.count = cluster.perNode = measure_.ranks;
    if (threadsCommunicate()) {
      Result<costmodel::Link> link = costmodel::fitLink(samples_);
      if (!link)
        return link.status();
      cluster.intra = cluster.inter = *link;
    }
    if (world_)
      place(cluster);
    std::ofstream out(options_.output);
    out << cluster.toJson();
    if (!out.flush())
      return Status::error(fmt::format("cannot write '{}'", options_.output));
    if (file_)
      file_->remove();
    if (!options_.quiet) {
      report(samples_, cluster.device());
      if (world_)
        report(links_, cluster);
    }
    return {};
  }

  // From what was measured.
  Status fit(costmodel::Device &device) {
    device.name = device_ ? "gpu" : "cpu";
    device.backend = options_.backend;
    device.memoryBytes = device_ ? memoryBytes_ : memoryBytes_ / ranksOfNode();
    for (const costmodel::Sample &sample : file_->samples())
      if (sample.key == kComputeSlowdown)
        device.computeSlowdown = sample.seconds;
      else if (sample.key == kCommunicationSlowdown)
        device.communicationSlowdown = sample.seconds;
      else
        samples_.push_back(sample);
    return costmodel::fitDevice(samples_, device);
  }

  // The ranks of the world and the links between them.
  void place(costmodel::Cluster &cluster) const {
    cluster.count = int64_t(places_.nodeOf.size());
    cluster.perNode = 0;
    for (size_t node = 0; node < places_.hosts.size(); ++node)
      cluster.perNode = std::max<int64_t>(
          cluster.perNode, int64_t(places_.on(int(node)).size()));
    cluster.nodeOf = places_.nodeOf;
    if (links_.intra)
      cluster.intra = *links_.intra;
    if (links_.inter)
      cluster.inter = *links_.inter;
  }

  const CalibrationOptions &options_;
  std::unique_ptr<runtime::Backend> device_; // null: a host
  runtime::World *world_;                    // null: ranks are threads
  Places places_;                            // of the world's ranks
  MeasuredLinks links_;                      // between them
  std::optional<SampleFile> file_;           // of the rank that writes
  std::vector<costmodel::Sample> samples_;   // of it, without factors
  std::optional<costmodel::Cluster> rates_;  // measured before
  int64_t memoryBytes_ = 0;                  // before anything is measured
  std::string kernels_;                      // that the device has loaded
  MeasureOptions measure_;
  size_t done_ = 0, total_ = 0;
};

} // namespace

Status calibrate(const CalibrationOptions &options,
                 std::unique_ptr<runtime::Backend> device,
                 runtime::World *world, const GridSizes &sizes) {
  return Calibration(options, std::move(device), world).run(sizes);
}

} // namespace merak::bench
