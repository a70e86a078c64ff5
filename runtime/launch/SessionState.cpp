// The state of a run: from checkpoints, and into them.
#include "runtime/launch/Session.h"

#include "runtime/comm/inproc/InprocCommunicator.h"
#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/HostMemory.h"
#include "runtime/core/LearningRate.h"
#include "runtime/launch/TraceWriter.h"
#include "runtime/migration/StateMemory.h"
#include "runtime/plan/Entries.h"

#include <fmt/format.h>

#include <cmath>

namespace merak::runtime {
namespace {

std::string scheduleOf(const planpb::Optimizer &optimizer) {
  if (!optimizer.rate().empty())
    return optimizer.rate();
  std::string name = planpb::Optimizer::Schedule_Name(optimizer.schedule());
  for (char &c : name)
    c = char(std::tolower(c));
  if (optimizer.schedule() == planpb::Optimizer::CONSTANT)
    return fmt::format("{} lr={}", name, optimizer.lr());
  return fmt::format("{} lr={} warmup={} total={} min={}", name, optimizer.lr(),
                     optimizer.warmup(), optimizer.total(),
                     optimizer.min_factor());
}

// The result, or why any process has none.
template <typename T>
Result<T> agreed(Store *store, const std::string &what, Result<T> result) {
  MERAK_RETURN_IF_ERROR(agree(store, what, result.status()));
  return result;
}

void addLine(std::string &note, const std::string &line) {
  note += (note.empty() ? "" : "\n") + line;
}

} // namespace

Status Session::loadWeights(const std::string &load, std::string *note,
                            bool anyData) {
  TensorStore checkpoint;
  CheckpointState loaded;
  if (!load.empty())
    MERAK_RETURN_IF_ERROR(
        openCheckpoint(plan_, load, checkpoint, loaded, memories_));
  const CheckpointState now = state();
  const bool trains = plan_.file.mode() == "train";
  if (trains && !anyData && !loaded.data.empty() && loaded.data != now.data)
    return Status::error(
        fmt::format("\"{}\" was trained on other data: it had {}, --data is {} "
                    "(--force-resume goes on with them)",
                    load, loaded.data, now.data.empty() ? "none" : now.data));
  if (trains && !loaded.schedule.empty() && loaded.schedule != now.schedule)
    addLine(loaded.note,
            fmt::format("\"{}\" was trained with the learning rate \"{}\", the "
                        "plan's is \"{}\"",
                        load, loaded.schedule, now.schedule));
  std::string filesNote;
  auto store =
      TensorStore::fromPlan(plan_, &checkpoint, options_.verify, &filesNote);
  if (!store)
    return store.status();
  for (const auto &[name, tensor] : checkpoint.tensors())
    store->add(name, tensor);
  MERAK_RETURN_IF_ERROR(loadTensors(plan_, memories_, *store));
  if (!filesNote.empty())
    addLine(loaded.note, filesNote);
  nextStep_ = loaded.step;
  skipped_ = loaded.skipped;
  resumeScale(loaded);
  MERAK_RETURN_IF_ERROR(runEntries(kBeginEntry));
  if (data_)
    data_->setPosition(loaded.step, loaded.samples);
  if (note)
    *note = loaded.note;
  loaded_ = std::move(loaded);
  return {};
}

// Memory for the state of a rank: of the session before what is kept.
Result<BufferMemory> Session::stateOf(int rank, const Backend &backend) const {
  if (!options_.stateApart || !backend.isHost())
    return BufferMemory();
  BufferMemory kept;
  if (const migration::Migration *migration = options_.succession.migration)
    for (const migration::Kept &entry : migration->kept) {
      if (migration->targetRank[size_t(entry.device)] != rank)
        continue;
      const int before = migration->sourceRank[size_t(entry.device)];
      for (const RankMemory &memory : options_.succession.from->memories_)
        if (memory.program->rank() == before)
          kept[entry.target] = memory.program->arena().given(entry.source);
    }
  return migration::stateMemory(plan_, rank, kept);
}

Result<std::vector<migration::Moved>>
Session::moveState(const Session &from, const migration::Migration &migration) {
  // What the compiler folded into this plan comes with it.
  TensorStore moved;
  for (const HeldTensor &held : heldTensors(plan_))
    moved.add(held.tensor->name(), {});
  auto folded = TensorStore::fromPlan(plan_, &moved, options_.verify);
  if (!folded)
    return folded.status();
  MERAK_RETURN_IF_ERROR(loadTensors(plan_, memories_, *folded));
  // Ranks of one process meet as devices; a process is a device by itself.
  InprocWorld threads(migration.devices(),
                      options_.links ? std::make_unique<LinkEmulation>(
                                           *options_.links, migration.devices())
                                     : nullptr);
  World &world = world_->store() ? *world_ : threads;
  HostMemory host; // messages are packed there
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<migration::DeviceMemory> devices;
  auto memoryOf = [](const Session &session, int rank) -> const RankMemory * {
    for (const RankMemory &memory : session.memories_)
      if (memory.program->rank() == rank)
        return &memory;
    return nullptr;
  };
  for (int device : world.ranks()) {
    if (device >= migration.devices())
      return Status::error(
          fmt::format("device {} is none of the {} of the migration", device,
                      migration.devices()));
    auto communicator = world.communicator(device, host);
    if (!communicator)
      return communicator.status();
    communicators.push_back(std::move(*communicator));
    devices.push_back({device,
                       memoryOf(from, migration.sourceRank[size_t(device)]),
                       memoryOf(*this, migration.targetRank[size_t(device)]),
                       communicators.back().get()});
  }
  return migration::executeMigration(migration, devices);
}

Result<std::vector<migration::Moved>>
Session::takeState(Session &from, const migration::Migration &migration) {
  MERAK_RETURN_IF_ERROR(agree(world_->store(), "state settled", from.settle()));
  auto moved =
      agreed(world_->store(), "state moved", moveState(from, migration));
  if (!moved)
    return moved;
  const CheckpointState state = from.state();
  nextStep_ = state.step;
  skipped_ = state.skipped;
  resumeScale(state);
  MERAK_RETURN_IF_ERROR(runEntries(kBeginEntry));
  if (data_)
    data_->setPosition(state.step, state.samples);
  if (from.trace_) {
    trace_ = std::move(from.trace_);
    trace_->follow(executors());
  }
  return moved;
}

void Session::resumeScale(const CheckpointState &state) {
  if (lossScale_ && state.lossScaleSteps)
    lossScale_->resume(state.lossScale, *state.lossScaleSteps);
}

CheckpointState Session::state() {
  CheckpointState state;
  state.step = nextStep_;
  state.samples = data_ ? data_->position(nextStep_)
                        : nextStep_ * plan_.file.global_batch();
  state.skipped = skipped_;
  if (lossScale_) {
    state.lossScale = lossScale_->value();
    state.lossScaleSteps = lossScale_->steps();
  }
  state.seed = options_.seed;
  if (data_)
    state.data = data_->identity();
  const planpb::Optimizer &optimizer = plan_.file.optimizer();
  state.schedule = scheduleOf(optimizer);
  state.lr = rate_ ? rate_->at(nextStep_) : learningRate(optimizer, nextStep_);
  if (!std::isfinite(state.lr))
    state.lr = 0; // a file of numbers has no other
  return state;
}

Status Session::openSaves(const SaveOptions &options) {
  auto saves =
      CheckpointWriter::open(plan_, memories_, options, world_->store());
  if (!saves)
    return saves.status();
  saves_ = std::move(*saves);
  return {};
}

Status Session::takeSaves(Session &from, const SaveOptions &options) {
  MERAK_RETURN_IF_ERROR(from.saves_->wait()); // which reads its memory
  from.saves_.reset();
  savedStep_ = from.savedStep_;
  return openSaves(options);
}

Status Session::save(bool beside) {
  if (!saves_)
    return Status::error("no folder was opened for checkpoints");
  if (savedStep_ == nextStep_) { // it may have failed beside the steps
    if (beside)
      return {};
    const Status before = saves_->wait();
    if (before.ok())
      return before;
  }
  savedStep_ = nextStep_;
  MERAK_RETURN_IF_ERROR(agree(world_->store(), "state settled", settle()));
  return beside ? saves_->begin(state()) : saves_->write(state());
}

} // namespace merak::runtime
