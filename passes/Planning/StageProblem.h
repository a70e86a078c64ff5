// What a pipeline costs: the forward ops of a training step in order, with
// their times and bytes, and the evaluation of a choice of cuts, recomputation
// and schedule by simulation. Plain numbers; StageCosts.h derives them from a
// graph, its sharding and a cluster.
//
// Memory of a stage, as plans lay it out (docs/Planning.md):
//   parameters, gradients, optimizer state
//   + for each kind of value that goes from one action to another
//   (LiveKinds.h): its
//     bytes of a microbatch x the most microbatches that have it at once
//   + the most that one action has besides
#pragma once

#include "passes/Planning/FillIdle.h"
#include "passes/Planning/IdLists.h"
#include "passes/Planning/LastBackward.h"
#include "passes/Planning/LiveKinds.h"
#include "passes/Planning/ParameterLinks.h"
#include "passes/Planning/SharedName.h"
#include "passes/Planning/SubmicrobatchTimes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>

namespace merak::planning {

// Of a model whose parts begin at `begin`, which ends with the number of its
// ops: the part that has an op; of none (-1) the last one.
inline int partAt(const std::vector<int> &begin, int op) {
  return op < 0 ? int(begin.size()) - 2
                : int(std::upper_bound(begin.begin(), begin.end(), op) -
                      begin.begin()) -
                      1;
}

struct StageOp {
  SharedName name;
  SharedName key; // as a strategy names it (forwardNames)
  // Seconds of one microbatch, with the collectives that it waits for:
  // forward, gradients of its operands, gradients of its parameters.
  double forward = 0, backward = 0, weight = 0;
  double recompute = 0; // seconds to run it again
  // Once a step: in the update besides the optimizer, to clear its sums over
  // microbatches; and in the prologue, once a microbatch.
  double update = 0, clear = 0, prologue = 0;
  double communication = 0; // the collectives' part of the three
  double waitsForward = 0, waitsBackward = 0; // of the first two
  bool checkpoint = false; // its results come out of a collective: never again
  bool everywhere = false; // made on every stage that needs it, never kept
  double workspace = 0;    // bytes that its gradients use but do not leave
  // Messages over replicas beside F, B and W, bytes of each: parameters that
  // are gathered for it alone, gradients that are scattered at once.
  std::vector<double> gathersForward, gathersBackward, scatters;
  int64_t piece = -1;                 // see GraphOp
  std::vector<int> operands, results; // tensor ids
  std::vector<int> kept;              // tensors that its gradients in B read
  std::vector<int> keptForWeights;    // the same in W
  // Gradients that its W reads: bytes, the op whose B makes them, and the kept
  // tensor that they are written over where the op which makes that is on the
  // same stage (-1: none).
  struct Pending {
    double bytes = 0;
    int from = -1, over = -1;
    bool operator==(const Pending &) const = default;
  };
  std::vector<Pending> pending;
  bool operator==(const StageOp &) const = default;
};

struct StageTensor {
  SharedName name;
  double bytes = 0;         // of one microbatch on one device
  double gradientBytes = 0; // sent back where it crosses a cut; 0: none
  bool available = false;   // inputs, parameters, constants: on every stage
  bool fused = false;       // inside of one kernel where nobody else needs it
  // The tensor that it is a view of, if who reads it later takes that view
  // again where its op is on the same stage (KeptViews.h); -1: it is kept.
  int viewOf = -1;
  bool operator==(const StageTensor &) const = default;
};

struct StageParameter {
  SharedName name;
  std::vector<int> users;                   // ops, ascending
  double bytes = 0;                         // on one device
  double gradientBytes = 0, stateBytes = 0; // 0: not trained
  // Ops that each leave a gradient of that size until the update adds them, in
  // any order: several of a parameter with several uses. None: the stage has
  // one.
  std::vector<int> summands;
  // Bytes of gradients on a stage of ops [begin, end); one that has none gets
  // the sum of those of others.
  double gradientsOn(int begin, int end) const {
    const auto own =
        std::count_if(summands.begin(), summands.end(),
                      [&](int op) { return op >= begin && op < end; });
    return gradientBytes * double(std::max<int64_t>(1, own));
  }
  double normSeconds = 0; // its part of the norm of all gradients
  // Its gradient copied to be sent to other stages, and their part added.
  double exchangeSeconds = 0;
  bool split = false; // over the ranks of a replica
  // The ranks of a replica have summands of its gradient.
  bool tensorPartial = false;
  double updateSeconds = 0; // the optimizer
  // Stored in parts: of its part of the gradient, and the seconds of
  // collectives that no bucket has.
  double partBytes = 0, ownSeconds = 0;
  // Its copies for a step, one for each type of its uses: bytes, the message
  // over replicas (0: each has all of it), the kernel that makes the own part
  // of it, and the ops that read it; a stage without any of these does without.
  struct Copy {
    double bytes = 0, message = 0, castSeconds = 0;
    std::vector<int> users; // those of the forward pass first
    double again = 0;       // of the message, what backward actions read
    bool operator==(const Copy &) const = default;
    bool isOn(int begin, int end) const {
      return std::any_of(users.begin(), users.end(),
                         [&](int op) { return op >= begin && op < end; });
    }
  };
  std::vector<Copy> copies;
  double copiesOn(int begin, int end) const {
    double sum = 0;
    for (const Copy &copy : copies)
      sum += copy.isOn(begin, end) ? copy.bytes : 0;
    return sum;
  }
  double scatterMessage = 0; // over replicas once a step, of the gradient
  bool scattered = false;    // the gradient; it is not all-reduced
  bool operator==(const StageParameter &) const = default;
};

struct StageProblem {
  std::vector<StageOp> ops; // topological order
  std::vector<StageTensor> tensors;
  std::vector<StageParameter> parameters;
  // Ops (a, b): W of b reads what W of a makes, as where the gradient of a
  // value made of parameters is the sum of what several ops give, or where one
  // collective serves both.
  std::vector<std::pair<int, int>> weightSums;
  bool train = true;
  // Ops that are so many times the same, `period` of them each time, one time
  // fed by the one before, with at least one more of them on both sides
  // (EqualLayers.h).
  struct Repeats {
    int begin = 0, period = 0, count = 0;
    int end() const { return begin + period * count; }
  } repeats;
  ParameterLinks links;
  // One kernel of the norm of all gradients: its factor, or zeros in a vector.
  double smallKernel = 0;
  // All forwards must come before the first gradient: why (Outcome::joins), and
  // the ops from `joinBegin` up to `joinEnd` that stay on one stage then.
  std::string joins;
  int joinBegin = 0, joinEnd = 0;
  // Tensor-parallel overlap, and the tasks of F, B and W where they wait for
  // collectives: they take as long as SubmicrobatchTimes says. The ops' times
  // hide nothing.
  int overlap = 0;
  std::array<std::vector<SubmicrobatchTask>, 3> submicrobatches;
};

struct BoundaryLink {
  double latency = 0, secondsPerByte = 0;
  // The collectives of its stages go over the same links: they wait while a
  // transfer comes or goes.
  bool shared = false;
  // Between meshes of unlike sizes, where `secondsPerByte` is of one rank
  // alone: so many of the ranks before it and behind it share it.
  int64_t sharedBefore = 1, sharedAfter = 1;
  // Of a transfer, 0 of nothing.
  double seconds(double bytes) const {
    return bytes > 0 ? latency + bytes * secondsPerByte : 0;
  }
};

// How gradients are summed over replicas once a step: in buckets, in the order
// in which the backward pass makes them, each by one collective when its last
// member is there (passes/Lowering/BucketGradients.cpp).
struct GradientReduction {
  int64_t replicas = 1;
  // Of a collective of so many bytes; a StageModel is asked with one function
  // for each number of replicas and `place`.
  std::function<double(double bytes)> seconds;
  int place = 0;
  // The same over all ranks of a stage, for gradients of which those of a
  // replica have summands.
  std::function<double(double bytes)> tensorSeconds;
  double bucketBytes = 0; // most of several gradients; 0: each by itself
  // As soon as they are final, beside the rest of the last W (of the last B and
  // W together on a stage that sends no gradient); else all in the update.
  bool early = false;
  // They go over the links of the collectives of a replica.
  bool shared = false;
};

class StageModel;

// A stage on a mesh of its own (StageMeshes.h).
struct StageMesh {
  const StageModel *model = nullptr; // prices of its degrees and devices
  GradientReduction reduce;
  int64_t ranks = 1;
  double memoryBytes = 0; // of its smallest device; 0: not limited
};

// What the ops are laid over.
struct PipelineShape {
  int stages = 1, microbatches = 1;
  std::vector<BoundaryLink> links; // between stages s and s + 1; empty: free
  double memoryBytes = 0;          // of a device; 0: not limited
  // By stage, how many times as long as a normal device its slowest one takes
  // to compute, at least 1; empty: all are normal.
  std::vector<double> slowness;
  GradientReduction reduce;
  // Of the squares of all gradients, so many bytes: over ranks that have parts
  // of parameters, and over stages.
  std::function<double(double bytes)> tensorNorm, stageNorm;
  // By stage, where these have meshes of their own: their models, reductions
  // and memory hold instead of one for all. Their models are of one graph.
  std::vector<StageMesh> meshes;
  // Of a value that goes from one such stage to another, with so many bytes on
  // each rank that gets it; its samples are split over the replicas, or each
  // replica has all of it. None: what the links of busy ranks take.
  std::function<double(int from, int to, double bytes, bool split)> reshard;

