#include "runtime/launch/Rates.h"

#include "runtime/comm/World.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace merak::runtime {

static std::vector<int> programsOf(const LoadedPlan &plan) {
  std::vector<int> programs;
  for (const planpb::Rank &rank : plan.file.ranks())
    programs.push_back(int(rank.program()));
  return programs;
}

std::vector<int> devicesOf(const planpb::PlanFile &plan) {
  std::vector<int> devices(plan.devices().begin(), plan.devices().end());
  for (int rank = int(devices.size()); rank < plan.ranks_size(); ++rank)
    devices.push_back(rank);
  return devices;
}

// Those on which the plan has ranks, by rank.
static rates::Known pick(const rates::Known &all, const LoadedPlan &plan) {
  rates::Known picked{{}, all.normal};
  for (int device : devicesOf(plan.file))
    picked.devices.push_back(size_t(device) < all.devices.size()
                                 ? all.devices[size_t(device)]
                                 : rates::DeviceRate());
  return picked;
}

RateKeeper::RateKeeper(const LoadedPlan &plan, const ExpectedSeconds &expected,
                       Store *store, const rates::Known &before, IdleRate idle)
    : store_(store), devices_(devicesOf(plan.file)), before_(before),
      idleRate_(std::move(idle)),
      book_(programsOf(plan), {}, pick(before, plan)) {
  const std::set<int> used(devices_.begin(), devices_.end());
  before_.devices.resize(
      std::max(before_.devices.size(), size_t(*used.rbegin()) + 1));
  for (int device = 0; size_t(device) < before_.devices.size(); ++device)
    if (!used.count(device))
      idle_.push_back(device);
  if (expected)
    if (auto seconds = expected(plan); seconds.ok())
      expected_ = std::move(*seconds);
  rates::Seconds one;
  one.fill(1);
  expected_.resize(size_t(plan.file.ranks_size()), one);
}

Result<std::vector<std::string>> RateKeeper::add(StepResult &step) {
  std::string text = rates::toText(step.computed);
  if (store_) {
    auto all = store_->gather(fmt::format("rates/{}", step.step), text,
                              kPatienceSeconds);
    if (!all.ok())
      return all.status();
    text.clear();
    for (const std::string &part : *all)
      text += part;
  }
  auto computed = rates::parseSeconds(text);
  if (!computed.ok())
    return computed.status();
  std::vector<rates::Work> works;
  for (size_t r = 0; r < computed->size() && r < expected_.size(); ++r)
    works.push_back({(*computed)[r], expected_[r]});
  std::vector<std::string> news;
  for (rates::PaceChange &change : book_.add(step.step, works)) {
    change.device = devices_[size_t(change.device)];
    news.push_back(
        fmt::format("step {}: {}", step.step, rates::describe(change, what())));
  }
  lookAtIdle(step.step, news);
  step.rates = known().devices;
  step.idle = idle_;
  return news;
}

// Where every device has a rank of its number, people know it by that.
const char *RateKeeper::what() const {
  return idle_.empty() ? "rank" : "device";
}

// A device that is left out comes back when it is as fast as others.
void RateKeeper::lookAtIdle(int64_t step, std::vector<std::string> &news) {
  for (int device : idle_) {
    rates::DeviceRate &known = before_.devices[size_t(device)];
    if (!idleRate_ || known.pace == rates::Pace::Normal)
      continue;
    std::deque<double> &last = idleRates_[device];
    last.push_back(idleRate_(device, step));
    if (last.size() > rates::kWindow)
      last.pop_front();
    if (last.size() < rates::kWindow)
      continue;
    std::vector<double> sorted(last.begin(), last.end());
    std::sort(sorted.begin(), sorted.end());
    known.rate = sorted[rates::kWindow / 2];
    if (sorted[rates::kWindow - 2] >= rates::Thresholds().notMild)
      continue;
    const rates::PaceChange change{device, known.pace, rates::Pace::Normal,
                                   known.rate};
    known.pace = rates::Pace::Normal;
    known.since = step;
    news.push_back(
        fmt::format("step {}: {}", step, rates::describe(change, what())));
  }
}

rates::Known RateKeeper::known() const {
  const rates::Known of = book_.known();
  rates::Known all{before_.devices, of.normal};
  for (size_t rank = 0; rank < devices_.size(); ++rank)
    all.devices[size_t(devices_[rank])] = of.devices[rank];
  return all;
}

} // namespace merak::runtime
