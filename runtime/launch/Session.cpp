#include "runtime/launch/Session.h"

#include "runtime/checkpoint/HostCopy.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/core/DType.h"
#include "runtime/core/Finite.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/core/LearningRate.h"
#include "runtime/launch/TraceWriter.h"
#include "runtime/launch/Watchdog.h"

#include <fmt/format.h>

#include <algorithm>

namespace merak::runtime {

struct Session::Rank {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<RankProgram> program;
  std::unique_ptr<Executor> executor;
  std::thread thread;
  Status status;
};

namespace {

// Lets executors be made before the data are opened.
class LateReader : public InputReader {
public:
  explicit LateReader(const std::unique_ptr<DataSource> &data) : data_(data) {}
  Status read(const std::string &input, int64_t step,
              const std::vector<layout::Box> &boxes, void *data,
              const std::vector<int64_t> &shape) override {
    if (!data_)
      return Status::error("the run has no data");
    return data_->read(input, step, boxes, data, shape);
  }

private:
  const std::unique_ptr<DataSource> &data_;
};

double scalarValue(planpb::DType dtype, const char *data) {
  switch (dtype) {
  case planpb::F64: {
    double value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  case planpb::I64: {
    int64_t value;
    std::memcpy(&value, data, sizeof(value));
    return static_cast<double>(value);
  }
  case planpb::BF16: {
    uint16_t value;
    std::memcpy(&value, data, sizeof(value));
    return bf16ToFloat(value);
  }
  default: {
    float value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  }
}

} // namespace

Session::Session(LoadedPlan plan) : plan_(std::move(plan)) {}

Session::~Session() {
  stop_ = true;
  start_.notify();
  for (auto &rank : ranks_)
    if (rank->thread.joinable())
      rank->thread.join();
  watchdog_.reset();
  for (auto &rank : ranks_) { // executors before programs before backends
    rank->executor.reset();
    rank->program.reset();
  }
}

Result<std::unique_ptr<Session>>
Session::create(LoadedPlan plan, const BackendFactory &factory,
                const SessionOptions &options) {
  std::unique_ptr<Session> session(new Session(std::move(plan)));
  Status status = session->start(factory, options);
  if (!status.ok())
    return status;
  return session;
}

Status Session::start(const BackendFactory &factory,
                      const SessionOptions &options) {
  options_ = options;
  const int count = plan_.file.ranks_size();
  world_ = std::make_unique<InprocWorld>(
      count, options.links
                 ? std::make_unique<LinkEmulation>(*options.links, count)
                 : nullptr);
  reader_ = std::make_unique<LateReader>(data_);
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, cores / count);
  Status problems;
  for (int r = 0; r < count; ++r) {
    Rank &rank = *ranks_.emplace_back(std::make_unique<Rank>());
    rank.pool = std::make_unique<ThreadPool>(threads);
    auto backend = factory(*rank.pool);
    if (!backend)
      return backend.status();
    rank.backend = std::move(*backend);
    if (!plan_.file.kernels().empty())
      MERAK_RETURN_IF_ERROR(
          rank.backend->loadKernels(plan_.dir + "/" + plan_.file.kernels()));
    rank.comm = world_->communicator(r);
    auto program = RankProgram::create(plan_, r, *rank.backend, *rank.comm);
    if (!program) {
      problems.merge(program.status());
      continue;
    }
    rank.program = std::move(*program);
  }
  if (!problems.ok())
    return problems;
  std::vector<const Executor *> executors;
  for (int r = 0; r < count; ++r) {
    Rank &rank = *ranks_[r];
    ExecutorOptions executorOptions{options.trace, options.checkNumerics};
    if (options.fault.rank == r)
      (options.fault.hang ? executorOptions.hangAtStep
                          : executorOptions.failAtStep) = options.fault.step;
    rank.executor =
        std::make_unique<Executor>(*rank.program, *rank.backend, *rank.comm,
                                   reader_.get(), executorOptions);
    executors.push_back(rank.executor.get());
    if (r == 0)
      continue;
    rank.thread = std::thread([this, &rank] {
      for (uint64_t step = 1;
           start_.wait([&] { return started_.load() >= step; }, stop_);
           ++step) {
        rank.status = rank.executor->step(scalars_);
        if (running_.fetch_sub(1) == 1)
          finish_.notify();
      }
    });
  }
  if (options.watchdogSeconds > 0)
    watchdog_ = std::make_unique<Watchdog>(
        executors, options.watchdogSeconds,
        [this](std::vector<std::string> lines) {
          Status status = Status::error(fmt::format(
              "no rank has moved for {} seconds", options_.watchdogSeconds));
          for (std::string &line : lines)
            status.merge(Status::error("  " + line));
          world_->abort(status);
        });
  return {};
}

void Session::setData(std::unique_ptr<DataSource> data) {
  data_ = std::move(data);
}

std::vector<RankMemory> Session::memories() const {
  std::vector<RankMemory> memories;
  for (const auto &rank : ranks_)
    memories.push_back({rank->program.get(), rank->backend.get()});
  return memories;
}

Status Session::loadWeights(const std::string &load, std::string *note) {
  TensorStore checkpoint;
  CheckpointState state;
  if (!load.empty())
    MERAK_RETURN_IF_ERROR(openCheckpoint(plan_, load, checkpoint, state));
  auto store = TensorStore::fromPlan(plan_, &checkpoint);
  if (!store)
    return store.status();
  for (const auto &[name, tensor] : checkpoint.tensors())
    store->add(name, tensor);
  MERAK_RETURN_IF_ERROR(loadTensors(plan_, memories(), *store));
  nextStep_ = state.step;
  if (data_)
    data_->setPosition(state.step, state.samples);
  if (note)
    *note = state.note;
  return {};
}

Status Session::runRanks(const StepScalars &scalars) {
  scalars_ = scalars;
  const int others = ranks() - 1;
  running_ = others;
  if (watchdog_)
    watchdog_->stepBegins();
  if (others > 0) {
    started_.fetch_add(1);
    start_.notify();
  }
  ranks_[0]->status = ranks_[0]->executor->step(scalars);
  static const std::atomic<bool> kNever{false};
  if (others > 0)
    finish_.wait([&] { return running_.load() == 0; }, kNever);
  if (watchdog_)
    watchdog_->stepEnds();
  Status failure = world_->abortReason();
  for (const auto &rank : ranks_)
    for (const std::string &message : rank->status.messages())
      if (std::find(failure.messages().begin(), failure.messages().end(),
                    message) == failure.messages().end())
        failure.merge(Status::error(message));
  return failure;
}

Result<StepResult> Session::step() {
  StepResult result;
  StepScalars scalars;
  scalars.step = nextStep_;
  scalars.lr = learningRate(plan_.file.optimizer(), nextStep_);
  scalars.seed = static_cast<int64_t>(options_.seed);
  const auto begin = std::chrono::steady_clock::now();
  MERAK_RETURN_IF_ERROR(runRanks(scalars));
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  result.lr = scalars.lr;
  result.step = ++nextStep_;
  MERAK_RETURN_IF_ERROR(readOutputs(result));
  return result;
}

Status Session::readOutputs(StepResult &result) const {
  for (const auto &rank : ranks_) {
    const planpb::Program &program = rank->program->proto();
    for (const planpb::Output &output : program.outputs()) {
      const planpb::Buffer &buffer = program.buffers(output.buffer());
      int64_t elements = 1;
      for (int64_t size : buffer.shape())
        elements *= size;
      // Replicas have the same value: the first rank speaks.
      if (elements != 1 ||
          (output.per_microbatch() && plan_.file.microbatches() > 1) ||
          result.outputs.count(output.name()))
        continue;
      char value[8] = {};
      MERAK_RETURN_IF_ERROR(rank->backend->copyToHost(
          value, rank->program->bufferData(static_cast<int>(output.buffer())),
          dtypeSize(buffer.dtype()), rank->program->stream(0)));
      result.outputs[output.name()] = scalarValue(buffer.dtype(), value);
    }
  }
  return {};
}

Result<std::map<std::string, GlobalOutput>> Session::globalOutputs() const {
  std::map<std::string, GlobalOutput> outputs;
  for (const RankMemory &memory : memories()) {
    const planpb::Program &program = memory.program->proto();
    for (const planpb::Output &proto : program.outputs()) {
      const planpb::Buffer &buffer = program.buffers(proto.buffer());
      GlobalOutput &output = outputs[proto.name()];
      output.dtype = buffer.dtype();
      output.shape.assign(proto.shape().begin(), proto.shape().end());
      int64_t elements = 1;
      for (int64_t size : output.shape)
        elements *= size;
      const int64_t size = dtypeSize(buffer.dtype());
      output.data.resize(elements * size);
      layout::Layout layout = fromProto(proto.layout());
      if (layout.dims.size() != output.shape.size())
        layout = layout::Layout::replicated(output.shape);
      for (const planpb::Call &call : program.calls()) {
        if (proto.per_microbatch() != (call.microbatch() >= 0))
          continue;
        layout::AxisMap coords = memory.program->coords();
        coords["mb"] = std::max<int64_t>(0, call.microbatch());
        auto copy = HostCopy::of(memory, int(proto.buffer()),
                                 int(slotOf(buffer, call)));
        if (!copy)
          return copy.status();
        for (const layout::Box &box :
             layout::boxes(layout, memory.program->mesh(), coords))
          layout::copyBox(copy->data(), copy->shape(), box.localOrigin,
                          output.data.data(), output.shape, box.globalOrigin,
                          box.extent, size);
      }
    }
  }
  return outputs;
}

Status Session::save(const std::string &dir) const {
  CheckpointState state;
  state.step = nextStep_;
  state.samples = data_ ? data_->position(nextStep_)
                        : nextStep_ * plan_.file.global_batch();
  return saveCheckpoint(plan_, memories(), dir, state);
}

Status Session::saveGradients(const std::string &path) const {
  return runtime::saveGradients(plan_, memories(), path);
}

Status Session::writeTrace(const std::string &path) const {
  std::vector<Executor *> executors;
  for (const auto &rank : ranks_)
    executors.push_back(rank->executor.get());
  return runtime::writeTrace(path, executors);
}

} // namespace merak::runtime