  // Of a virtual stage.
  const StageModel &modelOf(int v, const StageModel &common) const {
    return meshes.empty() ? common : *meshes[size_t(v % stages)].model;
  }
  const GradientReduction &reduceOf(int v) const {
    return meshes.empty() ? reduce : meshes[size_t(v % stages)].reduce;
  }
  double memoryOf(int v) const { // 0: not limited
    return meshes.empty() ? memoryBytes
                          : meshes[size_t(v % stages)].memoryBytes;
  }
  double slownessOf(int v) const {
    return slowness.empty() ? 1 : slowness[size_t(v % stages)];
  }
  // Between virtual stages v and v + 1; there are `links`. From the last stage
  // back to the first over the slowest one.
  const BoundaryLink &linkAfter(int v) const {
    if (v % stages != stages - 1)
      return links[v % stages];
    return *std::max_element(links.begin(), links.end(),
                             [](const BoundaryLink &a, const BoundaryLink &b) {
                               return a.secondsPerByte < b.secondsPerByte;
                             });
  }
};

// Which ops of a stage are recomputed: those that the ranking (StageModel) has
// below `level`, and those before op `until`.
struct Marks {
  int level = 0;
  int until = 0;
  bool operator==(const Marks &) const = default;
};

// A value of a microbatch that another stage sends: straight from the stage
// that makes it, whatever lies between the two.
struct ArrivingValue {
  int from = 0; // an op of that stage
  LiveKind life = LiveKind::F;
  double bytes = 0;
};

struct StageCost {
  ActionTimes times;
  double parameterBytes = 0, gradientBytes = 0, stateBytes = 0;
  int parameters = 0;         // trained ones
  double sharedBytes = 0;     // gradients also computed on other stages
  double keptBytes = 0;       // a microbatch in flight
  double recomputedBytes = 0; // a microbatch recomputed
  LiveBytes held;             // a microbatch, by kind of life; made here
  std::vector<ArrivingValue> arriving;
  double workspace = 0;     // what one action has besides
  double communication = 0; // of the actions' times, hidden by nothing
  // Of the first stage: what W hides of the waits of B where the last two run
  // together.
  double hiddenByWeights = 0;
  bool reduces = false; // some of its gradients, over ranks
  double prologue = 0;  // of a microbatch, before the first F
  double gathered = 0;  // seconds by which what is gathered once a step holds
                        // up the first F
  double clear = 0;     // seconds before the first action, if the step has
                        // several microbatches
  double optimizer = 0; // seconds after the norm of all gradients is known
  // Of F and B: see SubmicrobatchTimes::Times.
  double slackForward = std::numeric_limits<double>::infinity();
  double slackBackward = slackForward;

