// A plan running: the ranks of this process, with a backend, thread pool and
// executor for each, and through their world those of other processes. What
// concerns the whole run (outputs, checkpoints, gradients, the timeline) is
// called by all processes in the same order; rank 0's has the results.
#pragma once

#include "runtime/checkpoint/CheckpointWriter.h"
#include "runtime/comm/World.h"
#include "runtime/core/Executor.h"
#include "runtime/core/LossScale.h"
#include "runtime/data/ReadAhead.h"
#include "runtime/migration/Execute.h"
#include "runtime/plan/Links.h"
#include "runtime/plan/RateProgram.h"
#include "runtime/rates/RateBook.h"

#include <functional>
#include <map>
#include <memory>

namespace merak::runtime {

class Session;
class TraceWriter;
class Watchdog;

// Makes the backend of one rank, which computes with the threads of `pool`.
using BackendFactory =
    std::function<Result<std::unique_ptr<Backend>>(ThreadPool &pool)>;

// "RANK:STEP:fail", "hang" or "kill", steps from 1 (MERAK_FAULT).
struct FaultRequest {
  int rank = -1;
  int64_t step = -1; // from 0
  bool hang = false, kill = false;
};

// Of compute instructions, by the rank that executes them.
using InstructionSeconds =
    std::function<double(int rank, const planpb::Instruction &)>;
// What a plan's cluster says.
using PredictedSeconds =
    std::function<Result<InstructionSeconds>(const LoadedPlan &)>;

// "DEVICE:FACTOR:FROM:TO": in steps FROM to TO (from 1) what the device
// computes, whichever rank is there, takes FACTOR times as long (MERAK_SLOW).
struct SlowRequest {
  int device = -1;
  double factor = 1;
  int64_t from = 0, to = 0; // steps from 0, without `to`
};

// What to do when a step's loss or gradients are not finite.
enum class OnNonFinite {
  stop,  // the step is an error
  skip,  // go on: the plan's updates change nothing in such a step
  ignore // go on
};

// What a session keeps of the memory of one that it takes the place of.
struct Succession {
  const Session *from = nullptr; // with its state apart
  const migration::Migration *migration = nullptr;
};

struct SessionOptions {
  int threads = 0; // of each rank; 0: share the cores of this process
  bool trace = false;
  bool checkNumerics = false;
  double watchdogSeconds = 300; // without any progress; 0: none
  OnNonFinite onNonFinite = OnNonFinite::stop;
  LossScaleOptions lossScale; // of plans that scale it (LossScaled.h)
  uint64_t seed = 0;
  // Devices launch steps after the first as one graph where they can.
  bool graphs = true;
  // Each buffer in an allocation of its own, between red zones (Arena.h).
  bool separateArena = false;
  // State in memory of its own, on hosts, so that a session of another plan can
  // take over what the migration keeps, without a copy. Nothing on devices.
  bool stateApart = false;
  Succession succession; // with stateApart
  FaultRequest fault;
  std::vector<SlowRequest> slow;
  // For tests of devices that this machine does not have: instructions last so
  // many times as long as predicted; 0: as they do.
  double pace = 0;
  PredictedSeconds predicted;
  // Every so many steps what ranks compute is measured; 0: never. On a device
  // steps are then not launched as graphs.
  int64_t rateEvery = 0;
  // How the model's files are compared with those that were compiled.
  SourceCheck verify = SourceCheck::Sampled;
  // To emulate between threads of one process; none: as fast as memory.
  std::optional<Links> links;
};

struct StepResult {
  int64_t step = 0; // from 1
  double lr = 0;
  double lossScale = 1; // 1 where the plan scales none
  double seconds = 0;
  int64_t memoryBytes = 0; // of all ranks of the process, the most so far
  std::map<std::string, double> outputs; // "loss", "grad_norm", ...
  // The gradients were not finite, and the plan's updates changed nothing.
  bool skipped = false;
  // For that the scale of the loss is smaller from now on.
  bool overflowed = false;
  // Which outputs are not finite, if the run stops at that; rank 0's process
  // knows.
  std::string bad;
  bool captured = false; // launched as one graph
  double epochs = 0;     // of the data, done by now; 0: they have no end
  // If this step was measured: what each rank of this process computed, and
  // what is known by then of all ranks of the run (Rates.h).
  std::vector<rates::Seconds> computed;
  std::vector<rates::DeviceRate> rates; // by device
  std::vector<int> idle;                // devices on which the plan has no rank
};

// The value of one output for a whole global batch.
struct GlobalOutput {
  planpb::DType dtype = planpb::DTYPE_INVALID;
  std::vector<int64_t> shape;
  std::vector<char> data;
};

class Session {
public:
  // Makes ranks and loads kernels. Without a world all ranks are threads of
  // this process; else the world has as many ranks as the plan.
  static Result<std::unique_ptr<Session>> create(LoadedPlan plan,
                                                 const BackendFactory &factory,
                                                 const SessionOptions &options,
                                                 World *world = nullptr);
  ~Session();

  const LoadedPlan &plan() const { return plan_; }
  // Of the ranks of this process.
  const std::vector<RankMemory> &memories() const { return memories_; }
  World &world() { return *world_; }
  void setData(std::unique_ptr<DataSource> data);

