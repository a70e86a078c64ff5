#include "tools/merak-bench/Measure.h"

#include "passes/CostModel/Cost.h"
#include "runtime/backends/cpu/CpuBackend.h"
#include "runtime/comm/inproc/InprocCommunicator.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>

using namespace merak::planpb;
using namespace merak::runtime;

namespace merak::bench {
namespace {

// Operands move through as much memory as this, so that small kernels do not
// find everything in the nearest cache, as they do not in a step.
constexpr int64_t kFootprint = 8 << 20;
constexpr int kMostSets = 64;
constexpr double kBatchSeconds = 2e-3;
constexpr int kLeastBatches = 5, kMostBatches = 400;

double clockSeconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// Values that no kernel overflows on: floats in (0, 1), indices below 32.
void fill(char *data, const Buffer &buffer) {
  const int64_t count = int64_t(buffer.bytes()) / dtypeSize(buffer.dtype());
  for (int64_t i = 0; i < count; ++i)
    if (buffer.dtype() == F32)
      reinterpret_cast<float *>(data)[i] =
          float((i * 7919) % 1000 + 1) / 1001.0f;
    else if (buffer.dtype() == I64)
      reinterpret_cast<int64_t *>(data)[i] = i % 32;
    else if (buffer.dtype() == I32)
      reinterpret_cast<int32_t *>(data)[i] = int32_t(i % 32);
    else
      data[i * dtypeSize(buffer.dtype())] = 0;
}

// One rank's copies of the operands of a case.
class Operands {
public:
  Operands(Backend &backend, const Case &one) : backend_(backend) {
    std::map<uint32_t, char *> known;
    auto add = [&](const Operand &operand, std::vector<View> &views) {
      const Buffer &buffer = one.program->buffers(int(operand.buffer()));
      auto [it, fresh] = known.try_emplace(operand.buffer(), nullptr);
      if (fresh) {
        auto memory = backend.allocate(std::max<uint64_t>(buffer.bytes(), 64));
        if (!memory) {
          status = memory.status();
          return;
        }
        it->second = static_cast<char *>(*memory);
        memory_.push_back(*memory);
        fill(it->second, buffer);
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
  ~Operands() {
    for (void *memory : memory_)
      backend_.release(memory);
  }
  Operands(const Operands &) = delete;

  std::vector<View> inputs, outputs;
  std::vector<ScalarValue> scalars;
  Status status;

private:
  Backend &backend_;
  std::vector<void *> memory_;
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

Result<double> measureKernel(const Case &one, const MeasureOptions &options) {
  const Instruction &inst = *one.instruction;
  std::vector<Status> status(size_t(options.ranks));
  std::vector<double> seconds(size_t(options.ranks), 0);
  std::atomic<bool> stop{false};
  std::barrier<> together(options.ranks);
  const int sets = int(std::clamp<int64_t>(
      kFootprint / std::max<int64_t>(int64_t(inst.bytes()), 1), 1, kMostSets));
  const clockid_t clock =
      options.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  onRanks(options.ranks, [&](int rank) {
    ThreadPool pool(options.threads);
    cpu::CpuBackend backend(pool);
    std::vector<std::unique_ptr<Operands>> operands;
    std::vector<std::unique_ptr<Prepared>> prepared;
    Status &mine = status[size_t(rank)];
    if (inst.kind() == Instruction::KERNEL)
      mine = backend.loadKernels(options.kernels);
    for (int set = 0; set < sets && mine.ok(); ++set) {
      operands.push_back(std::make_unique<Operands>(backend, one));
      mine = operands.back()->status;
      if (!mine.ok())
        break;
      auto made = backend.prepare(inst, operands.back()->inputs,
                                  operands.back()->outputs);
      mine = made.status();
      if (mine.ok())
        prepared.push_back(std::move(*made));
    }
    int next = 0;
    auto run = [&](int64_t times) {
      for (int64_t i = 0; i < times && mine.ok(); ++i) {
        const size_t set = size_t(next++ % sets);
        const Operands &use = *operands[set];
        mine = backend.run({&inst, prepared[set].get(), use.inputs, use.outputs,
                            use.scalars, inst.accumulate(), nullptr});
      }
    };
    if (mine.ok())
      run(sets);
    if (!mine.ok())
      stop = true;
    together.arrive_and_wait();
    if (stop)
      return;
    double begin = clockSeconds(clock);
    run(1);
    const double once = std::max(clockSeconds(clock) - begin, 1e-8);
    const int64_t times = std::max<int64_t>(1, int64_t(kBatchSeconds / once));
    std::vector<double> batches;
    double spent = 0;
    while (int(batches.size()) < kLeastBatches ||
           (spent < options.secondsPerCase &&
            int(batches.size()) < kMostBatches)) {
      begin = clockSeconds(clock);
      run(times);
      const double time = clockSeconds(clock) - begin;
      spent += time;
      batches.push_back(time / double(times));
    }
    seconds[size_t(rank)] = lowerQuartile(batches);
  });
  double sum = 0;
  for (int rank = 0; rank < options.ranks; ++rank) {
    MERAK_RETURN_IF_ERROR(Status(status[size_t(rank)]).withContext(one.key));
    sum += seconds[size_t(rank)];
  }
  return sum / options.ranks;
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

} // namespace merak::bench