  // What the actions take where all computation takes `slowness` times as long:
  // the share of collectives in F, R, B and W stays as it is.
  ActionTimes timesAt(double slowness) const;
};

// Precomputed sums of a problem; evaluates stages [begin, end) of its ops.
class StageModel {
public:
  // `like`: a model with which it may have tasks in common: what is known of
  // their times there is known here, and the other way round. It must outlive
  // this, and both are asked by one thread.
  explicit StageModel(const StageProblem &problem,
                      const StageModel *like = nullptr);

  const StageProblem &problem;
  int count() const { return int(problem.ops.size()); }
  const StageCost &cost(int begin, int end, Marks marks) const {
    return priced(begin, end, marks, /*filled=*/true);
  }
  // The same bytes; of its times the waits of backward actions may not be
  // filled yet, which is most of the work where collectives are waited for.
  const StageCost &held(int begin, int end, Marks marks) const {
    return priced(begin, end, marks, /*filled=*/false);
  }
  // What of it no recomputation changes: times without it, waits, slacks.
  const StageCost &timesOf(int begin, int end) const;
  // Of all ops on one stage, F, B and W, where there are tasks.
  const ActionTimes &timesOfAll() const { return allTimes; }
  // Whether actions take as long as SubmicrobatchTimes says.
  bool hasTasks() const { return !submicrobatches.empty(); }
  // What ops [begin, end) leave of a microbatch, and make again from that.
  struct Kept {
    double keptBytes = 0, recomputedBytes = 0;
    double workspace = 0; // of one op
    double seconds = 0;   // of making it again
  };
  Kept kept(int begin, int end, Marks marks) const {
    return sumOf(needOf(begin, end, marks, nullptr));
  }
  // Bytes that cross the cut before op `at`: values, and their gradients.
  double forwardBytes(int at) const { return crossing[at]; }
  double gradientBytes(int at) const { return crossingBack[at]; }
  // Seconds of ops [begin, end), forward, backward and weight; with overlap
  // about that, since it depends on the ops around them.
  double seconds(int begin, int end) const {
    return prefix[end] - prefix[begin];
  }
  double parameterBytes(int begin, int end) const;
  // Seconds of making the copies that ops [begin, end) read of parameters.
  double castSeconds(int begin, int end) const;
  // Seconds of the norm that all stages wait for between the two parts of
  // their updates.
  double normSeconds(const PipelineShape &shape) const;
  // Seconds by which the reduction of all gradients of a stage outlasts its
  // last W, which takes `weight`, or holds it up.
  double exposedReduction(int begin, int end, const GradientReduction &reduce,
                          double weight) const;

