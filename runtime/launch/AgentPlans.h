// Which plan an agent starts its run with: one that has a place on the hosts
// that are left. Where merakc is, it makes one for exactly these, with the
// options that the first plan was compiled by, degrees and devices searched:
//
//   hosts lost ─► has a plan a place? ─ no ─► made, then the run starts
//                         │
//                        yes ─► the run starts, one is made beside it ─► judged
//
// It is for their number of devices, at the rates that the last run measured
// of them, and may leave slow ones out: ranks are started on those that it
// names. If the first plan is for a cluster file whose first nodes have as many
// devices as the hosts, in their order, it is for that cluster without the
// nodes of hosts that are lost.
#pragma once

#include "runtime/launch/LeftOut.h"
#include "runtime/launch/Places.h"
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
  // Of its ranks, among those of the hosts that are left.
  std::vector<int> devices;
  // That have no rank since they are slow.
  std::vector<LeftOutDevice> leftOut;
};

class AgentPlans {
public:
  using Lost = std::set<std::string>;

  AgentPlans(PlanPool pool, std::vector<Host> hosts);
  // Takes the plans of the pool's folder; returns why some are not considered.
  std::vector<std::string> readFolder() { return pool_.readFolder(); }

  // Rates of devices (1: normal, else how many times as long it takes), which a
  // run on the hosts that were left without `lost` has measured. Of those that
  // its plan had left out it knows nothing new.
  void measured(const Lost &lost, const std::vector<double> &rates);
  // Of the devices of all hosts, as the agent before this one had it.
  const std::vector<double> &rates() const { return rates_; }
  void assume(const std::vector<double> &rates) {
    if (rates.size() == rates_.size())
      rates_ = rates;
  }
  // The fastest that has a place on the hosts that are left.
  Result<ChosenPlan> choose(const Lost &lost) const;
  // That which a run asked to be started again with.
  Result<ChosenPlan> take(const std::string &path, const Lost &lost);
  // Whether one is to be made for the hosts that are left: there is none for
  // exactly these, and none was tried in vain.
  bool lacks(const Lost &lost);
  // Begins to make it; one for other hosts, that is being made, is given up.
  void make(const Lost &lost);
  bool isMaking() const { return making_ != nullptr; }
  // What came of it; nothing while it lasts.
  std::optional<Status> made();
  void stop() { making_.reset(); }
  // A run was started with it, on the hosts that are left without `lost`.
  void started(const ChosenPlan &plan, const Lost &lost);
  // The same of the agent before this one, whose run is over.
  void inherit(const std::string &plan, const Lost &lost);
  // A device that was left out is normal again.
  void recovered(const LeftOutDevice &device);

private:
  struct Wish {
    elastic::Situation devices;
    std::string base;    // of the plans for these hosts, without their rates
    std::string path;    // of the plan
    std::string cluster; // a cluster file's text; empty: the first plan's
  };
  struct Making {
    ~Making();
    Wish wish;
    std::atomic<bool> stop{false}, done{false};
    Status status;
    std::string path; // of what was made
    double seconds = 0;
    std::thread thread;
  };
  const Wish &wishFor(const Lost &lost);
  elastic::Situation ratesLeft(const Lost &lost) const;
  Result<ChosenPlan> chosen(const PooledPlan &plan, const Lost &lost) const;
  std::vector<LeftOutDevice> leftOut(const PooledPlan &plan,
                                     const Lost &lost) const;
  // One for all hosts that this agent may come to by itself.
  bool isForAll(const PooledPlan &plan) const;
  void make(Making &making) const;
  Status makeOne(const Wish &wish, const std::atomic<bool> &stop) const;
  Status compile(const Wish &wish, const std::atomic<bool> &stop) const;

  PlanPool pool_;
  std::vector<Host> hosts_;
  elastic::Situation rates_; // by place of all hosts
  std::map<Lost, Wish> wishes_;
  std::map<std::string, double> seconds_; // of plans that nobody has yet
  std::set<std::string> inVain_;          // plans
  // Of all devices, of the run that is under way: those without a rank, and of
  // these those that are slow.
  std::set<int> unused_, out_;
  bool recovered_ = false; // one of them is normal since the run was started
  std::unique_ptr<Making> making_;
};

} // namespace merak::runtime
