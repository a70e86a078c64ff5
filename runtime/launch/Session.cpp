#include "runtime/launch/SessionRank.h"

#include "runtime/checkpoint/HostCopy.h"
#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/DType.h"
#include "runtime/core/Finite.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/core/LearningRate.h"
#include "runtime/core/MemoryCount.h"
#include "runtime/launch/Rates.h"
#include "runtime/launch/TraceWriter.h"
#include "runtime/launch/Watchdog.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Print.h"
#include "runtime/plan/Shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>
#include <tuple>

namespace merak::runtime {

namespace {

// Lets executors be made before the data are opened.
class LateReader : public InputReader {
public:
  explicit LateReader(const std::unique_ptr<ReadAhead> &data) : data_(data) {}
  Status read(const std::string &input, int64_t step,
              const std::vector<layout::Box> &boxes, void *data,
              const std::vector<int64_t> &shape) override {
    if (!data_)
      return Status::error("the run has no data");
    return data_->read(input, step, boxes, data, shape);
  }

private:
  const std::unique_ptr<ReadAhead> &data_;
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
  case planpb::F16: {
    uint16_t value;
    std::memcpy(&value, data, sizeof(value));
    return f16ToFloat(value);
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
  saves_.reset(); // reads the ranks' memory
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

Result<std::unique_ptr<Session>> Session::create(LoadedPlan plan,
                                                 const BackendFactory &factory,
                                                 const SessionOptions &options,
                                                 World *world) {
  std::unique_ptr<Session> session(new Session(std::move(plan)));
  session->world_ = world;
  if (const std::string &rate = session->plan_.file.optimizer().rate();
      !rate.empty()) {
    auto program = RateProgram::parse(rate);
    if (!program.ok())
      return program.status();
    session->rate_ = std::move(*program);
  }
  Status status = session->start(factory, options);
  if (!status.ok())
    return status;
  return session;
}

// What is said if the ranks of this process, which share a device, need more
// than it has. `beside`: lines for the table.
Status Session::checkMemory(uint64_t needed, uint64_t free,
                            const std::vector<std::string> &beside) const {
  if (needed <= free)
    return {};
  const std::vector<int> &ranks = world_->ranks();
  Status status = Status::error(fmt::format(
      "rank{} {} need{} {} on a device with {} free",
      ranks.size() == 1 ? "" : "s", rankList(ranks),
      ranks.size() == 1 ? "s" : "", humanBytes(needed), humanBytes(free)));
  std::istringstream table(memoryTable(plan_));
  for (std::string line; std::getline(table, line);)
    status.merge(Status::error("  " + line));
  for (const std::string &line : beside)
    status.merge(Status::error("  " + line));
  return status;
}

// Before anything is allocated: whether the arenas fit.
Status Session::checkArenas(Backend &backend) const {
  auto free = backend.freeMemory();
  if (!free)
    return free.status();
  return checkMemory(arenaBytes(), *free, {});
}

uint64_t Session::arenaBytes() const {
  uint64_t bytes = 0;
  for (int rank : world_->ranks())
    bytes += Arena::bytes(plan_.programOf(rank), options_.separateArena);
  return bytes;
}

// All processes open what they communicate by in one order, before any of them
// begins a step: nothing that a step enqueues can keep another rank from it.
Status Session::openCommunication() {
  for (const auto &rank : ranks_) {
    auto before = rank->backend->freeMemory();
    if (!before)
      return before.status();
    MERAK_RETURN_IF_ERROR(rank->comm->open());
    auto after = rank->backend->freeMemory();
    if (!after)
      return after.status();
    if (*after < *before)
      rank->communicationBytes = *before - *after;
  }
  return agree(world_->store(), "communication", Status());
}

std::string Session::communicationNote() const {
  return ranks_.front()->comm->note();
}

// Once all calls are prepared: what libraries and communication need beside
// the arenas, which are taken already. A step takes nothing more.
Status Session::takeWorkspaces() {
  MERAK_RETURN_IF_ERROR(openCommunication());
  MERAK_RETURN_IF_ERROR(checkWorkspaces(true));
  for (const auto &rank : ranks_)
    // NCCL wants operands in memory of its own on all ranks or on none.
    MERAK_RETURN_IF_ERROR(rank->backend->takeWorkspaces(
        options_.separateArena ? nullptr : rank->comm->memory()));
  return {};
}

Status Session::checkWorkspaces(bool opened) const {
  auto free = ranks_[0]->backend->freeMemory();
  if (!free)
    return free.status();
  uint64_t needed = 0, taken = 0;
  std::vector<std::string> lines;
  auto add = [&](int rank, const std::string &what, uint64_t bytes) {
    if (bytes > 0)
      lines.push_back(
          fmt::format("rank {}: {} {}", rank, what, humanBytes(bytes)));
    needed += bytes;
  };
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank &rank = *ranks_[i];
    const int number = world_->ranks()[i];
    for (int lane = 0; lane < rank.program->lanes(); ++lane)
      add(number,
          fmt::format("workspace of stream \"{}\"",
                      rank.program->streamName(lane)),
          rank.backend->workspaceBytes(rank.program->stream(lane)));
    if (opened)
      add(number, "buffers of communication", rank.communicationBytes);
    else
      add(number, "buffers of communication, at least",
          rank.comm->libraryBytes());
    taken += rank.communicationBytes;
  }
  if (*free == UINT64_MAX) // no limit is known
    return {};
  return checkMemory(arenaBytes() + needed, arenaBytes() + taken + *free,
                     lines);
}

Status Session::start(const BackendFactory &factory,
                      const SessionOptions &options) {
  options_ = options;
  if (scalesLoss(plan_))
    lossScale_.emplace(options.lossScale);
  if (!world_) {
    const int count = plan_.file.ranks_size();
    ownWorld_ = std::make_unique<InprocWorld>(
        count, options.links
                   ? std::make_unique<LinkEmulation>(*options.links, count)
                   : nullptr);
    world_ = ownWorld_.get();
  }
  const int count = static_cast<int>(world_->ranks().size());
  reader_ = std::make_unique<LateReader>(ahead_);
  const int cores = std::max(1u, std::thread::hardware_concurrency());
  const int threads =
      options.threads > 0 ? options.threads : std::max(1, cores / count);
  auto makeRanks = [&]() -> Status {
    Status problems;
    for (int r : world_->ranks()) {
      Rank &rank = *ranks_.emplace_back(std::make_unique<Rank>());
      rank.pool = std::make_unique<ThreadPool>(threads);
      auto backend = factory(*rank.pool);
      if (!backend)
        return backend.status();
      rank.backend = std::move(*backend);
      if (ranks_.size() == 1)
        MERAK_RETURN_IF_ERROR(checkArenas(*rank.backend));
      if (!plan_.file.kernels().empty())
        MERAK_RETURN_IF_ERROR(
            rank.backend->loadKernels(plan_.dir + "/" + plan_.file.kernels()));
      auto comm = world_->communicator(r, *rank.backend);
      if (!comm)
        return comm.status();
      rank.comm = std::move(*comm);
      auto state = stateOf(r, *rank.backend);
      if (!state)
        return state.status();
      auto program =
          RankProgram::create(plan_, r, *rank.backend, *rank.comm,
                              options_.separateArena, std::move(*state));
      if (!program) {
        problems.merge(program.status());
        continue;
      }
      rank.program = std::move(*program);
    }
    return problems.ok() ? checkWorkspaces(false) : problems;
  };
  // From here on ranks wait for each other.
  MERAK_RETURN_IF_ERROR(agree(world_->store(), "ranks", makeRanks()));
  options_.succession = {}; // which need not outlive this
  MERAK_RETURN_IF_ERROR(takeWorkspaces());
  for (const auto &rank : ranks_)
    memories_.push_back({rank->program.get(), rank->backend.get()});
  std::vector<const Executor *> executors;
  InstructionSeconds pace;
  if (options.pace > 0 && options.predicted) {
    Result<InstructionSeconds> seconds = options.predicted(plan_);
    MERAK_RETURN_IF_ERROR(seconds.status());
    pace = std::move(*seconds);
  }
  const std::vector<int> devices = devicesOf(plan_.file);
  for (int i = 0; i < count; ++i) {
    Rank &rank = *ranks_[i];
    const int r = world_->ranks()[i];
    ExecutorOptions executorOptions{.trace = options.trace,
                                    .records = options.rateEvery > 0,
                                    .checkNumerics = options.checkNumerics};
    for (const SlowRequest &slow : options.slow)
      if (slow.device == devices[size_t(r)]) {
        executorOptions.slowness = slow.factor;
        executorOptions.slowFrom = slow.from;
        executorOptions.slowTo = slow.to;
      }
    if (pace)
      executorOptions.lasts = [pace, r,
                               scale = options.pace](const auto &instruction) {
        return scale * pace(r, instruction);
      };
    if (options.fault.rank == r)
      (options.fault.hang   ? executorOptions.hangAtStep
       : options.fault.kill ? executorOptions.killAtStep
                            : executorOptions.failAtStep) = options.fault.step;
    rank.executor =
        std::make_unique<Executor>(*rank.program, *rank.backend, *rank.comm,
                                   reader_.get(), executorOptions);
    executors.push_back(rank.executor.get());
    if (i == 0)
      continue;
    rank.thread = std::thread([this, &rank] {
      for (uint64_t step = 1;
           start_.wait([&] { return started_.load() >= step; }, stop_);
           ++step) {
        rank.status = runRank(rank);
        if (running_.fetch_sub(1) == 1)
          finish_.notify();
      }
    });
  }
  if (options.watchdogSeconds > 0)
    watchdog_ = std::make_unique<Watchdog>(
        executors, options.watchdogSeconds,
        [this](std::vector<std::string> lines) {
          Status status = Status::error(
              world_->store()
                  ? fmt::format("rank {} has not moved for {} seconds",
                                world_->store()->rank(),
                                options_.watchdogSeconds)
                  : fmt::format("no rank has moved for {} seconds",
                                options_.watchdogSeconds));
          for (std::string &line : lines)
            status.merge(Status::error("  " + line));
          world_->abort(status);
        });
  return {};
}

void Session::setData(std::unique_ptr<DataSource> data) {
  ahead_.reset();
  data_ = std::move(data);
  ahead_ = std::make_unique<ReadAhead>(*data_, plan_.file);
}

// After the first step, in which libraries opened what they need. Processes
// that communicate do so all in the same way: either all capture or none.
Status Session::captureStep(const StepScalars &scalars) {
  if (stepsRun_ != 1 || ranks_[0]->backend->isHost())
    return {};
  Status mine;
  if (!options_.graphs)
    mine = Status::error("--graphs=off");
  else if (ranks_.size() > 1)
    mine = Status::error("ranks that share a device meet on the host");
  else
    mine = ranks_[0]->executor->capture(scalars);
  std::string why = mine.str();
  if (Store *store = world_->store()) {
    auto all = store->gather("capture", why, kPatienceSeconds);
    if (!all)
      return all.status();
    for (size_t rank = 0; rank < all->size() && why.empty(); ++rank)
      if (!(*all)[rank].empty())
        why = fmt::format("rank {}: {}", rank, (*all)[rank]);
  }
  if (!why.empty())
    ranks_[0]->executor->dropCapture();
  graphNote_ =
      why.empty()
          ? fmt::format("steps after the first are launched as one graph of {} "
                        "operations",
                        ranks_[0]->executor->captured())
          : "steps are not launched as one graph: " + why;
  return {};
}

Status Session::runRank(Rank &rank) const {
  return entry_.empty() ? rank.executor->step(scalars_)
                        : rank.executor->runEntry(entry_, scalars_);
}

Status Session::runRanks(const StepScalars &scalars, std::string_view entry) {
  scalars_ = scalars;
  entry_ = entry;
  const int others = static_cast<int>(ranks_.size()) - 1;
  running_ = others;
  if (watchdog_)
    watchdog_->stepBegins();
  if (others > 0) {
    started_.fetch_add(1);
    start_.notify();
  }
  ranks_[0]->status = runRank(*ranks_[0]);
  static const std::atomic<bool> kNever{false};
  if (others > 0)
    finish_.wait([&] { return running_.load() == 0; }, kNever);
  if (watchdog_)
    watchdog_->stepEnds();
  return failure();
}

Status Session::runEntries(std::string_view name) {
  StepScalars scalars;
  scalars.step = nextStep_ - 1; // "step" is that of the last one
  scalars.stepBefore = nextStep_;
  scalars.lrBefore = rateOf(nextStep_ - 1);
  scalars.seed = static_cast<int64_t>(options_.seed);
  return runRanks(scalars, name);
}

double Session::rateOf(int64_t step) {
  if (step < 0)
    return 0;
  return rate_ ? rate_->at(step) : learningRate(plan_.file.optimizer(), step);
}

Status Session::settle() {
  if (settledStep_ == nextStep_)
    return {};
  MERAK_RETURN_IF_ERROR(runEntries(kFlushEntry));
  settledStep_ = nextStep_;
  return {};
}

Status Session::failure() const {
  Status failure = world_->abortReason();
  // The cause is told where it happened; the others' messages name it. What the
  // watchdog tells has more lines.
  if (Store *store = world_->store();
      store && !ranks_[0]->status.ok() &&
      (store->abortedBy() != store->rank() || failure.messages().size() == 1))
    return ranks_[0]->status;
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
  scalars.lrBefore = rateOf(nextStep_ - 1);
  scalars.lr = rateOf(nextStep_);
  scalars.stepBefore = nextStep_;
  scalars.seed = static_cast<int64_t>(options_.seed);
  scalars.gradScale = stepLossScale_ = lossScale_ ? lossScale_->value() : 1;
  MERAK_RETURN_IF_ERROR(captureStep(scalars));
  const bool measures =
      options_.rateEvery > 0 && (nextStep_ + 1) % options_.rateEvery == 0;
  for (const auto &rank : ranks_)
    rank->executor->record(measures);
  const auto begin = std::chrono::steady_clock::now();
  MERAK_RETURN_IF_ERROR(runRanks(scalars));
  ++stepsRun_;
  result.captured = ranks_[0]->executor->captured() > 0;
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  result.memoryBytes = MemoryCount::most();
  result.lr = scalars.lr;
  result.lossScale = scalars.gradScale;
  result.step = ++nextStep_;
  result.epochs = data_ ? data_->epochs(nextStep_) : 0;
  MERAK_RETURN_IF_ERROR(readOutputs(result));
  const Result<bool> finite = gradientsFinite(result);
  if (!finite)
    return finite.status();
  judge(result, *finite);
  if (measures)
    result.computed = computed();
  if (trace_)
    MERAK_RETURN_IF_ERROR(trace_->add());
  return result;
}

Status Session::readOutputs(StepResult &result) const {
  Relay relay(memories_, world_->store(),
              fmt::format("outputs/{}", result.step));
  std::set<std::string> seen;
  std::vector<char> value;
  for (int r = 0; r < plan_.file.ranks_size(); ++r) {
    const planpb::Program &program = plan_.programOf(r);
    for (const planpb::Output &output : program.outputs()) {
      const planpb::Buffer &buffer = program.buffers(output.buffer());
      int64_t elements = 1;
      for (int64_t size : buffer.shape())
        elements *= size;
      // Replicas have the same value: the first rank speaks.
      if (elements != 1 ||
          (output.per_microbatch() &&
           plan_.file.microbatches() * submicrobatches(plan_.file) > 1) ||
          !seen.insert(output.name()).second)
        continue;
      value.assign(8, 0);
      auto here = relay.piece(r, value, [&](const RankMemory &rank) {
        return rank.backend->copyToHost(
            value.data(),
            rank.program->bufferData(static_cast<int>(output.buffer())),
            dtypeSize(buffer.dtype()), rank.program->stream(0));
      });
      if (!here.ok())
        return here.status();
      if (*here)
        result.outputs[output.name()] =
            scalarValue(buffer.dtype(), value.data());
    }
  }
  return {};
}

// In the step that was recorded last.
std::vector<rates::Seconds> Session::computed() {
  std::vector<rates::Seconds> ranks;
  for (const auto &rank : ranks_) {
    rates::Seconds &sum = ranks.emplace_back();
    for (const std::vector<TraceEvent> &lane : rank->executor->trace())
      for (const TraceEvent &event : lane)
        if (auto of = rates::classOf(*event.op->instruction))
          sum[size_t(*of)] += 1e-9 * double(event.end - event.begin);
    if (!trace_)
      rank->executor->forgetTrace();
  }
  return ranks;
}

Result<std::map<std::string, GlobalOutput>> Session::globalOutputs() const {
  std::map<std::string, GlobalOutput> outputs;
  Relay relay(memories_, world_->store(), fmt::format("global/{}", nextStep_));
  // Replicas hold equal boxes: the first rank speaks.
  std::set<std::tuple<std::string, int64_t, std::vector<int64_t>>> seen;
  std::vector<char> part;
  for (int r = 0; r < plan_.file.ranks_size(); ++r) {
    const planpb::Program &program = plan_.programOf(r);
    const layout::AxisMap mesh = layoutMesh(plan_.file, r);
    // Prologues go over the microbatches of other pipelines too.
    const std::set<int64_t> own = trainedBy(program);
    std::map<std::string, int64_t> parts; // of a microbatch, seen so far
    for (const planpb::Output &proto : program.outputs()) {
      const int64_t ofMicrobatch = parts[proto.name()]++;
      const planpb::Buffer &buffer = program.buffers(proto.buffer());
      GlobalOutput &output = outputs[proto.name()];
      output.dtype = buffer.dtype();
      output.shape.assign(proto.shape().begin(), proto.shape().end());
      int64_t elements = 1;
      for (int64_t size : output.shape)
        elements *= size;
      const int64_t size = dtypeSize(buffer.dtype());
      if (relay.leads())
        output.data.resize(elements * size);
      layout::Layout layout = fromProto(proto.layout());
      if (layout.dims.size() != output.shape.size())
        layout = layout::Layout::replicated(output.shape);
      // Of several calls for a microbatch the last has the value.
      for (int c = program.calls_size(); c-- > 0;) {
        const planpb::Call &call = program.calls(c);
        if (proto.per_microbatch() != (call.microbatch() >= 0) ||
            (proto.per_microbatch() && !own.contains(call.microbatch())))
          continue;
        int64_t mb = 0;
        if (proto.per_microbatch())
          mb = call.microbatch() * submicrobatches(plan_.file) + ofMicrobatch;
        layout::AxisMap coords = coordsOf(plan_.file, r);
        coords["mb"] = mb;
        for (const layout::Box &box : layout::boxes(layout, mesh, coords)) {
          if (!seen.insert({proto.name(), mb, box.globalOrigin}).second)
            continue;
          const std::vector<int64_t> zero(box.extent.size(), 0);
          part.resize(box.elements() * size);
          auto here = relay.piece(r, part, [&](const RankMemory &rank) {
            auto copy = HostCopy::of(rank, int(proto.buffer()),
                                     int(slotOf(buffer, call)));
            if (!copy)
              return copy.status();
            layout::copyBox(copy->data(), copy->shape(), box.localOrigin,
                            part.data(), box.extent, zero, box.extent, size);
            return Status();
          });
          if (!here.ok())
            return here.status();
          if (*here)
            layout::copyBox(part.data(), box.extent, zero, output.data.data(),
                            output.shape, box.globalOrigin, box.extent, size);
        }
      }
    }
  }
  return outputs;
}

Status Session::saveGradients(const std::string &path) const {
  return runtime::saveGradients(plan_, memories_, path, world_->store(),
                                stepLossScale_);
}

std::vector<Executor *> Session::executors() const {
  std::vector<Executor *> executors;
  for (const auto &rank : ranks_)
    executors.push_back(rank->executor.get());
  return executors;
}

Status Session::openTrace(const std::string &path) {
  auto trace = TraceWriter::open(path, executors(), world_->store());
  if (!trace.ok())
    return trace.status();
  trace_ = std::move(*trace);
  return {};
}

Status Session::closeTrace() { return trace_ ? trace_->close() : Status(); }

} // namespace merak::runtime
