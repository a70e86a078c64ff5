// Makes a stage problem of a graph and its layouts (StageCosts.h). The chapters
// are files: what is computed and when (StageProblemBuilder.cpp), collectives
// (StageCollectives.cpp), the tasks of actions (StageTasks.cpp), what the
// backward pass reads (StageKeeps.cpp), parameters (StageParameters.cpp);
// and of the same, all tasks of a step (StepTasks.cpp).
#pragma once

#include "passes/Planning/ActionOrigins.h"
#include "passes/Planning/StepTasks.h"

#include <map>
#include <set>

namespace merak::planning {

class StageProblemBuilder {
public:
  StageProblemBuilder(const Graph &graph, const Assignment &assignment,
                      const Outcome &outcome, const StageCostOptions &options)
      : graph(graph), outcome(outcome), options(options),
        device(options.cluster.device()),
        hostShare(options.cluster.hostShare(0)), mesh(assignment.axisMap()),
        stored(assignment.stored), tokens(mesh.erase(kSubmicrobatchAxis) > 0) {
    for (const GraphOp &op : graph.ops)
      if (op.touched)
        sums[op.operands[0]] = &op;
    int64_t stride = 1;
    for (size_t a = assignment.mesh.size(); a-- > 0;)
      if (const AxisSize &axis = assignment.mesh[a];
          isOn(axis.name, kDataAxis) || isOn(axis.name, kTensorAxis)) {
        strides[axis.name] = stride;
        stride *= axis.size;
      }
  }

