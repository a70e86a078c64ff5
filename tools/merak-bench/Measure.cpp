#include "tools/merak-bench/Measure.h"

#include "passes/CostModel/Cost.h"
#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/core/BriefThread.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <ctime>
#include <set>
#include <thread>

using namespace merak::planpb;
using namespace merak::runtime;

namespace merak::bench {
namespace {

constexpr int kMostSets = 256;
constexpr double kBatchSeconds = 2e-3;
constexpr int kLeastBatches = 5, kMostBatches = 400;

double clockSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Values that no kernel overflows on: floats in (0, 1), indices below `limit`
// without an order.
void fill(char *data, const Buffer &buffer, int64_t limit) {
  const int64_t count = int64_t(buffer.bytes()) / dtypeSize(buffer.dtype());
  auto index = [&](int64_t i) {
    return int64_t((uint64_t(i) + 1) * 0x9E3779B97F4A7C15u >> 20) % limit;
  };
  for (int64_t i = 0; i < count; ++i)
    if (buffer.dtype() == F32)
      reinterpret_cast<float *>(data)[i] =
          float((i * 7919) % 1000 + 1) / 1001.0f;
    else if (buffer.dtype() == I64)
      reinterpret_cast<int64_t *>(data)[i] = index(i);
    else if (buffer.dtype() == I32)
      reinterpret_cast<int32_t *>(data)[i] = int32_t(index(i));
    else
      data[i * dtypeSize(buffer.dtype())] = 0;
}

// What the integers of an instruction count: rows of a table, or classes.
int64_t indexLimit(const Instruction &inst) {
  const bool scatters = inst.op() == "scatter_add" && inst.outputs_size() > 0;
  if (!scatters && inst.inputs_size() == 0)
    return 1;
  const Operand &table = scatters ? inst.outputs(0) : inst.inputs(0);
  if (table.shape_size() == 0)
    return 1;
  const bool rows = scatters || inst.op() == "gather";
  return std::max<int64_t>(1, table.shape(rows ? 0 : table.shape_size() - 1));
}

// Memory of one rank for the operands of all repetitions, in one block as the
// runtime has its arena.
class Arena {
public:
  explicit Arena(Backend &backend) : backend_(backend) {}
  ~Arena() {
    if (data_)
      backend_.release(data_);
  }
  Arena(const Arena &) = delete;
  Status reserve(uint64_t bytes) {
    auto memory = backend_.allocate(bytes);
    if (!memory)
      return memory.status();
    data_ = static_cast<char *>(*memory);
    bytes_ = bytes;
    return {};
  }
  char *take(uint64_t bytes) {
    char *result = data_ + used_;
    used_ += rounded(bytes);
    return result;
  }
  // Reads a byte of each cache line behind the first `from`, up to `end`.
  void sweep(uint64_t from, uint64_t end) {
    for (uint64_t i = from; i < std::min(end, bytes_); i += kAlign)
      swept_ = swept_ + data_[i];
  }
  static uint64_t rounded(uint64_t bytes) {
    return (std::max<uint64_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  }

private:
  static constexpr uint64_t kAlign = 64;
  Backend &backend_;
  char *data_ = nullptr;
  uint64_t bytes_ = 0, used_ = 0;
  volatile char swept_ = 0;
};

uint64_t operandBytes(const Case &one) {
  std::set<uint32_t> buffers;
  for (const Operand &operand : one.instruction->inputs())
    buffers.insert(operand.buffer());
  for (const Operand &operand : one.instruction->outputs())
    buffers.insert(operand.buffer());
  uint64_t bytes = 0;
  for (uint32_t buffer : buffers)
    bytes += Arena::rounded(one.program->buffers(int(buffer)).bytes());
  return bytes;
}

// One rank's copies of the operands of a case.
class Operands {
public:
  Operands(Arena &arena, const Case &one) {
    std::map<uint32_t, char *> known;
    auto add = [&](const Operand &operand, std::vector<View> &views) {
      const Buffer &buffer = one.program->buffers(int(operand.buffer()));
      auto [it, fresh] = known.try_emplace(operand.buffer(), nullptr);
      if (fresh) {
        it->second = arena.take(buffer.bytes());
        fill(it->second, buffer, indexLimit(*one.instruction));
      }
      View view;
      view.dtype = buffer.dtype();
      view.shape.assign(operand.shape().begin(), operand.shape().end());
      view.strides.assign(operand.strides().begin(), operand.strides().end());
      view.data = it->second + operand.offset() * dtypeSize(buffer.dtype());
      views.push_back(view);
    };
    for (const Operand &operand : one.instruction->inputs())
      add(operand, inputs);
    for (const Operand &operand : one.instruction->outputs())
      add(operand, outputs);
    for (const Scalar &scalar : one.instruction->scalars())
      scalars.push_back(scalar.has_f()   ? ScalarValue::real(scalar.f())
                        : scalar.has_i() ? ScalarValue::integer(scalar.i())
                        : scalar.runtime() == "lr" ? ScalarValue::real(1e-3)
                                                   : ScalarValue::integer(1));
  }

