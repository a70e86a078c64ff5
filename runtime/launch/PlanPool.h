// The plans that a run may go on with: the one it began with, those of a
// folder, and those that merakc makes for devices as they are by now, or for
// those that are left.
#pragma once

#include "runtime/elastic/Situation.h"
#include "runtime/plan/Plan.h"

#include <atomic>
#include <functional>
#include <list>
#include <set>

namespace merak::runtime {

// A node of a cluster file.
struct MachineNode {
  std::string host; // empty: the file does not say
  int64_t devices = 0;
};

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
  // The cluster of a file without some of its nodes, of which the first ones
  // have so many devices each; empty: they have others.
  std::function<Result<std::string>(const std::string &file,
                                    const std::vector<int64_t> &devices,
                                    const std::set<size_t> &without)>
      withoutNodes;
  // The nodes of a cluster file. Errors: it cannot be read, or the plan was not
  // compiled for it.
  std::function<Result<std::vector<MachineNode>>(const LoadedPlan &,
                                                 const std::string &file)>
      nodesOf;
};

// Where plans come from.
struct PlanSource {
  std::string folder;   // of those that are there; may be missing
  std::string made;     // folder for those that merakc makes
  std::string compiler; // that merakc; empty: none are made
  // The cluster file that the first plan was compiled for; empty: as the plan
  // calls it, which others may do elsewhere.
  std::string cluster;
};
// As --plans and --compiler of a run say it, whose plan is `plan`: without
// --plans those that were made for it before.
PlanSource sourceOfPlans(const std::string &plan, const std::string &plans,
                         const std::string &compiler);

// Devices by number up to the last one that the plan knows of.
size_t deviceCount(const planpb::PlanFile &plan);
// What the plan was compiled for (merakc --for-rates), by device.
Result<elastic::Situation> plannedFor(const planpb::PlanFile &plan,
                                      size_t devices);
// The file that it was compiled for (merakc --cluster); empty: none.
std::string clusterFileOf(const planpb::PlanFile &plan);
// Of devices, those of the ranks.
std::vector<double> ratesOfRanks(const planpb::PlanFile &plan,
                                 const elastic::Situation &situation);
// So that what is expected of a device is what a healthy one takes, whatever
// rates the plan was compiled for.
Status makeHealthy(LoadedPlan &plan, const PlanPrices &prices);

// A plan to go on with, as a run takes it: verified, with a healthy cluster.
Result<LoadedPlan> loadNext(const std::string &path, bool trust,
                            const PlanPrices &prices);

// What merakc is asked for.
struct PlanWish {
  elastic::Situation devices; // their rates
  // Degrees and devices are searched, instead of the plan's own degrees.
  bool regroups = false;
  std::string cluster; // a file; empty: the plan's own
};

// How to compile the model of a plan again, as that plan was. Errors: the plan
// does not say how it was compiled, or has options that write files or ask for
// something else.
Result<std::vector<std::string>> compileArguments(const planpb::PlanFile &plan,
                                                  const PlanWish &wish,
                                                  const std::string &output);

struct PooledPlan {
  std::string path;
  LoadedPlan plan; // with a healthy cluster
  elastic::Situation planned;
};

class PlanPool {
public:
  // `first`: the plan that the run begins with.
  PlanPool(std::string path, const LoadedPlan &first, PlanSource source,
           bool trust, PlanPrices prices);
  // Takes the plans of the folder; returns why some are not considered.
  std::vector<std::string> readFolder();

  // Sees to it that there are plans for the situation: makes them, if need be.
  // Returns what went wrong, which leaves the others.
  Status provide(const elastic::Situation &situation,
                 const std::atomic<bool> &stop);
  // Makes one, which is not in the pool by that; others may use the pool
  // meanwhile.
  Status compile(const PlanWish &wish, const std::string &path,
                 const std::atomic<bool> &stop) const;
  // Errors: it cannot be read, or is no plan to go on with.
  Status add(const std::string &path);
  bool has(const std::string &path) const;
  // They stay where they are.
  const std::list<PooledPlan> &plans() const { return plans_; }
  const PlanPrices &prices() const { return prices_; }
  const PlanSource &source() const { return source_; }
  size_t devices() const { return devices_; }

private:
  Status checkSame(const LoadedPlan &plan) const;

  std::list<PooledPlan> plans_;
  PlanSource source_;
  bool trust_;
  PlanPrices prices_;
  size_t devices_;
};

} // namespace merak::runtime