  // The ranking: ops in the order in which they are worth recomputing, by
  // seconds per byte freed; level(i) is the rank of op i, levels() of
  // none.
  int levels() const { return pricing().ranks; }
  int level(int op) const { return pricing().rank[op]; }
  bool marked(int op, Marks marks) const { return pricing().marked(op, marks); }
  // Cuts that few bytes cross, first 0, last count(); blocks lie between them.
  const std::vector<int> &blockBounds() const { return blockBegin; }
  // The cuts that a search for so many stages tries: all, or for large models
  // those between blocks, if there are enough.
  const std::vector<int> &positions(int parts) const {
    return count() > kAllPositions && int(blockBegin.size()) > parts
               ? blockBegin
               : legalCuts;
  }
  // Cuts into so many parts on stages of such slowness, made by `make` the
  // first time.
  const std::vector<int> &
  cutsOf(int parts, const std::vector<double> &slowness,
         const std::function<std::vector<int>()> &make) const {
    auto [it, isNew] = knownCuts.try_emplace({parts, slowness});
    if (isNew)
      it->second = make();
    return it->second;
  }
  // The tensors of a stage that take most memory, largest first.
  std::vector<std::pair<std::string, double>>
  topTensors(int begin, int end, Marks marks, int inFlight, size_t n) const;

private:
  struct Need {
    std::vector<int> kept, again; // tensors
    std::vector<int> ops;         // that are run again, the last one first
    double seconds = 0, workspace = 0;
  };
  Need needOf(int begin, int end, Marks marks, StageCost *cost) const;
  int nextUse(int tensor, int from) const; // op, count() if there is none
  double forwardWorkspace(int begin, int end, bool again, Marks marks) const;
  Kept sumOf(const Need &need) const;
  const StageCost &priced(int begin, int end, Marks marks, bool filled) const;
  StageCost compute(int begin, int end, Marks marks, bool filled) const;
  bool hasWaits() const {
    return problem.overlap > 0 && !submicrobatches.empty();
  }
  // By how many ops a stage is behind the first one that has the same ops, 0
  // where that is unknown; and what a stage has from there on.
  int behindFirst(int begin, int end) const;
  StageCost movedBy(int ops, StageCost cost) const;
  // The same for stages of the same ops that recompute the same.
  std::string likeOf(int begin, int end, Marks marks) const;
  const StageCost &parametersOn(int begin, int end) const;
  int zeroRuns(int begin, int end) const;
  void setTimes(int begin, int end, StageCost &out) const;
  void setSlack(int begin, int end, StageCost &out) const;
  void addMessages(int begin, int end, StageCost &out) const;
  double gatheredOnce(int begin, int end) const;
  double messageWorkspace(int begin, int end) const;
  bool isWrittenOver(const StageOp::Pending &pending, int begin, int end) const;
  // The last B and W of a stage as they are issued, and by op the task after
  // which its gradients are final. Of the first stage both run together unless
  // submicrobatches hide each other's collectives; else W alone.
  struct LastTasks {
    std::vector<IssuedTask> tasks;
    std::vector<int> final; // from op `begin` on
  };
  bool joinsLast(int begin) const {
    return begin == 0 && (problem.overlap == 0 || submicrobatches.empty());
  }
  LastTasks lastTasks(int begin, int end, double weight) const;
  double secondsOfLast(int begin, int end) const;
  void fillWaits(int begin, int end, const Need &need, StageCost &out) const;
  // Tasks of W that end in one gradient and that nothing else needs.
  struct Slice {
    int first = 0, last = 0; // ops
    double seconds = 0;      // of both submicrobatches
    std::vector<int> values, backward;
  };
  std::vector<Slice> findSlices() const;
  LateWork lateWork(const Need &need, const std::vector<int> &at) const;
  std::vector<EarlySlice>
  earlySlices(int begin, int end, const std::vector<int> &at,
              const std::unordered_map<int, int> &placeOf) const;
  std::vector<PlacedMessage>
  placed(int begin, int end, bool backwards,
         std::vector<double> StageOp::*messages) const;
  // What crosses a cut: from the op behind its maker up to its last reader.
  bool crosses(size_t tensor) const {
    return producer[tensor] >= 0 && lastUse[tensor] > producer[tensor] &&
           !problem.tensors[tensor].available &&
           !problem.ops[producer[tensor]].everywhere;
  }
  void priceCuts();
  void findLegal();
  void findShards();

