// The tasks of a step (StepTasks.h) cut into stages, as passes/Staging outlines
// them: what each part of the model does in each action, what it receives and
// sends, what its ranks reduce once a step.
#pragma once

#include "passes/Planning/PipelinePlan.h"
#include "passes/Planning/StepTasks.h"

#include <map>
#include <set>

namespace merak::planning {

// In the order in which a microbatch meets them.
enum class StepAction { F, R, B, W };
inline constexpr int kStepActions = 4;

// A value that comes from a task of another part or action of the microbatch:
// a member, or a message.
struct StepNeed {
  int member = -1, message = -1;
};

// A task on one part, in one action.
struct StepMember {
  StepAction action = StepAction::F;
  int part = 0;
  TaskId task;
  std::vector<int> does; // tasks of its list, `task` among them
  double seconds = 0;
  bool communication = false;
  std::vector<StepNeed> needs;
};

struct StepMessage {
  int from = 0; // member
  int to = 0;   // part
  StepAction reader = StepAction::F;
  double bytes = 0;
};

// A sum over ranks that need not wait for the update.
struct StepReduction {
  int task = 0; // of U
  double bytes = 0;
  bool tensor = false;      // over the ranks of a replica too
  bool gradient = false;    // else it is final before the backward pass
  std::vector<int> members; // what it sums, on this stage
  std::vector<int> sums;    // tasks of U that add these up before
};

// What the update of a stage reads of another stage.
struct StepExchange {
  int member = 0;
  double bytes = 0, seconds = 0; // of the message, of the copy to be sent
};

class StepParts {
public:
  StepParts(const StepTasks &tasks, const StageModel &model,
            const PipelinePlan &plan, const PipelineShape &shape);

  int count() const { return int(plan.begin.size()) - 1; }
  std::vector<StepMember> members;
  std::vector<StepMessage> messages;
  const StepTask &taskOf(int member) const {
    const TaskId &id = members[size_t(member)].task;
    return tasks.lists[size_t(id.list)][size_t(id.task)];
  }
  const std::vector<int> &membersOf(int part, StepAction action) const {
    return at(part, action).members;
  }
  const std::vector<int> &receivedBy(int part, StepAction action) const {
    return at(part, action).received;
  }
  const std::vector<int> &sentBy(int part, StepAction action) const {
    return at(part, action).sent;
  }
  // Itself or as another form of it, which takes no time.
  bool reads(int reader, int member) const;
  // B and W of a part as one (LastBackward.h).
  std::vector<int> joined(int part) const;

  // ------------------------------------------------------------ once a step

  // Seconds before the first microbatch: sums cleared, the prologue.
  double beforeFirst(int part) const;
  bool holds(int stage, const StepUpdate &update) const;
  int firstHolder(const StepUpdate &update) const;
  // Tasks of U that a stage runs.
  std::vector<int> updateTasks(int stage) const;
  std::vector<StepReduction> reductionsOf(int stage) const;
  // Gradients that are reduced in the update, tasks of U: not those of
  // `reduced`, nor what another task of it reads.
  std::set<int> lateGradients(int stage,
                              const std::map<int, int> &reduced) const;
  std::vector<StepExchange> exchangesOf(int stage) const;
  // The member that makes what U reads of a microbatch; -1: none.
  int madeBy(const TaskId &task) const;
  // Neighbouring zeros in the vectors of squares of a stage.
  int zeroRuns(int stage, bool split) const;

private:
  struct PartAction {
    std::vector<int> members, received, sent;
    std::map<int, int> memberOf; // by task of the list
  };
  const PartAction &at(int part, StepAction action) const {
    return actions[size_t(part)][size_t(action)];
  }
  PartAction &at(int part, StepAction action) {
    return actions[size_t(part)][size_t(action)];
  }
  int homeOf(const StepTask &task) const;
  int stageOf(int part) const { return part % shape.stages; }
  std::vector<int> kernelOrder(const PartTasks &own, ListOf list) const;
  void choose(ListOf list, StepAction action);
  void chooseRepeated();
  void readNeeds();
  StepNeed needOf(const StepMember &reader, const TaskId &need);
  int find(int part, StepAction action, int task) const;
  int addMember(int part, StepAction action, const StepMember &like);
  int messageFor(const TaskId &need, int part, StepAction reader);
  bool isOfStage(int stage, const TaskId &task, StepReduction &into) const;
  std::set<int> behindUpdates(int stage) const;

  const StepTasks &tasks;
  const StageModel &model;
  const PipelinePlan &plan;
  const PipelineShape &shape;
  std::vector<std::array<PartAction, kStepActions>> actions;
  std::vector<char> recomputed;                        // by forward op
  std::map<std::pair<TaskId, int>, int> knownMessages; // by receiving part
};

} // namespace merak::planning