  // Puts the model's values, or a checkpoint's (if `load` is not empty), into
  // the ranks' memory. `note` gets what the user should know. Refuses a
  // checkpoint of other data than the run's, unless `anyData`.
  Status loadWeights(const std::string &load, std::string *note = nullptr,
                     bool anyData = false);
  // Goes on where a session of another plan of the model is, without a
  // checkpoint: moves its state here as `migration`, from its plan to this one,
  // says, and takes its step and its position in the data. Both are
  // between two steps, and have all their ranks in this process or are of one
  // world, whose ranks are then the devices. `from` stays as it is; if this
  // session has memory of its (Succession), it makes no further step. A
  // timeline goes on in this session. Returns what each device of this process
  // did.
  Result<std::vector<migration::Moved>>
  takeState(Session &from, const migration::Migration &migration);

  // One step of all ranks. On an error every rank has stopped; the messages
  // begin with the cause, or, if that is in another process, with what this
  // process did then.
  Result<StepResult> step();
  int64_t stepsDone() const { return nextStep_; }
  // On a device, after the second step: whether steps are launched as one
  // graph, or why not; else empty.
  const std::string &graphNote() const { return graphNote_; }
  // What the first rank of this process communicates by.
  std::string communicationNote() const;

  // Checkpoints. Takes the folder for this run; then each call of `save`, by
  // all processes, makes a generation of it: before it comes back, or beside
  // the next steps. Two of one step are one.
  Status openSaves(const SaveOptions &options);
  const CheckpointWriter *saves() const { return saves_.get(); }
  Status save(bool beside = false);
  // Before the ranks' memory is read by anything but steps: what programs put
  // off is done.
  Status settle();
  // Of a session whose state was taken: the folder, and what was saved there.
  Status takeSaves(Session &from, const SaveOptions &options);
  // What the next generation would say of the run.
  CheckpointState state();
  // What the loaded one said.
  const CheckpointState &loaded() const { return loaded_; }

  Status saveGradients(const std::string &path) const;
  // Why the run ends at a step (from 1) that was bad, and in which samples of
  // which rank that began. All processes look; then no step can follow.
  Status explain(int64_t step, const std::string &bad);
  // Before the first step, on all processes: steps are added to the timeline
  // as they end (TraceWriter.h).
  Status openTrace(const std::string &path);
  // Without openTrace nothing. Of the step of a failure each process writes
  // its own part: rank 0 to the file, rank r to one with ".rank-<r>" behind
  // its name.
  Status closeTrace();
  // Values of the last step that are not scalars, by name (infer plans); in
  // rank 0's process.
  Result<std::map<std::string, GlobalOutput>> globalOutputs() const;

private:
  struct Rank;
  explicit Session(LoadedPlan plan);
  Status start(const BackendFactory &factory, const SessionOptions &options);
  Status checkMemory(uint64_t needed, uint64_t free,
                     const std::vector<std::string> &beside) const;
  Status checkArenas(Backend &backend) const;
  uint64_t arenaBytes() const;
  Result<std::vector<migration::Moved>>
  moveState(const Session &from, const migration::Migration &migration);
  Result<BufferMemory> stateOf(int rank, const Backend &backend) const;
  Status openCommunication();
  Status takeWorkspaces();
  Status checkWorkspaces(bool opened) const;
  Status captureStep(const StepScalars &scalars);
  // A step, or a procedure that has this name (Entries.h), on all ranks at
  // once.
  Status runRanks(const StepScalars &scalars, std::string_view entry = {});
  Status runRank(Rank &rank) const;
  double rateOf(int64_t step);
  void resumeScale(const CheckpointState &state);
  // What the ranks' programs have of it (Entries.h), with the steps done.
  Status runEntries(std::string_view name);
  Status failure() const;
  Status readOutputs(StepResult &result) const;
  std::vector<rates::Seconds> computed();
  std::vector<Executor *> executors() const;
  // NonFinite.cpp
  Result<bool> gradientsFinite(const StepResult &result) const;
  void judge(StepResult &result, bool finite);
  Status locate(int64_t step);
  int64_t firstSample(int64_t step) const;

  LoadedPlan plan_;
  SessionOptions options_;
  std::unique_ptr<World> ownWorld_;
  World *world_ = nullptr;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<RankMemory> memories_; // of ranks_
  std::unique_ptr<DataSource> data_;
  std::unique_ptr<ReadAhead> ahead_; // of data_
  std::unique_ptr<InputReader> reader_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<TraceWriter> trace_;
  std::optional<RateProgram> rate_;    // if the plan computes its rate
  std::optional<LossScale> lossScale_; // if the plan scales the loss
  double stepLossScale_ = 1;           // of the last step
  int64_t nextStep_ = 0;
  int64_t stepsRun_ = 0; // by this process
  int64_t skipped_ = 0;  // of all steps, those of earlier runs too
  CheckpointState loaded_;
  std::unique_ptr<CheckpointWriter> saves_;
  int64_t savedStep_ = -1;
  int64_t settledStep_ = -1;
  std::string graphNote_;

  // Ranks after the first have a thread each.
  Gate start_, finish_;
  std::atomic<uint64_t> started_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stop_{false};
  StepScalars scalars_;
  std::string_view entry_; // empty: a step
};

} // namespace merak::runtime
