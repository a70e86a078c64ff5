#include "runtime/report/Overlap.h"

#include <algorithm>

namespace merak::report {

void Activity::add(double begin, double end, double weight) {
  if (end <= begin || weight <= 0)
    return;
  changes_.emplace_back(begin, weight);
  changes_.emplace_back(end, -weight);
}

void Activity::close() {
  std::sort(changes_.begin(), changes_.end());
  points_.clear();
  double weight = 0, seconds = 0, last = 0, slope = 0;
  for (const auto &[time, change] : changes_) {
    seconds += (time - last) * slope;
    weight += change;
    last = time;
    slope = std::clamp(weight, 0.0, 1.0);
    points_.push_back({time, seconds, slope});
  }
}

double Activity::until(double time) const {
  auto after = std::upper_bound(
      points_.begin(), points_.end(), time,
      [](double t, const Point &point) { return t < point.time; });
  if (after == points_.begin())
    return 0;
  const Point &point = *std::prev(after);
  return point.seconds + (time - point.time) * point.slope;
}

double Activity::between(double begin, double end) const {
  return std::max(0.0, until(end) - until(begin));
}

Overlap::Overlap(int classes, double compute, double communication)
    : classes_(classes), compute_(compute), communication_(communication) {}

double Overlap::factor(const ExecutionSite &site) const {
  auto it = factors_.find(key(site));
  return it == factors_.end() ? 1 : it->second;
}

void Overlap::add(const ExecutionSpan &span, bool communicates, double share) {
  if (span.end > span.begin)
    spans_.push_back({span, communicates, share});
}

void Overlap::next(const Partners &partners) {
  std::vector<Activity> computing(classes_), communicating(classes_);
  for (const Span &one : spans_)
    (one.communicates ? communicating : computing)[one.span.rankClass].add(
        one.span.begin, one.span.end,
        one.communicates ? std::min(1.0, one.share) : 1);
  for (int c = 0; c < classes_; ++c) {
    computing[c].close();
    communicating[c].close();
  }
  factors_.clear();
  for (const Span &one : spans_) {
    const ExecutionSpan &span = one.span;
    const ExecutionSite site{span.rankClass, span.call, span.instruction};
    double disturbed = 0;
    if (one.communicates)
      for (int c : partners(site))
        disturbed =
            std::max(disturbed, computing[c].between(span.begin, span.end));
    else
      disturbed = communicating[span.rankClass].between(span.begin, span.end);
    const double slower = one.communicates ? communication_ : compute_;
    const double share = std::min(1.0, disturbed / (span.end - span.begin));
    if (share > 0 && slower > 1)
      factors_[key(site)] = 1 / (1 - share * (1 - 1 / slower));
  }
  spans_.clear();
}

} // namespace merak::report
