// The plans that a run may go on with: the one it began with, those of a
// folder, and those that merakc makes for devices as they are by now.
#pragma once

#include "runtime/elastic/Situation.h"
#include "runtime/plan/Plan.h"

#include <atomic>
#include <functional>
#include <list>

namespace merak::runtime {

// What those say who know the cost model and the compiler.
struct PlanPrices {
  // Seconds of a step if ranks take so many times as long as the plan's cluster
  // says.
  std::function<Result<double>(const LoadedPlan &, const std::vector<double> &)>
      stepSeconds;
  // The plan's cluster, whose devices were made slow by these rates (by rank),
  // as if they were not.
  std::function<Result<std::string>(const LoadedPlan &,
                                    const std::vector<double> &)>
      healthyCluster;
};

// Devices by number up to the last one that the plan knows of.
size_t deviceCount(const planpb::PlanFile &plan);
// What the plan was compiled for (merakc --for-rates), by device.
Result<elastic::Situation> plannedFor(const planpb::PlanFile &plan,
                                      size_t devices);
// Of devices, those of the ranks.
std::vector<double> ratesOfRanks(const planpb::PlanFile &plan,
                                 const elastic::Situation &situation);
// So that what is expected of a device is what a healthy one takes, whatever
// rates the plan was compiled for.
Status makeHealthy(LoadedPlan &plan, const PlanPrices &prices);

// A plan to go on with, as a run takes it: verified, with a healthy cluster.
Result<LoadedPlan> loadNext(const std::string &path, bool trust,
                            const PlanPrices &prices);

// How to compile the model of a plan again, as that plan was. `regroups`: with
// degrees and devices that are searched, instead of the plan's own degrees.
// Errors: the plan does not say how it was compiled, or has options that write
// files or ask for something else.
Result<std::vector<std::string>>
compileArguments(const planpb::PlanFile &plan,
                 const elastic::Situation &situation, bool regroups,
                 const std::string &output);

struct PooledPlan {
  std::string path;
  LoadedPlan plan; // with a healthy cluster
  elastic::Situation planned;
};

class PlanPool {
public:
  // `first`: the plan that the run begins with. `folder`: of more of them, may
  // be missing. `compiler` empty: none are made.
  PlanPool(std::string path, const LoadedPlan &first, std::string folder,
           std::string compiler, bool trust, PlanPrices prices);
  // Takes the plans of the folder; returns why some are not considered.
  std::vector<std::string> readFolder();

  // Sees to it that there are plans for the situation: makes them, if need be.
  // Returns what went wrong, which leaves the others.
  Status provide(const elastic::Situation &situation,
                 const std::atomic<bool> &stop);
  // They stay where they are.
  const std::list<PooledPlan> &plans() const { return plans_; }
  const PlanPrices &prices() const { return prices_; }
  size_t devices() const { return devices_; }

private:
  Status add(const std::string &path);
  Status checkSame(const LoadedPlan &plan) const;

  std::list<PooledPlan> plans_;
  std::string folder_, compiler_;
  bool trust_;
  PlanPrices prices_;
  size_t devices_;
};

} // namespace merak::runtime
