// The order of the forward pass, in which parameters are read later and later,
// is that of gradients that become ready earlier and earlier: left and needed
// both grow. A gradient may be summed in the step if the sums of all that
// become ready after it, and its own, end in what is left of the backward pass
// and the wait that is granted behind it. Taking as many as that allows, from
// the first layer on, leaves the least to the forward pass at every place of
// it; only whole sums keep it from being exact.
#include "passes/Planning/DelayedGradients.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace merak::planning {

namespace {

// Granted waits that are tried, of what there is with nothing delayed.
constexpr int kGrants = 32;
// Of that, what is too little to delay more for.
constexpr double kWorthADelay = 0.01;

class Chooser {
public:
  explicit Chooser(const std::vector<ReadyGradient> &gradients)
      : all_(gradients), byReady_(sorted([&](int a, int b) {
          return all_[size_t(a)].left > all_[size_t(b)].left;
        })),
        byNeed_(sorted([&](int a, int b) {
          return all_[size_t(a)].needed < all_[size_t(b)].needed;
        })) {}

  GradientWaits waits(const std::vector<char> &delayed) const {
    GradientWaits waits;
    double end = -std::numeric_limits<double>::infinity();
    for (int i : byReady_) // time 0 is the end of the backward pass
      if (!delayed[size_t(i)])
        end = std::max(end, -all_[size_t(i)].left) + all_[size_t(i)].seconds;
    waits.behind = std::max(0.0, end);
    double carried = 0;
    for (int i : byNeed_)
      if (delayed[size_t(i)]) {
        carried += all_[size_t(i)].seconds;
        waits.inside = std::max(waits.inside, carried - all_[size_t(i)].needed);
      }
    return waits;
  }

  std::vector<char> choose() const {
    std::vector<char> best(all_.size(), 0);
    const double none = waits(best).both();
    double least = none;
    for (int k = 0; none > 0 && k < kGrants; ++k) {
      std::vector<char> tried = granted(none * k / kGrants);
      const double found = waits(tried).both();
      // Later ones delay less.
      if (found <= least + (k > 0 ? kWorthADelay * none : 0)) {
        best = std::move(tried);
        least = std::min(least, found);
      }
    }
    if (waits(best).both() >= (1 - kWorthADelay) * none)
      return std::vector<char>(all_.size(), 0);
    keepIdle(best);
    return best;
  }

private:
  template <typename Less> std::vector<int> sorted(Less less) const {
    std::vector<int> order(all_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), less);
    return order;
  }

  // What does not end within `wait` behind the backward pass is delayed.
  std::vector<char> granted(double wait) const {
    std::vector<char> delayed(all_.size(), 0);
    double sum = 0; // of what becomes ready later and must not wait
    for (size_t k = byReady_.size(); k-- > 0;) {
      const ReadyGradient &own = all_[size_t(byReady_[k])];
      if (own.mayWait && sum + own.seconds > own.left + wait)
        delayed[size_t(byReady_[k])] = 1;
      else
        sum += own.seconds;
    }
    return delayed;
  }

  // Links that stay idle in the backward pass take back what they can, from
  // what is needed first.
  void keepIdle(std::vector<char> &delayed) const {
    double least = waits(delayed).both();
    for (int i : byNeed_) {
      if (!delayed[size_t(i)])
        continue;
      delayed[size_t(i)] = 0;
      const double found = waits(delayed).both();
      if (found > least)
        delayed[size_t(i)] = 1;
      else
        least = found;
    }
  }

  const std::vector<ReadyGradient> &all_;
  std::vector<int> byReady_, byNeed_;
};

} // namespace

GradientWaits waitsOf(const std::vector<ReadyGradient> &gradients,
                      const std::vector<char> &delayed) {
  return Chooser(gradients).waits(delayed);
}

std::vector<char> chooseDelayed(const std::vector<ReadyGradient> &gradients) {
  return Chooser(gradients).choose();
}

} // namespace merak::planning
