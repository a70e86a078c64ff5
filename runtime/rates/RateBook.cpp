#include "runtime/rates/RateBook.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace merak::rates {

// Looks that say what is normal for a program.
constexpr size_t kBeginning = 3;
// How wrong the cost model may be about all that a program computes, from
// program to program.
constexpr double kFar = 1.8;

const char *nameOf(Pace pace) {
  switch (pace) {
  case Pace::Normal:
    return "normal";
  case Pace::Mild:
    return "mild";
  case Pace::Severe:
    return "severe";
  }
  return "";
}

DeviceRate deviceOf(double rate) {
  const Thresholds thresholds;
  return {rate,
          rate >= thresholds.severe ? Pace::Severe
          : rate > 1                ? Pace::Mild
                                    : Pace::Normal,
          0};
}

std::string describe(const PaceChange &change, const char *what) {
  return change.to == Pace::Normal
             ? fmt::format("{} {} is no longer slow", what, change.device)
             : fmt::format("{} {} takes {:.2f} times as long as it should: {}",
                           what, change.device, change.rate, nameOf(change.to));
}

// Of an even number the lower one of the two in the middle: who is slow is not
// the norm.
static double lowerMedian(std::vector<double> values) {
  if (values.empty())
    return 0;
  auto middle = values.begin() + int64_t((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

RateBook::RateBook(std::vector<int> programs, Thresholds thresholds,
                   const Known &before)
    : programs_(std::move(programs)), thresholds_(thresholds), before_(before),
      devices_(before.devices), last_(programs_.size()) {
  for (int program : programs_)
    count_ = std::max(count_, program + 1);
  normal_.resize(size_t(count_));
  devices_.resize(programs_.size());
  before_.devices.resize(programs_.size());
  for (DeviceRate &device : before_.devices)
    if (device.pace == Pace::Normal)
      device.rate = 1;
}

static double ratioOf(const Work &work, size_t c) {
  return work.expected[c] > 0 ? work.measured[c] / work.expected[c] : 0;
}

// By program and class the lower median of its devices, which have these rates.
std::vector<Seconds> RateBook::ratios(const std::vector<Work> &works,
                                      const std::vector<double> &rates) const {
  std::vector<Seconds> result(size_t(count_), Seconds{});
  for (int p = 0; p < count_; ++p)
    for (size_t c = 0; c < kRateClasses; ++c) {
      std::vector<double> peers;
      for (size_t d = 0; d < works.size(); ++d)
        if (programs_[d] == p && ratioOf(works[d], c) > 0)
          peers.push_back(ratioOf(works[d], c) / rates[d]);
      result[size_t(p)][c] = lowerMedian(std::move(peers));
    }
  return result;
}

// What kernels of the class take on devices that were normal before.
double RateBook::usual(size_t c, const std::vector<Work> &works) const {
  std::vector<double> all;
  for (size_t d = 0; d < works.size(); ++d)
    if (before_.devices[d].rate == 1 && ratioOf(works[d], c) > 0)
      all.push_back(ratioOf(works[d], c));
  return lowerMedian(std::move(all));
}

// What each device had under the plan before, unless it is another one by now.
// Of a plan that was compiled for slow devices nothing was measured before.
std::vector<double>
RateBook::ratesBefore(const std::vector<Work> &works) const {
  std::vector<double> rates;
  for (size_t d = 0; d < works.size(); ++d) {
    double &rate = rates.emplace_back(before_.devices[d].rate);
    double took = 0, should = 0;
    for (size_t c = 0; c < kRateClasses; ++c) {
      double normal = before_.normal[c];
      if (normal == 0 && rate > 1)
        normal = usual(c, works);
      if (normal == 0 || ratioOf(works[d], c) == 0)
        continue;
      took += works[d].measured[c];
      should += works[d].expected[c] * normal;
    }
    if (should > 0 &&
        (took > kFar * rate * should || kFar * took < rate * should))
      rate = took < kFar * should ? 1 : took / should;
  }
  return rates;
}

// What a look says of each program and class.
void RateBook::learn(const std::vector<Work> &works) {
  const std::vector<Seconds> now = ratios(works, ratesBefore(works));
  for (size_t c = 0; c < kRateClasses; ++c) {
    std::vector<double> all;
    for (size_t p = 0; p < now.size(); ++p) {
      Of &of = normal_[p][c];
      if (now[p][c] > 0 && of.begun.size() < kBeginning) {
        of.begun.push_back(now[p][c]);
        of.normal = lowerMedian(of.begun);
      }
      if (of.normal > 0)
        all.push_back(of.normal);
    }
    // Slow from the beginning.
    const double usual = lowerMedian(all);
    for (size_t p = 0; p < now.size(); ++p)
      if (Of &of = normal_[p][c]; of.normal > thresholds_.severe * usual)
        of.normal = usual;
  }
}

Known RateBook::known() const {
  Known known{devices_, {}};
  for (size_t c = 0; c < kRateClasses; ++c) {
    std::vector<double> all;
    for (const auto &of : normal_)
      if (of[c].normal > 0)
        all.push_back(of[c].normal);
    known.normal[c] = all.empty() ? before_.normal[c] : lowerMedian(all);
  }
  return known;
}

std::vector<double> RateBook::ratesNow(const std::vector<Work> &works) {
  learn(works);
  const std::vector<Seconds> now =
      ratios(works, std::vector<double>(works.size(), 1));
  std::vector<double> rates;
  for (size_t d = 0; d < works.size(); ++d) {
    const auto p = size_t(programs_[d]);
    double took = 0, should = 0;
    for (size_t c = 0; c < kRateClasses; ++c)
      if (ratioOf(works[d], c) > 0) {
        took += works[d].measured[c];
        should +=
            works[d].expected[c] * std::min(now[p][c], normal_[p][c].normal);
      }
    rates.push_back(should > 0 ? took / should : 1);
  }
  const double all = std::max(1.0, lowerMedian(rates));
  for (double &rate : rates)
    rate /= all;
  return rates;
}

Pace RateBook::paceOf(size_t device, const std::vector<double> &sorted) const {
  const double atLeast = sorted[1], atMost = sorted[kWindow - 2];
  const Pace now = devices_[device].pace;
  if (atLeast >= thresholds_.severe)
    return Pace::Severe;
  if (now == Pace::Severe && atMost >= thresholds_.notSevere)
    return now;
  if (atLeast >= thresholds_.mild)
    return Pace::Mild;
  return now == Pace::Normal || atMost < thresholds_.notMild ? Pace::Normal
                                                             : Pace::Mild;
}

// Whether there is enough to look at.
bool RateBook::gather(const std::vector<Work> &devices) {
  looked_.resize(devices.size());
  double most = 0;
  for (size_t d = 0; d < devices.size(); ++d) {
    double all = 0;
    for (size_t c = 0; c < kRateClasses; ++c) {
      looked_[d].measured[c] += devices[d].measured[c];
      looked_[d].expected[c] += devices[d].expected[c];
      all += looked_[d].measured[c];
    }
    most = std::max(most, all);
  }
  return most >= thresholds_.leastSeconds;
}

std::vector<PaceChange> RateBook::add(int64_t step,
                                      const std::vector<Work> &devices) {
  std::vector<PaceChange> changes;
  if (devices.size() != devices_.size() || ++seen_ == 1 || !gather(devices))
    return changes;
  const std::vector<double> rates = ratesNow(std::exchange(looked_, {}));
  for (size_t d = 0; d < rates.size(); ++d) {
    std::deque<double> &last = last_[d];
    last.push_back(rates[d]);
    if (last.size() > kWindow)
      last.pop_front();
    if (last.size() < kWindow)
      continue;
    std::vector<double> sorted(last.begin(), last.end());
    std::sort(sorted.begin(), sorted.end());
    DeviceRate &device = devices_[d];
    device.rate = sorted[kWindow / 2];
    const Pace next = paceOf(d, sorted);
    if (next == device.pace)
      continue;
    changes.push_back(
        {int(d), std::exchange(device.pace, next), next, device.rate});
    device.since = step;
  }
  return changes;
}

} // namespace merak::rates
