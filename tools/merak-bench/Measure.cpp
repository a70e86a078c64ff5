#include "tools/merak-bench/Measure.h"

#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/core/PromptThread.h"
#include "tools/merak-bench/Operands.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <ctime>
#include <thread>

using namespace merak::planpb;
using namespace merak::runtime;

namespace merak::bench {
namespace {

double clockSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Runs `body(rank)` on a thread for each rank, the first on this one.
void onRanks(int ranks, const std::function<void(int)> &body) {
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank)
    threads.emplace_back(body, rank);
  body(0);
  for (std::thread &thread : threads)
    thread.join();
}

// Seconds of one run at a distance: all sets of operands in turn, then what is
// missing to the distance is swept, which does not count.
class Timing {
public:
  Timing(const MeasureOptions &options, Arena &arena, uint64_t each, int sets)
      : options_(options), arena_(arena), each_(each), sets_(sets),
        clock_(options.threads == 1 ? CLOCK_THREAD_CPUTIME_ID
                                    : CLOCK_MONOTONIC) {}

  // `run(set)` returns whether it went well.
  template <typename Run> double seconds(int64_t distance, Run run) {
    const int sets = int(std::clamp<int64_t>(
        distance / std::max<int64_t>(int64_t(each_), 1), 1, sets_));
    const bool sweeps = int64_t(each_) * sets < distance / 2;
    bool good = true;
    auto batch = [&](int64_t rounds) {
      const double begin = clockSeconds(clock_);
      for (int64_t i = 0; i < rounds && good; ++i)
        for (int set = 0; set < sets && good; ++set)
          good = run(set);
      return clockSeconds(clock_) - begin;
    };
    const double once = std::max(batch(1), 1e-8);
    const int64_t rounds =
        sweeps ? 1 : std::max<int64_t>(1, int64_t(kBatchSeconds / once));
    std::vector<double> batches;
    const double start = clockSeconds(CLOCK_MONOTONIC);
    double spent = 0;
    while (good && (int(batches.size()) < kLeastBatches ||
                    (spent < options_.secondsPerCase &&
                     int(batches.size()) < kMostBatches &&
                     clockSeconds(CLOCK_MONOTONIC) - start <
                         4 * options_.secondsPerCase))) {
      if (sweeps)
        good = arena_.sweep(each_ * uint64_t(sets), uint64_t(distance)).ok();
      const double time = batch(rounds);
      spent += time;
      batches.push_back(time / double(rounds * sets));
    }
    return good ? lowerQuartile(batches) : 0;
  }

private:
  const MeasureOptions &options_;
  Arena &arena_;
  uint64_t each_;
  int sets_;
  clockid_t clock_;
};

} // namespace

Result<std::vector<double>> measureKernel(const Case &one,
                                          const MeasureOptions &options) {
  std::vector<Status> status(size_t(options.ranks));
  std::vector<std::vector<double>> seconds(size_t(options.ranks));
  std::atomic<bool> stop{false};
  std::barrier<> together(options.ranks);
  const uint64_t each = operandBytes(one);
  const uint64_t farthest = uint64_t(options.distances.back());
  const int sets = setsFor(one, int64_t(farthest));
  const OperandValues values(one);
  onRanks(options.ranks, [&](int rank) {
    ThreadPool pool(options.threads);
    cpu::CpuBackend backend(pool);
    Arena arena(backend);
    PreparedSets prepared(one, backend);
    Status &mine = status[size_t(rank)];
    if (!one.kernels.empty())
      mine = backend.loadKernels(one.kernels);
    if (mine.ok())
      mine = arena.reserve(std::max(each * uint64_t(sets), farthest));
    if (mine.ok())
      mine = prepared.add(arena, values, sets);
    auto run = [&](int set) {
      mine = prepared.run(set, nullptr);
      return mine.ok();
    };
    if (!mine.ok() || !run(0))
      stop = true;
    Timing timing(options, arena, each, sets);
    for (int64_t distance : options.distances) {
      together.arrive_and_wait();
      if (stop)
        return;
      seconds[size_t(rank)].push_back(timing.seconds(distance, run));
    }
  });
  std::vector<double> mean(options.distances.size(), 0);
  for (int rank = 0; rank < options.ranks; ++rank) {
    MERAK_RETURN_IF_ERROR(Status(status[size_t(rank)]).withContext(one.key));
    for (size_t i = 0; i < mean.size(); ++i)
      mean[i] += seconds[size_t(rank)][i] / options.ranks;
  }
  return mean;
}

