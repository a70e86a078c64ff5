#include "runtime/launch/AgentPlans.h"

#include "runtime/core/SecondsSince.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>

namespace merak::runtime {

AgentPlans::AgentPlans(PlanPool pool, std::vector<Host> hosts)
    : pool_(std::move(pool)), hosts_(std::move(hosts)) {}

AgentPlans::Making::~Making() {
  stop = true;
  if (thread.joinable())
    thread.join();
}

static std::string ranksOf(int64_t count) {
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

Result<ChosenPlan> AgentPlans::choose(const Lost &lost) const {
  const int64_t slots = slotsOf(without(hosts_, lost));
  const PooledPlan &first = pool_.plans().front();
  const PlanSource &source = pool_.source();
  std::optional<ChosenPlan> best;
  for (const PooledPlan &plan : pool_.plans()) {
    const int64_t ranks = plan.plan.file.ranks_size();
    // With all hosts a plan that was made for fewer is not asked for.
    if (ranks > slots ||
        (lost.empty() && source.folder == source.made && &plan != &first))
      continue;
    auto seconds = pool_.prices().stepSeconds(
        plan.plan, std::vector<double>(size_t(ranks), 1));
    if (!seconds)
      return seconds.status();
    if (!best || *seconds < best->seconds)
      best = {plan.path, ranks, *seconds, 0};
  }
  if (!best)
    return Status::error(fmt::format("no plan has a place on {}: \"{}\" has {}",
                                     ranksOf(slots), first.path,
                                     first.plan.file.ranks_size()));
  if (const auto made = seconds_.find(best->path); made != seconds_.end())
    best->plannedSeconds = made->second;
  return *best;
}

// "hosts-3-ranks.plan"; with nodes, which are not all alike,
// "hosts-3-ranks-nodes-0-2.plan".
const AgentPlans::Wish &AgentPlans::wishFor(const Lost &lost) {
  const auto [found, isNew] = wishes_.try_emplace(lost);
  Wish &wish = found->second;
  if (!isNew)
    return wish;
  const std::vector<Host> left = without(hosts_, lost);
  wish.devices = std::min(slotsOf(left), int64_t(pool_.devices()));
  std::string nodes;
  const std::string &given = pool_.source().cluster;
  if (const std::string file =
          given.empty() ? clusterFileOf(pool_.plans().front().plan.file)
                        : given;
      !file.empty() && pool_.prices().withoutNodes) {
    std::vector<int64_t> devices;
    std::set<size_t> without;
    std::vector<size_t> kept;
    for (size_t host = 0; host < hosts_.size(); ++host) {
      devices.push_back(hosts_[host].slots);
      if (lost.count(hosts_[host].name))
        without.insert(host);
      else
        kept.push_back(host);
    }
    // A file that cannot be read is told of by merakc.
    if (auto text = pool_.prices().withoutNodes(file, devices, without))
      wish.cluster = *text;
    if (!wish.cluster.empty())
      nodes = fmt::format("-nodes-{}", fmt::join(kept, "-"));
  }
  wish.path = fmt::format("{}/hosts-{}-ranks{}.plan", pool_.source().made,
                          wish.devices, nodes);
  return wish;
}

bool AgentPlans::lacks(const Lost &lost) {
  if (lost.empty() || pool_.source().compiler.empty())
    return false;
  const Wish &wish = wishFor(lost);
  const auto &plans = pool_.plans();
  return wish.devices > 0 && wish.devices < int64_t(pool_.devices()) &&
         !inVain_.count(wish.path) &&
         std::none_of(plans.begin(), plans.end(), [&](const PooledPlan &plan) {
           return plan.path == wish.path;
         });
}

void AgentPlans::make(const Lost &lost) {
  const Wish &wish = wishFor(lost);
  if (making_ && making_->wish.path == wish.path)
    return;
  making_.reset();
  making_ = std::make_unique<Making>();
  making_->wish = wish;
  // With --plans it may have been made before and not been looked at.
  if (pool_.add(wish.path).ok()) {
    making_->done = true;
    return;
  }
  making_->thread =
      std::thread([this, making = making_.get()] { make(*making); });
}

void AgentPlans::make(Making &making) const {
  const auto begin = std::chrono::steady_clock::now();
  making.status = compile(making.wish, making.stop);
  // A number of devices that the model cannot be divided by.
  const auto fewer = int64_t(std::bit_floor(uint64_t(making.wish.devices)));
  if (!making.status.ok() && !making.stop && fewer < making.wish.devices) {
    Wish other = making.wish;
    other.devices = fewer;
    if (Status status = compile(other, making.stop); status.ok())
      making.status = std::move(status);
  }
  making.seconds = secondsSince(begin);
  making.done = true;
}

Status AgentPlans::compile(const Wish &wish,
                           const std::atomic<bool> &stop) const {
  PlanWish asked{elastic::Situation(size_t(wish.devices), 1), true,
                 pool_.source().cluster};
  if (!wish.cluster.empty()) {
    asked.cluster = wish.path + ".cluster.json";
    std::error_code error;
    std::filesystem::create_directories(pool_.source().made, error);
    std::ofstream file(asked.cluster);
    if (!(file << wish.cluster << std::flush))
      return Status::error(fmt::format("cannot write \"{}\"", asked.cluster));
  }
  return pool_.compile(asked, wish.path, stop);
}

std::optional<Status> AgentPlans::made() {
  if (!making_ || !making_->done)
    return std::nullopt;
  if (making_->thread.joinable())
    making_->thread.join();
  Status status = std::move(making_->status);
  const Wish wish = making_->wish;
  const double seconds = making_->seconds;
  making_.reset();
  if (status.ok())
    status = pool_.add(wish.path);
  if (status.ok()) {
    if (seconds > 0)
      seconds_[wish.path] = seconds;
    return status;
  }
  inVain_.insert(wish.path);
  return std::move(status).withContext(
      fmt::format("no plan for {} could be made", ranksOf(wish.devices)));
}

} // namespace merak::runtime