  std::vector<int> producer, lastUse;
  std::vector<int> withMessages; // ops in order, of F, B or W
  std::vector<double> crossing, crossingBack;
  std::vector<char> legal; // by position: no op is taken apart there
  std::vector<double> prefix, forward, backward, weight, communication;
  std::vector<double> update, clear, prologue;
  ActionTimes allTimes;
  std::vector<std::shared_ptr<const SubmicrobatchTimes>>
      submicrobatches; // of F, B and W; empty: no overlap
  // What prices of stages ask of tensors and ops, close together. A model that
  // is only asked for a bound (LeastSeconds.h) does without.
  struct Pricing {
    explicit Pricing(const StageModel &model);
    struct TensorFacts {
      double bytes = 0;
      int viewOf = -1;
      int producer = -1;
      bool given = false;   // available, or made wherever it is needed
      bool noSpace = false; // it takes none while an action makes it
    };
    std::vector<TensorFacts> facts;
    std::vector<std::vector<int>> users;    // ops, by tensor
    std::vector<std::vector<int>> crossers; // tensors, by cut
    IdLists operands, results, keptForInputs, keptForWeights;
    std::vector<double> recompute, workspaces; // by op
    // Ops in order, of pending gradients, and of such as may be written over
    // something.
    std::vector<int> withPending, withOver;
    std::vector<int> rank; // by op, of its recomputation
    int ranks = 0;         // one more than the last
    std::vector<Slice> slices;
    // Parameters by first user of a range: (parameter, previous user).
    std::vector<std::vector<std::pair<int, int>>> parametersOf;
    mutable std::vector<int> stamp; // of the latest range that needs a tensor
    mutable std::vector<char> need; // last reader of those: 1 R, 2 B, 3 W
    mutable int now = 0;
    bool marked(int op, Marks marks) const {
      return rank[op] < ranks && (rank[op] < marks.level || op < marks.until);
    }
    // What a stage that begins there has of a tensor that an action left.
    int keptOf(int tensor, int begin) const {
      while (facts[tensor].viewOf >= 0 && facts[tensor].producer >= begin)
        tensor = facts[tensor].viewOf;
      return tensor;
    }
  };
  const Pricing &pricing() const {
    if (!madePricing)
      madePricing = std::make_unique<const Pricing>(*this);
    return *madePricing;
  }
  mutable std::unique_ptr<const Pricing> madePricing;
  // Up to this many ops every position is tried as a cut.
  static constexpr int kAllPositions = 256;
  std::vector<int> blockBegin, legalCuts;
  struct Key {
    int begin, end, level, until;
    bool operator==(const Key &) const = default;
  };
  struct Hash {
    size_t operator()(const Key &key) const;
  };
  struct Priced {
    StageCost cost;
    bool filled = false;
  };
  mutable std::unordered_map<Key, Priced, Hash> known;
  mutable std::unordered_map<std::string, Key> alike; // see likeOf
  // By range: timesOf(), and with its parameters.
  mutable std::map<std::pair<int, int>, StageCost> knownTimes, knownParameters;
  // By parts and slowness.
  mutable std::map<std::pair<int, std::vector<double>>, std::vector<int>>
      knownCuts;
  // By range, replicas, place, bytes of a bucket, early, seconds of W.
  mutable std::map<std::tuple<int, int, int64_t, int, double, bool, double>,
                   double>
      reductions;
};

} // namespace merak::planning