namespace {

Result<CommSpec> specOf(const std::string &kind, int rank, int ranks) {
  CommSpec spec;
  spec.channel = kind;
  spec.name = kind;
  if (kind == "transfer") {
    spec.kind = rank == 0 ? CommSpec::Send : CommSpec::Recv;
    spec.peer = 1 - rank;
    return spec;
  }
  for (CommSpec::Kind known :
       {CommSpec::AllReduce, CommSpec::AllGather, CommSpec::ReduceScatter,
        CommSpec::AllToAll, CommSpec::Broadcast})
    if (kind == commKindName(known)) {
      spec.kind = known;
      for (int member = 0; member < ranks; ++member)
        spec.members.push_back(member);
      return spec;
    }
  return Status::error("no collective \"" + kind + "\"");
}

} // namespace

Result<double> measureCommunication(const std::string &kind, int64_t bytes,
                                    const MeasureOptions &options) {
  const int ranks = kind == "transfer" ? 2 : options.ranks;
  const int64_t count = std::max<int64_t>(bytes / 4 / ranks, 1) * ranks;
  InprocWorld world(ranks);
  std::vector<Status> status;
  status.resize(size_t(ranks));
  std::atomic<int64_t> times{1};
  std::vector<double> batches;
  std::barrier<> together(ranks);
  std::atomic<bool> more{true};
  onRanks(ranks, [&](int rank) {
    // The larger side has `count` elements.
    const bool scatters = kind == "reduce_scatter";
    std::vector<float> in(size_t(kind == "all_gather" ? count / ranks : count));
    std::vector<float> out(size_t(scatters ? count / ranks : count));
    View input{in.data(), F32, {int64_t(in.size())}, {1}};
    View output{out.data(), F32, {int64_t(out.size())}, {1}};
    auto comm = world.communicator(rank);
    Status &mine = status[size_t(rank)];
    auto spec = specOf(kind, rank, ranks);
    if (!spec) {
      mine = spec.status();
      more = false;
    }
    std::unique_ptr<Endpoint> endpoint;
    std::vector<View> inputs{input}, outputs{output};
    if (mine.ok()) {
      if (kind == "transfer")
        (rank == 0 ? outputs : inputs).clear();
      auto made = comm->prepare(*spec, inputs, outputs);
      mine = made.status();
      if (mine.ok())
        endpoint = std::move(*made);
      else
        more = false;
    }
    auto run = [&] {
      for (int64_t i = 0; i < times && mine.ok(); ++i)
        mine = comm->run({endpoint.get(), inputs, outputs, nullptr});
      if (!mine.ok())
        comm->abort(mine);
    };
    double spent = 0;
    together.arrive_and_wait();
    if (!more)
      return;
    for (int batch = 0; more; ++batch) {
      together.arrive_and_wait();
      const double begin = clockSeconds(CLOCK_MONOTONIC);
      run();
      together.arrive_and_wait();
      const double time = clockSeconds(CLOCK_MONOTONIC) - begin;
      if (rank == 0) {
        if (batch > 0)
          batches.push_back(time / double(times.load()));
        else
          times = std::max<int64_t>(1, int64_t(kBatchSeconds / time));
        spent += time;
        more = mine.ok() &&
               (batch < kLeastBatches ||
                (spent < options.secondsPerCase && batch < kMostBatches));
      }
      together.arrive_and_wait();
    }
  });
  for (const Status &one : status)
    MERAK_RETURN_IF_ERROR(Status(one).withContext(kind));
  return lowerQuartile(batches);
}