  std::vector<View> inputs, outputs;
  std::vector<ScalarValue> scalars;
};

// Runs `body(rank)` on a thread for each rank, the first on this one.
void onRanks(int ranks, const std::function<void(int)> &body) {
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank)
    threads.emplace_back(body, rank);
  body(0);
  for (std::thread &thread : threads)
    thread.join();
}

double lowerQuartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

} // namespace

namespace {

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
        arena_.sweep(each_ * uint64_t(sets), uint64_t(distance));
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
  const Instruction &inst = *one.instruction;
  std::vector<Status> status(size_t(options.ranks));
  std::vector<std::vector<double>> seconds(size_t(options.ranks));
  std::atomic<bool> stop{false};
  std::barrier<> together(options.ranks);
  const uint64_t each = operandBytes(one);
  const uint64_t farthest = uint64_t(*std::rbegin(kDistances));
  const int sets = int(std::clamp<uint64_t>(
      farthest / std::max<uint64_t>(each, 1), 1, kMostSets));
  onRanks(options.ranks, [&](int rank) {
    ThreadPool pool(options.threads);
    cpu::CpuBackend backend(pool);
    Arena arena(backend);
    std::vector<std::unique_ptr<Operands>> operands;
    std::vector<std::unique_ptr<Prepared>> prepared;
    Status &mine = status[size_t(rank)];
    if (inst.kind() == Instruction::KERNEL)
      mine = backend.loadKernels(options.kernels);
    if (mine.ok())
      mine = arena.reserve(std::max(each * uint64_t(sets), farthest));
    for (int set = 0; set < sets && mine.ok(); ++set) {
      operands.push_back(std::make_unique<Operands>(arena, one));
      auto made = backend.prepare(inst, operands.back()->inputs,
                                  operands.back()->outputs);
      mine = made.status();
      if (mine.ok())
        prepared.push_back(std::move(*made));
    }
    auto run = [&](int set) {
      const Operands &use = *operands[size_t(set)];
      mine =
          backend.run({&inst, prepared[size_t(set)].get(), use.inputs,
                       use.outputs, use.scalars, inst.accumulate(), nullptr});
      return mine.ok();
    };
    if (!mine.ok() || !run(0))
      stop = true;
    Timing timing(options, arena, each, sets);
    for (int64_t distance : kDistances) {
      together.arrive_and_wait();
      if (stop)
        return;
      seconds[size_t(rank)].push_back(timing.seconds(distance, run));
    }
  });
  std::vector<double> mean(std::size(kDistances), 0);
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
    std::unique_ptr<Prepared> prepared;
    std::unique_ptr<Operands> operands;
    if (mine.ok()) {
      operands = std::make_unique<Operands>(arena, one);
      auto made = backend.prepare(*one.instruction, operands->inputs,
                                  operands->outputs);
      mine = made.status();
      if (mine.ok())
        prepared = std::move(*made);
    }
    // Seconds of one run while `more`.
    auto loop = [&](auto more) {
      const double begin = clockSeconds(CLOCK_MONOTONIC);
      int64_t runs = 0;
      do {
        mine = backend.run({one.instruction, prepared.get(), operands->inputs,
                            operands->outputs, operands->scalars,
                            one.instruction->accumulate(), nullptr});
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
    becomeBrief(); // as the executor's streams of communication are
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
