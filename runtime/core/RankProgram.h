// A rank's program made ready to run: operands resolved to addresses, kernels
// and communication prepared, instructions sorted by stream. What is left to do
// in a step is to put slot addresses and scalars in place.
#pragma once

#include "runtime/comm/Communicator.h"
#include "runtime/core/Arena.h"
#include "runtime/core/Backend.h"
#include "runtime/core/InputReader.h"
#include "runtime/plan/Plan.h"

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>

namespace merak::runtime {

// Values that scalars of instructions may name.
struct StepScalars {
  int64_t step = 0; // from 0; the plan's "step" counts from 1
  double lr = 0;
  // Of the step before; between steps, of the last one.
  double lrBefore = 0;
  int64_t stepBefore = 0; // counts from 1; 0: there was none
  int64_t seed = 0;
  double gradScale = 1;
};

struct Op {
  const planpb::Instruction *instruction = nullptr;
  int index = 0; // in its procedure
  std::vector<View> inputs, outputs;
  std::vector<View> joined; // the operands of a joined collective as one
  // Operands in slotted buffers: where slot 0 of the element lies.
  struct Patch {
    View *view;
    char *base;
    uint64_t stride;
    int32_t slotClass;
  };
  std::vector<Patch> patches;
  std::vector<ScalarValue> scalars;
  enum class Runtime {
    Lr,
    Step,
    LrBefore,
    StepBefore,
    Seed,
    GradScale,
    Microbatch
  };
  struct ScalarPatch {
    int scalar;
    Runtime source;
    int64_t scale;
  };
  std::vector<ScalarPatch> scalarPatches;
  int64_t microbatchScale = 1; // positions of axis "mb" in a microbatch
  std::unique_ptr<Prepared> prepared;
  // Sends, and receives, of one stream that follow each other (CommCall).
  bool staysOpen = false;
  Op *open = nullptr, *next = nullptr;
  std::unique_ptr<Endpoint> endpoint;
  int peer = -1;                               // SEND, RECV
  std::vector<int> members;                    // COLLECTIVE
  layout::Layout layout;                       // LOAD_INPUT
  std::vector<std::vector<layout::Box>> boxes; // LOAD_INPUT: by microbatch
  int64_t ahead = 0;                           // LOAD_INPUT: steps
  std::vector<char> staging;                   // LOAD_INPUT on a device
  int event = -1; // RECORD, WAIT: index among the events of its procedure

  // Whether scalars change from step to step.
  bool changes() const {
    for (const ScalarPatch &patch : scalarPatches)
      if (patch.source != Runtime::Microbatch)
        return true;
    return false;
  }
  // Whether the backend runs it.
  bool computes() const {
    return instruction->kind() == planpb::Instruction::KERNEL ||
           instruction->kind() == planpb::Instruction::LIBRARY;
  }
  // What the communicator gets.
  std::span<const View> sent() const {
    return joined.empty() ? inputs : joined;
  }
  std::span<const View> received() const {
    return joined.empty() ? outputs : joined;
  }
};

// The instructions of one call on one stream.
struct LaneCall {
  int call = 0; // -1: a procedure that is run between steps
  const std::vector<Op *> *ops = nullptr;
  struct Wait {
    int lane;
    int call;
    EventHandle event = nullptr;
  };
  std::vector<Wait> waits;
  EventHandle finished = nullptr; // recorded if another lane waits for it
};

class RankProgram {
public:
  // `checkNumerics` etc. belong to the executor; here everything is static.
  // `separate`, `given`: see Arena.h.
  static Result<std::unique_ptr<RankProgram>>
  create(const LoadedPlan &plan, int rank, Backend &backend, Communicator &comm,
         bool separate = false, BufferMemory given = {});
  ~RankProgram();

  const planpb::Program &proto() const { return *proto_; }
  int rank() const { return rank_; }
  const LoadedPlan &plan() const { return plan_; }
  int lanes() const { return static_cast<int>(laneCalls_.size()); }
  const std::vector<LaneCall> &laneCalls(int lane) const {
    return laneCalls_[lane];
  }
  // The instructions of a procedure that a run calls by its name (Entries.h);
  // null: the program has none of it.
  const std::vector<Op *> *entry(std::string_view name) const;
  StreamHandle stream(int lane) const { return streams_[lane]; }
  std::string streamName(int lane) const;
  // Each call has its own instance of every event of its procedure: different
  // streams may record one event in different calls, in any order.
  int eventInstance(int call, const Op &op) const {
    return firstEvent_[call] + op.event;
  }
  int eventInstances() const { return firstEvent_.back(); }

  // Device address of a slot of a buffer.
  void *bufferData(int buffer, int slot = 0) const;
  const Arena &arena() const { return arena_; }
  // Of a separate arena: whether what lies around the slots that the
  // instruction may have written is as it was.
  Status checkArena(const LaneCall &call, const Op &op) const;
  // Puts the slot addresses and scalars of one call in place.
  void place(const LaneCall &call, Op &op, const StepScalars &scalars) const;
  // Where an instruction stands, e.g.
  // `stage1.forward mb 2 · instr 12 recv "h.4" from rank 2`.
  std::string describe(const LaneCall &call, const Op &op) const;

  const layout::AxisMap &mesh() const { return mesh_; }
  const layout::AxisMap &coords() const { return coords_; }

private:
  RankProgram(const LoadedPlan &plan, int rank, Backend &backend,
              Communicator &comm);
  const planpb::Call &callOf(const LaneCall &call) const;
  Status build(bool separate, BufferMemory given);
  std::set<uint32_t> communicatingStreams() const;
  Status buildProcedure(const planpb::Procedure &procedure);
  Status buildOp(const planpb::Instruction &instruction, Op &op);
  Status resolve(const google::protobuf::RepeatedPtrField<planpb::Operand> &in,
                 std::vector<View> &views, Op &op);
  Status buildScalars(Op &op);
  Status buildInput(Op &op);
  Status buildComm(Op &op);
  // Of a procedure on one stream: sends between which nobody is told that the
  // first one is done, receives of which the second one waits for nobody.
  static void linkTransfers(const std::vector<Op *> &ops);
  Status buildEvents(const planpb::Procedure &procedure,
                     const std::vector<std::vector<Op *>> &lanes);
  Status buildLanes();

  const LoadedPlan &plan_;
  const planpb::Program *proto_;
  int rank_;
  Backend &backend_;
  Communicator &comm_;
  RankMap ranks_;
  layout::AxisMap mesh_, coords_;
  Arena arena_;
  std::vector<StreamHandle> streams_;
  std::vector<EventHandle> ownedEvents_;
  std::deque<Op> ops_;
  // By procedure, then stream.
  std::vector<std::vector<std::vector<Op *>>> procedures_;
  std::vector<std::vector<LaneCall>> laneCalls_;
  std::vector<int> eventCounts_; // by procedure
  std::vector<int> firstEvent_;  // by call, and the total
};

} // namespace merak::runtime
