#include "runtime/launch/AgentPlans.h"

#include "runtime/core/SecondsSince.h"
#include "runtime/launch/Rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>

namespace merak::runtime {

AgentPlans::AgentPlans(PlanPool pool, std::vector<Host> hosts)
    : pool_(std::move(pool)), hosts_(std::move(hosts)),
      rates_(size_t(slotsOf(hosts_)), 1) {}

AgentPlans::Making::~Making() {
  stop = true;
  if (thread.joinable())
    thread.join();
}

static std::string ranksOf(int64_t count) {
  return fmt::format("{} rank{}", count, count == 1 ? "" : "s");
}

// Ranks are in the first places, whichever devices the plan is for. That is
// the same unless it is for rates and leaves a device out.
static bool isMisplaced(const PooledPlan &plan) {
  if (elastic::str(plan.planned) == "none")
    return false;
  const std::vector<int> devices = devicesOf(plan.plan.file);
  for (size_t rank = 0; rank < devices.size(); ++rank)
    if (devices[rank] != int(rank))
      return true;
  return false;
}

// Of the places that are left, which of all hosts they are.
static std::vector<size_t> placesLeft(const std::vector<Host> &hosts,
                                      const std::set<std::string> &lost) {
  std::vector<size_t> places;
  size_t place = 0;
  for (const Host &host : hosts)
    for (int64_t slot = 0; slot < host.slots; ++slot, ++place)
      if (!lost.count(host.name))
        places.push_back(place);
  return places;
}

void AgentPlans::measured(const Lost &lost, const std::vector<double> &rates) {
  const std::vector<size_t> places = placesLeft(hosts_, lost);
  elastic::Situation now = rates_;
  for (size_t device = 0; device < std::min(rates.size(), places.size());
       ++device)
    now[places[device]] = rates[device];
  if (elastic::differ(now, rates_)) {
    rates_ = std::move(now);
    wishes_.clear();
  }
}

elastic::Situation AgentPlans::ratesLeft(const Lost &lost) const {
  elastic::Situation rates;
  for (size_t place : placesLeft(hosts_, lost))
    rates.push_back(rates_[place]);
  return rates;
}

Result<ChosenPlan> AgentPlans::choose(const Lost &lost) const {
  const elastic::Situation rates = ratesLeft(lost);
  const auto slots = int64_t(rates.size());
  const PooledPlan &first = pool_.plans().front();
  const PlanSource &source = pool_.source();
  std::optional<ChosenPlan> best;
  for (const PooledPlan &plan : pool_.plans()) {
    const int64_t ranks = plan.plan.file.ranks_size();
    // With all hosts a plan that was made for fewer is not asked for.
    if (ranks > slots || (isMisplaced(plan) && &plan != &first) ||
        (lost.empty() && source.folder == source.made && &plan != &first))
      continue;
    auto seconds = pool_.prices().stepSeconds(
        plan.plan, {rates.begin(), rates.begin() + ranks});
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

static std::string nameOf(const elastic::Situation &rates) {
  std::string text = elastic::str(rates);
  if (text == "none")
    return "";
  std::replace(text.begin(), text.end(), ':', 'x');
  std::replace(text.begin(), text.end(), ',', '-');
  return "-rates-" + text;
}

// "hosts-3-ranks.plan"; with nodes, which are not all alike,
// "hosts-3-ranks-nodes-0-2.plan"; if the second one is slow,
// "hosts-3-ranks-rates-1x2.9.plan".
const AgentPlans::Wish &AgentPlans::wishFor(const Lost &lost) {
  const auto [found, isNew] = wishes_.try_emplace(lost);
  Wish &wish = found->second;
  if (!isNew)
    return wish;
  wish.devices = ratesLeft(lost);
  wish.devices.resize(std::min(wish.devices.size(), pool_.devices()));
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
  wish.base = fmt::format("{}/hosts-{}-ranks{}", pool_.source().made,
                          wish.devices.size(), nodes);
  wish.path = wish.base + nameOf(wish.devices) + ".plan";
  return wish;
}

bool AgentPlans::lacks(const Lost &lost) {
  if (lost.empty() || pool_.source().compiler.empty())
    return false;
  const Wish &wish = wishFor(lost);
  // One for about the same rates will do.
  const auto isFor = [&](const PooledPlan &plan) {
    elastic::Situation planned = plan.planned;
    planned.resize(wish.devices.size(), 1);
    const bool isForThese = plan.path == wish.base + ".plan" ||
                            plan.path.starts_with(wish.base + "-rates-");
    return !isMisplaced(plan) &&
           (plan.path == wish.path ||
            (isForThese && !elastic::differ(planned, wish.devices)));
  };
  const auto &plans = pool_.plans();
  return !wish.devices.empty() && wish.devices.size() < pool_.devices() &&
         !inVain_.count(wish.path) &&
         std::none_of(plans.begin(), plans.end(), isFor);
}

void AgentPlans::make(const Lost &lost) {
  const Wish &wish = wishFor(lost);
  if (making_ && making_->wish.path == wish.path)
    return;
  making_.reset();
  making_ = std::make_unique<Making>();
  making_->wish = wish;
  making_->path = wish.path;
  // With --plans it may have been made before and not been looked at.
  if (pool_.add(wish.path).ok() && !lacks(lost)) {
    making_->done = true;
    return;
  }
  making_->thread =
      std::thread([this, making = making_.get()] { make(*making); });
}

void AgentPlans::make(Making &making) const {
  const auto begin = std::chrono::steady_clock::now();
  const Wish &wish = making.wish;
  const bool isHealthy = elastic::str(wish.devices) == "none";
  if (!pool_.has(wish.path))
    making.status = makeOne(wish, making.stop);
  if (making.status.ok() && !isHealthy)
    if (auto plan = loadPlan(wish.path);
        plan && isMisplaced({"", std::move(*plan), wish.devices}))
      making.status = Status::error(
          fmt::format("\"{}\" leaves slow devices out, which ranks that are "
                      "processes cannot",
                      wish.path));
  Wish healthy = wish;
  healthy.devices.assign(wish.devices.size(), 1);
  healthy.path = wish.base + ".plan";
  if (!making.status.ok() && !isHealthy && !making.stop &&
      !pool_.has(healthy.path)) {
    making.path = healthy.path;
    making.status = makeOne(healthy, making.stop);
  }
  making.seconds = secondsSince(begin);
  making.done = true;
}

Status AgentPlans::makeOne(const Wish &wish,
                           const std::atomic<bool> &stop) const {
  Status status = compile(wish, stop);
  // A number of devices that the model cannot be divided by.
  const size_t fewer = std::bit_floor(wish.devices.size());
  if (!status.ok() && !stop && fewer < wish.devices.size()) {
    Wish other = wish;
    other.devices.resize(fewer);
    if (Status made = compile(other, stop); made.ok())
      status = std::move(made);
  }
  return status;
}

Status AgentPlans::compile(const Wish &wish,
                           const std::atomic<bool> &stop) const {
  PlanWish asked{wish.devices, true, pool_.source().cluster};
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
  const std::string path = making_->path;
  const double seconds = making_->seconds;
  making_.reset();
  if (status.ok())
    status = pool_.add(path);
  if (!status.ok() || path != wish.path)
    inVain_.insert(wish.path);
  if (status.ok()) {
    if (seconds > 0)
      seconds_[path] = seconds;
    return status;
  }
  return std::move(status).withContext(fmt::format(
      "no plan for {} could be made", ranksOf(int64_t(wish.devices.size()))));
}

} // namespace merak::runtime
