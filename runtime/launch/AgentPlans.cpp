#include "runtime/launch/AgentPlans.h"

#include "runtime/core/SecondsSince.h"
#include "runtime/launch/Rates.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <numeric>

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

// Of so many places, those of a plan's ranks. Where it names others, and is not
// for slow devices, any will do.
static std::vector<int> placesOf(const PooledPlan &plan, size_t places) {
  std::vector<int> devices = devicesOf(plan.plan.file); // in order
  if (size_t(devices.back()) >= places && devices.size() <= places &&
      elastic::str(plan.planned) == "none")
    std::iota(devices.begin(), devices.end(), 0);
  return devices;
}
static bool hasPlaces(const PooledPlan &plan, size_t places) {
  return size_t(placesOf(plan, places).back()) < places;
}

void AgentPlans::measured(const Lost &lost, const std::vector<double> &rates) {
  const std::vector<Place> places = placesLeft(hosts_, lost);
  elastic::Situation now = rates_;
  for (size_t device = 0; device < std::min(rates.size(), places.size());
       ++device)
    if (!unused_.count(places[device].number))
      now[size_t(places[device].number)] = rates[device];
  if (elastic::differ(now, rates_)) {
    rates_ = std::move(now);
    wishes_.clear();
  }
}

elastic::Situation AgentPlans::ratesLeft(const Lost &lost) const {
  elastic::Situation rates;
  for (const Place &place : placesLeft(hosts_, lost))
    rates.push_back(rates_[size_t(place.number)]);
  return rates;
}

std::vector<LeftOutDevice> AgentPlans::leftOut(const PooledPlan &plan,
                                               const Lost &lost) const {
  std::vector<Place> places = placesLeft(hosts_, lost);
  placeRanks(places, placesOf(plan, places.size()));
  std::vector<LeftOutDevice> out;
  for (const Place &place : places)
    if (const double rate = rates_[size_t(place.number)];
        place.rank < 0 && rate > 1)
      out.push_back({place.number, place.local, place.host, rate, 0, 0});
  return out;
}

// With all hosts a plan that was made for fewer is not asked for, unless it is
// one without a device that is slow.
bool AgentPlans::isForAll(const PooledPlan &plan) const {
  const PlanSource &source = pool_.source();
  return source.folder != source.made || &plan == &pool_.plans().front() ||
         !leftOut(plan, {}).empty();
}

Result<ChosenPlan> AgentPlans::chosen(const PooledPlan &plan,
                                      const Lost &lost) const {
  const elastic::Situation all = ratesLeft(lost);
  const std::vector<int> devices = placesOf(plan, all.size());
  std::vector<double> rates;
  for (int device : devices)
    rates.push_back(all[size_t(device)]);
  auto seconds = pool_.prices().stepSeconds(plan.plan, rates);
  if (!seconds)
    return seconds.status();
  return ChosenPlan{plan.path, plan.plan.file.ranks_size(), *seconds, 0,
                    devices,   leftOut(plan, lost)};
}

Result<ChosenPlan> AgentPlans::take(const std::string &path, const Lost &lost) {
  MERAK_RETURN_IF_ERROR(pool_.add(path));
  for (const PooledPlan &plan : pool_.plans())
    if (plan.path == path && hasPlaces(plan, ratesLeft(lost).size()))
      return chosen(plan, lost);
  return Status::error(
      fmt::format("\"{}\" names devices that the hosts do not have", path));
}

void AgentPlans::started(const ChosenPlan &plan, const Lost &lost) {
  seconds_.erase(plan.path);
  std::vector<Place> places = placesLeft(hosts_, lost);
  placeRanks(places, plan.devices);
  unused_.clear();
  out_.clear();
  recovered_ = false;
  for (const Place &place : places)
    if (place.rank < 0)
      unused_.insert(place.number);
  for (const LeftOutDevice &device : plan.leftOut)
    out_.insert(device.number);
}

void AgentPlans::inherit(const std::string &plan, const Lost &lost) {
  // Without that plan there are others.
  if (const auto found = take(plan, lost))
    started(*found, lost);
}

void AgentPlans::recovered(const LeftOutDevice &device) {
  rates_[size_t(device.number)] = 1;
  out_.erase(device.number);
  recovered_ = true;
  wishes_.clear();
}

Result<ChosenPlan> AgentPlans::choose(const Lost &lost) const {
  const size_t slots = ratesLeft(lost).size();
  const PooledPlan &first = pool_.plans().front();
  std::optional<ChosenPlan> best;
  for (const PooledPlan &plan : pool_.plans()) {
    if (!hasPlaces(plan, slots) || (lost.empty() && !isForAll(plan)))
      continue;
    auto one = chosen(plan, lost);
    if (!one)
      return one.status();
    if (!best || one->seconds < best->seconds)
      best = std::move(*one);
  }
  if (!best)
    return Status::error(fmt::format("no plan has a place on {}: \"{}\" has {}",
                                     ranksOf(int64_t(slots)), first.path,
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
  // With all hosts there is the first plan, and what runs ask for. When one of
  // several devices that are left out is normal, no run knows of it.
  const bool isForOthers = recovered_ && !out_.empty();
  if ((lost.empty() && !isForOthers) || pool_.source().compiler.empty())
    return false;
  const Wish &wish = wishFor(lost);
  // One for about the same rates will do.
  const auto isFor = [&](const PooledPlan &plan) {
    elastic::Situation planned = plan.planned;
    planned.resize(wish.devices.size(), 1);
    const bool isForThese = plan.path == wish.base + ".plan" ||
                            plan.path.starts_with(wish.base + "-rates-");
    return plan.path == wish.path || ((isForThese || lost.empty()) &&
                                      !elastic::differ(planned, wish.devices));
  };
  const auto &plans = pool_.plans();
  return !wish.devices.empty() &&
         (wish.devices.size() < pool_.devices() || isForOthers) &&
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
