// What a value takes from a stage to one on another mesh, as passes/Resharding
// predicts it for the way that a plan sends it (docs/Parts.md).
#pragma once

#include "passes/CostModel/Cluster.h"
#include "passes/Planning/Strategy.h"

#include <array>
#include <memory>
#include <mutex>
#include <tuple>

namespace merak::planning {

class ReshardPrices {
public:
  // `strategy`: of all values; "": of each the fastest one.
  ReshardPrices(const costmodel::Cluster &machine, std::string strategy)
      : machine(machine), strategy(std::move(strategy)) {}

  // Of values between two stages; lives as long as this. `split`: their samples
  // are split over dp, on both sides; else every rank has all of it.
  class Line {
  public:
    // `bytes`: of each rank that gets it. Between powers of two it is
    // interpolated.
    double seconds(double bytes);

  private:
    friend class ReshardPrices;
    Line(const ReshardPrices &prices, const PipelineStages::Stage &from,
         const PipelineStages::Stage &to, bool split)
        : prices(prices), from(from), to(to), split(split) {}
    double at(int power);

    const ReshardPrices &prices;
    const PipelineStages::Stage from, to;
    const bool split;
    std::mutex mutex;            // plans are searched on several threads
    std::map<int, double> known; // by log2 of the bytes
  };
  Line &line(const PipelineStages::Stage &from, const PipelineStages::Stage &to,
             bool split);

private:
  // Pairs of stages that lie alike over nodes have one price.
  struct Pair {
    std::vector<int64_t> places; // of both stages' devices: node, kind
    std::array<int64_t, 4> degrees;
    bool split;
    auto operator<=>(const Pair &) const = default;
  };
  Pair pairOf(const PipelineStages::Stage &from,
              const PipelineStages::Stage &to, bool split) const;
  double priced(const PipelineStages::Stage &from,
                const PipelineStages::Stage &to, int64_t bytes,
                bool split) const;

  const costmodel::Cluster machine;
  const std::string strategy;
  std::mutex mutex;
  std::map<Pair, std::unique_ptr<Line>> lines;
};

// Those of the stages of a pipeline, by their numbers.
class PipelinePrices {
public:
  PipelinePrices(std::shared_ptr<ReshardPrices> prices,
                 std::vector<PipelineStages::Stage> stages)
      : prices(std::move(prices)), stages(std::move(stages)) {}
  double seconds(int from, int to, double bytes, bool split);

private:
  const std::shared_ptr<ReshardPrices> prices;
  const std::vector<PipelineStages::Stage> stages;
  std::mutex mutex;
  std::map<std::tuple<int, int, bool>, ReshardPrices::Line *> lines;
};

} // namespace merak::planning