  StageProblem build(ListedKernels &listed);
  Result<StepTasks> steps(const std::vector<int> &begin); // see makeStepTasks
  // Seconds of one part of a microbatch.
  double collective(const Conversion &conversion) const;

private:
  void readTensors();
  // Of what is sent to `members` replicas; see TouchedRows.
  double sentShare(const Conversion &conversion, int64_t members) const;
  double bytes(int t) const { return local[t] * graph.tensors[t].elementBytes; }
  // With the update; its time is not worth counting.
  bool isLate(int op) const { return outcome.ops[op].late; }
  bool isSource(int t) const {
    const GraphTensor &tensor = graph.tensors[t];
    return tensor.input || tensor.parameter || tensor.constant;
  }
  // Which stage op of the problem each graph op belongs to.
  void readOps();
  void listActions(bool known);
  bool stays(int t) const { return inRegisters[size_t(t)]; }
  // The forward op beside which each op runs: what comes with the update,
  // beside the last one that it hangs on.
  std::vector<int> places() const;
  int placeOf(int t, const std::vector<int> &at) const;
  // A half at a time: twice the launches, submicrobatches of the shape.
  int submicrobatches() const {
    return options.overlap > 0 && options.tp > 1 ? 2 : 1;
  }
  // What needs all tokens runs once for both submicrobatches of them.
  int partsOf(const ActionValue &value) const;
  int partsOf(ListOf list, const ActionOp &op) const;
  double seconds(const costmodel::Kernel &kernel) const;
  // Of one part of a microbatch.
  double seconds(const ActionKernel &kernel, int parts) const;
  double seconds(ListOf list, int op) const;
  // Joins and cuts of the submicrobatches of tokens, on one device.
  static bool isBetweenSubmicrobatches(const Conversion &conversion);
  double joinSeconds(const Conversion &conversion) const;
  // The first device's group over axes, and how many groups leave a node
  // together: with dp = 2 and tp = 4 those over tp are {0, 1, 2, 3}, those over
  // dp {0, 4}, four of them side by side.
  struct Group {
    std::vector<int64_t> devices = {0};
    int64_t sharing = 1;
  };
  Group groupOf(const std::vector<std::string> &axes) const;
  // Collectives over replicas.
  void makeLinks();
  // Of a stored parameter or its gradient, over all replicas.
  bool isOverReplicas(const Conversion &conversion) const;
  bool isBeside(const Conversion &conversion) const;
  // Of what is not cut into submicrobatches.
  double wholeCollective(const Conversion &conversion) const {
    return collective(conversion) * (tokens ? 1 : submicrobatches());
  }
  // The action that waits for a conversion: 0 forward, 1 input gradient, 2
  // weight gradient; -1: none of a microbatch.
  int actionOf(const Conversion &conversion) const;
  void makeTensors();
  // Per forward op, of F, B and W: what is computed, what is waited for.
  struct Sums {
    double compute = 0, wait = 0;
  };
  // One result element for each of an operand: see ChainWriter.
  bool joins(const ActionOp &op) const;
  // The tasks of F, B and W in their order, and their sums.
  void makeTasks(std::array<std::vector<Sums>, 3> &sums);
  std::vector<int> &runsAt(ListOf list) { return runs[size_t(list)]; }
  void makeTask(ListOf list, int number, std::vector<Sums> &sums);
  // Ops that share a kernel share its time.
  void share(ListOf list, int number, const SubmicrobatchTask &task,
             std::vector<Sums> &sums) const;
  void readNeeds(ListOf list, int number, SubmicrobatchTask &task);
  // What F or B left.
  void readOther(ListOf list, int tensor, SubmicrobatchTask &task) const;
  // Whether a generated kernel makes what an op does.
  bool isGenerated(ListOf list, int op) const;
  // Once a step, by forward op: what the update computes besides the optimizer,
  // what sums over microbatches are cleared with before, and what the prologue
  // makes of each microbatch.
  void makeOnce();
  void makeOps();
  // Ops of the forward pass that run after it, and those whose gradients go
  // over the microbatches before the others.
  void keepForJoins();
  // What gradients read of the forward, what W reads of B, and what both have
  // besides: made and used up in one action.
  void keepForGradients();
  // Ops that read a tensor, themselves or in another type.
  void addUsers(int t, const std::vector<char> &everywhere,
                std::vector<int> &of) const;
  static bool overTensor(const Conversion &conversion) {
    return conversion.kind == ConversionKind::AllReduceSum &&
           hasAxisOn(conversion.axes, kTensorAxis);
  }
  static bool isSplit(const layout::Layout &layout, const std::string &axis);
  double bytesAs(const layout::Layout &layout, int t) const;
  // The parameter behind a conversion of it, or of its copy in another type;
  // -1: none.
  int storedBehind(const Conversion &conversion) const;
  // The copy of a stored parameter for the step.
  void addGathered(int t, const std::vector<char> &everywhere,
                   StageParameter &parameter);
  // Its copies in other types.
  void addConverted(int t, const std::vector<char> &everywhere,
                    StageParameter &parameter) const;
  // The gradient of a stored parameter: as it is accumulated, and its sum over
  // replicas if that comes after.
  void addScattered(int update, StageParameter &parameter);
  // The uses of gradients by an update and by the sums in front of it, and by
  // stage op where those that are added come from.
  static double keepCopy(StageParameter &parameter, size_t first);
  std::vector<TensorUse> gradientUses(int update) const;
  int makerAt(const TensorUse &use) const {
    return producer[size_t(
        graph.ops[size_t(use.op)].operands[size_t(use.operand)])];
  }
  void addSummands(int update, StageParameter &parameter) const;
  void addReplays(int table, double gradient, StageParameter &parameter) const;
  void findStored();
  // Whether a value of the update is what the backward pass left, or a sum of
  // such: what is reduced beside the backward pass.
  bool isOfBackward(int value) const;
  void makeParameters();
  // The task behind a value of a list; of what no action makes, none.
  TaskId makerOf(int list, int value);
  StepTask stepTask(ListOf list, int number,
                    const std::vector<char> &everywhere);
  static std::vector<std::set<int>>
  partsOfTasks(const std::vector<StepTask> &all, int list,
               const std::vector<int> &begin);
  ActionOps cut(ListOf list, int part, const std::vector<std::set<int>> &on,
                std::vector<int> &chosen) const;
  PartTasks partTasks(ListOf list, int part,
                      const std::vector<std::set<int>> &on);

  const Graph &graph;
  const Outcome &outcome;
  const StageCostOptions &options;
  const costmodel::Device &device;
  double hostShare; // of a device, where ranks share cores
  layout::AxisMap mesh;
  std::map<std::string, int64_t> strides;       // of ranks of a stage, by axis
  const std::map<int, StoredParameter> &stored; // by tensor
  // By stored parameter: conversions in front of its uses, its update.
  std::map<int, std::vector<int>> gathers;
  std::map<int, std::vector<int>> gatherUsers; // ops, by conversion
  std::map<int, int> storedUpdates;
  std::map<int, const GraphOp *> sums; // of a table's slices, by these
  std::vector<int> producer, stageOp, forwardOps;
  std::vector<std::vector<int>> users;
  std::vector<double> local; // elements on a device
  bool tokens;               // submicrobatches of tokens, as the layouts say
  std::vector<char> hasGradient, reduced, inRegisters;
  std::vector<char> converts;        // by op, see convertedOnce
  std::vector<std::string> dataAxes; // of several replicas, sorted
  // By F, B and W and forward op: see StageOp.
  std::array<std::vector<std::vector<double>>, 3> messages;
  std::array<ActionOps, kLists> lists;
  std::array<ListKernels, kLists> kernels;
  ValueOrigins origins; // of lists that were made here
  // By op of a list: the one that runs it, its task.
  std::array<std::vector<int>, kLists> runs, taskOf;
  StageProblem out;
};

} // namespace merak::planning
