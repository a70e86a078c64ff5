// Which plan an agent starts its run with: one that has a place on the hosts
// that are left. Where merakc is, it makes one for exactly these, with the
// options that the first plan was compiled by, degrees and devices searched:
//
//   hosts lost ─► has a plan a place? ─ no ─► made, then the run starts
//                         │
//                        yes ─► the run starts, one is made beside it ─► judged
//
// It is for their number of devices. If the first plan is for a cluster file
// whose first nodes have as many devices as the hosts, in their order, it is
// for that cluster without the nodes of hosts that are lost.
#pragma once

#include "runtime/launch/Hosts.h"
#include "runtime/launch/PlanPool.h"

#include <map>
#include <optional>
#include <thread>

namespace merak::runtime {

struct ChosenPlan {
  std::string path;
  int64_t ranks = 0;
  double seconds = 0;        // of a step, predicted; 0: not compared
  double plannedSeconds = 0; // that it took to make; 0: it was there
};

class AgentPlans {
public:
  using Lost = std::set<std::string>;

  AgentPlans(PlanPool pool, std::vector<Host> hosts);
  // Takes the plans of the pool's folder; returns why some are not considered.
  std::vector<std::string> readFolder() { return pool_.readFolder(); }

  // The fastest that has a place on the hosts that are left.
  Result<ChosenPlan> choose(const Lost &lost) const;
  // Whether one is to be made for the hosts that are left: there is none for
  // exactly these, and none was tried in vain.
  bool lacks(const Lost &lost);
  // Begins to make it; one for other hosts, that is being made, is given up.
  void make(const Lost &lost);
  bool isMaking() const { return making_ != nullptr; }
  // What came of it; nothing while it lasts.
  std::optional<Status> made();
  void stop() { making_.reset(); }
  // A run was started with it.
  void started(const ChosenPlan &plan) { seconds_.erase(plan.path); }

private:
  struct Wish {
    int64_t devices = 0;
    std::string path;    // of the plan
    std::string cluster; // a cluster file's text; empty: the first plan's
  };
  struct Making {
    ~Making();
    Wish wish;
    std::atomic<bool> stop{false}, done{false};
    Status status;
    double seconds = 0;
    std::thread thread;
  };
  const Wish &wishFor(const Lost &lost);
  void make(Making &making) const;
  Status compile(const Wish &wish, const std::atomic<bool> &stop) const;

  PlanPool pool_;
  std::vector<Host> hosts_;
  std::map<Lost, Wish> wishes_;
  std::map<std::string, double> seconds_; // of plans that nobody has yet
  std::set<std::string> inVain_;          // plans
  std::unique_ptr<Making> making_;
};

} // namespace merak::runtime