Result<Slowdown> measureSlowdown(const Case &one, int64_t bytes,
                                 const MeasureOptions &options) {
  const int ranks = options.ranks;
  const double wanted = std::max(options.secondsPerCase, 4 * kBatchSeconds);
  const int64_t count = std::max<int64_t>(bytes / 4 / ranks, 1) * ranks;
  InprocWorld world(ranks);
  std::vector<Status> status(size_t(ranks) * 2);
  std::vector<double> alone(static_cast<size_t>(ranks)), beside(alone);
  double reduce[2] = {0, 0}; // seconds of one alone, beside
  std::atomic<int64_t> times{1};
  std::atomic<bool> stop{false}, reducing{false};
  // Each rank computes on one thread and communicates on another.
  std::barrier<> together(2 * ranks);
  auto compute = [&](int rank) {
    ThreadPool pool(options.threads);
    cpu::CpuBackend backend(pool);
    Arena arena(backend);
    Status &mine = status[size_t(rank)];
    mine = arena.reserve(operandBytes(one));
    PreparedSets prepared(one, backend);
    if (mine.ok())
      mine = prepared.add(arena, OperandValues(one), 1);
    // Seconds of one run while `more`.
    auto loop = [&](auto more) {
      const double begin = clockSeconds(CLOCK_MONOTONIC);
      int64_t runs = 0;
      do {
        mine = prepared.run(0, nullptr);
        ++runs;
      } while (mine.ok() && more(clockSeconds(CLOCK_MONOTONIC) - begin));
      return (clockSeconds(CLOCK_MONOTONIC) - begin) / double(runs);
    };
    if (!mine.ok())
      stop = true;
    together.arrive_and_wait();
    if (stop)
      return;
    loop([&](double spent) { return spent < kBatchSeconds; }); // warms up
    together.arrive_and_wait();
    alone[size_t(rank)] = loop([&](double spent) { return spent < wanted; });
    together.arrive_and_wait(); // then the others reduce alone
    together.arrive_and_wait();
    beside[size_t(rank)] = loop([&](double) { return reducing.load(); });
    together.arrive_and_wait();
  };
  auto communicate = [&](int rank) {
    wakePromptly(); // as the executor's streams of communication are
    std::vector<float> data(static_cast<size_t>(count));
    View view{data.data(), F32, {count}, {1}};
    std::vector<View> views{view};
    auto comm = world.communicator(rank);
    Status &mine = status[size_t(ranks + rank)];
    std::unique_ptr<Endpoint> endpoint;
    auto spec = specOf("all_reduce", rank, ranks);
    auto made = comm->prepare(*spec, views, views);
    mine = made.status();
    if (mine.ok())
      endpoint = std::move(*made);
    else
      stop = true;
    auto reduceTimes = [&](int64_t n) {
      const double begin = clockSeconds(CLOCK_MONOTONIC);
      for (int64_t i = 0; i < n && mine.ok(); ++i)
        mine = comm->run({endpoint.get(), views, views, nullptr});
      return (clockSeconds(CLOCK_MONOTONIC) - begin) / double(n);
    };
    together.arrive_and_wait();
    if (stop)
      return;
    together.arrive_and_wait();
    together.arrive_and_wait();
    const double once = reduceTimes(16);
    if (rank == 0)
      times = std::max<int64_t>(16, int64_t(wanted / once));
    // All must know how often: a collective is a meeting as well.
    std::vector<View> one{View{data.data(), F32, {ranks}, {1}}};
    if (auto meeting = comm->prepare(*spec, one, one); meeting.ok())
      mine = comm->run({meeting->get(), one, one, nullptr});
    const double quiet = reduceTimes(times);
    reducing = true;
    together.arrive_and_wait();
    const double busy = reduceTimes(times);
    reducing = false;
    if (rank == 0)
      reduce[0] = quiet, reduce[1] = busy;
    together.arrive_and_wait();
  };
  onRanks(2 * ranks,
          [&](int i) { i < ranks ? compute(i) : communicate(i - ranks); });
  for (const Status &each : status)
    MERAK_RETURN_IF_ERROR(Status(each).withContext("slowdown"));
  Slowdown result;
  double sum = 0;
  for (int rank = 0; rank < ranks; ++rank)
    sum += beside[size_t(rank)] / alone[size_t(rank)] / ranks;
  result.compute = std::max(1.0, sum);
  result.communication = std::max(1.0, reduce[1] / reduce[0]);
  return result;
}

} // namespace merak::bench
