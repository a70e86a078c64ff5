// What no plan of given ops can do without: a bound from below on the time of
// a step, from sums alone, so that a search need not price what cannot win.
//
// A stage takes at least as long as its kernels; a collective that nothing is
// asked to hide is waited for as long as in the whole model at once, where most
// runs beside it. Stage s begins when the first microbatch has come to it:
//
//   seconds >= forward of all stages before s + microbatches x work of s
//
// and when it has done its last backward, that of the stages before it follows:
// with the weight gradients that a schedule does not leave for later,
//
//   seconds >= forward before s + microbatches x work of s - late weights
//              + backward before s
//
// On these ways what the ops before s send is under way, too. And a link is
// busy with all microbatches, from when its sender begins:
//
//   seconds >= start of s + microbatches x transfers from s to s + 1
//
// Parameters that a microbatch gathers, and gradients that it scatters, beside
// its kernels take their links as long at least as all of them in one message:
// what that is more than the kernels is added to each action.
//
// Recomputation, reductions and idle times are left out.
#pragma once

#include "passes/Planning/StageProblem.h"

#include <memory>

namespace merak::planning {

class LeastSeconds {
public:
  // Before each op and of all of them. Bounds that differ in other things have
  // them in common.
  using Sums = std::shared_ptr<const std::vector<double>>;

  // The model must outlive this.
  explicit LeastSeconds(const StageModel &model);
  // Of microbatches that take so many times as long, as those of fewer samples
  // do at least: `share` of the time. No bound but an estimate from below,
  // where kernels are no faster for a sample of few than for one of many.
  // Without transfers: other cuts may send less.
  LeastSeconds scaledBy(double share) const;
  // Of parameters that replicas store in parts, at a level of ZeRO:
  // each updates and keeps one at least, and above ZeRO-1 no more than that is
  // read and written of the sums of gradients over microbatches. What is sent
  // comes on top.
  LeastSeconds storedInParts(int64_t replicas, int level = 3) const;
  // What such parameters take, whatever the size of a microbatch: of a model
  // that stores them so and keeps whole gradients (ZeRO-1).
  struct Stored {
    double fixedBytes = 0, optimizer = 0;
    double fewerBytes = 0; // with parts of gradients
    // Before each op, bytes of gradients that replicas sum, those made by B and
    // those made by W, and of parameters that F and B read.
    Sums backward, weight, readForward, readBackward;
    ParameterLinks links;
  };
  Stored stored() const;
  // With that. At levels of ZeRO above 1 each microbatch scatters gradients,
  // above 2 it gathers what each of its actions reads.
  LeastSeconds storedInParts(int64_t replicas, const Stored &like,
                             int level) const;

  // With the messages of `like` alone, over other links.
  LeastSeconds sending(const Stored &like, const ParameterLinks &over,
                       int level) const;

  // Of any cuts and recomputation, with any schedule: the mean of the stages.
  double of(const PipelineShape &shape) const;
  // Of the given cuts, `stages` x chunks of them. `again`: what they make again
  // of a microbatch, seconds; empty: nothing.
  double of(const PipelineShape &shape, const std::vector<int> &begin,
            LateWeights late = LateWeights::Any,
            const std::vector<double> &again = {}) const;
  // Whether parameters, gradients and the optimizer's state alone take more
  // memory than all stages have.
  bool misfits(const PipelineShape &shape) const;

  const StageModel &model;

private:
  // Kernels of ops before each, seconds.
  Sums forward, backward, work;
  // Collectives of the gradients of ops before each that W of the first stage
  // may hide in the last backward: all that comes before begins as much sooner
  // (simulationOf).
  Sums hidden;
  // What an action sends beside its kernels: before each op, bytes, and the
  // seconds of ops beside which they are sent.
  struct Beside {
    Sums bytes, ops;
  };
  std::array<Beside, 3> beside; // of F, B and W
  ParameterLinks links;
  double waited = 0; // of a microbatch, with collectives
  double optimizer = 0;
  // Of parameters and all that is kept of each; of that gradients, and copies
  // for the types of their uses.
  double fixedBytes = 0, gradientBytes = 0, copyBytes = 0;
  bool transfers = true; // false: cuts are not the model's

  // By which the messages of ops [begin, end) hold up action 0, 1 or 2.
  double exposed(int action, int begin, int end) const;
  double exposed(int begin, int end) const; // all three
  void addMessages();
  void addUp(const std::vector<double> &perForward,
             const std::vector<double> &perBackward,
             const std::vector<double> &perWork,
             const std::vector<double> &perHidden);
};

} // namespace merak::planning
