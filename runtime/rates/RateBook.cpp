#include "runtime/rates/RateBook.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

namespace merak::rates {

// Looks that a rate is the median of, and of which all but one must say that a
// device is slow, or that it is not.
constexpr size_t kWindow = 5;
// Looks that say what is normal for a program.
constexpr size_t kBeginning = 3;

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

std::string describe(const PaceChange &change) {
  return change.to == Pace::Normal
             ? fmt::format("rank {} is no longer slow", change.device)
             : fmt::format(
                   "rank {} takes {:.2f} times as long as it should: {}",
                   change.device, change.rate, nameOf(change.to));
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

RateBook::RateBook(std::vector<int> programs, Thresholds thresholds)
    : programs_(std::move(programs)), thresholds_(thresholds),
      devices_(programs_.size()), last_(programs_.size()) {
  for (int program : programs_)
    count_ = std::max(count_, program + 1);
  normal_.resize(size_t(count_));
}

// What a look says of each program and class.
void RateBook::learn(const std::vector<std::array<double, kRateClasses>> &now) {
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

std::vector<double> RateBook::ratesNow(const std::vector<Work> &works) {
  auto ratio = [&](size_t d, size_t c) {
    const Work &work = works[d];
    return work.expected[c] > 0 ? work.measured[c] / work.expected[c] : 0;
  };
  std::vector<std::array<double, kRateClasses>> now(size_t(count_), Seconds{});
  for (int p = 0; p < count_; ++p)
    for (size_t c = 0; c < kRateClasses; ++c) {
      std::vector<double> peers;
      for (size_t d = 0; d < works.size(); ++d)
        if (programs_[d] == p && ratio(d, c) > 0)
          peers.push_back(ratio(d, c));
      now[size_t(p)][c] = lowerMedian(std::move(peers));
    }
  learn(now);
  std::vector<double> rates;
  for (size_t d = 0; d < works.size(); ++d) {
    const auto p = size_t(programs_[d]);
    double took = 0, should = 0;
    for (size_t c = 0; c < kRateClasses; ++c)
      if (ratio(d, c) > 0) {
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
