// How fast the devices of a run are, as far as plans differ by it, and when
// that has changed. Nothing of sessions and plans here.
//
// Noise and thresholds: who is slow is decided with hysteresis (RateBook.h),
// and a rate that only drifts counts when it is another one by a quarter, for
// as long as it takes to know a slow device. A situation must say the same
// twice, and five times where no device is severely slow, before anybody plans
// for it, so that devices that slow down together are planned for together.
#pragma once

#include "runtime/rates/RateBook.h"

#include <optional>
#include <string>
#include <vector>

namespace merak::elastic {

// By device: 1 for normal ones, else how many times as long it takes.
using Situation = std::vector<double>;

Situation situationOf(const std::vector<rates::DeviceRate> &devices);
// Whether a plan for one of them is not one for the other: other devices are
// slow, or one of them by another rate.
bool differ(const Situation &a, const Situation &b);
// "2:3.01,5:1.4"; "none" if all are normal.
std::string str(const Situation &situation);
// Of such a text, for so many devices; errors: not one.
Result<Situation> parseSituation(const std::string &text, size_t devices);

class Watch {
public:
  // `planned`: what the plan that runs is for.
  explicit Watch(Situation planned) : answered_(std::move(planned)) {}

  // Looks at measured rates; a situation that is worth a question: it is new
  // and has lasted. Says it again at each look until it is answered.
  std::optional<Situation> look(const std::vector<rates::DeviceRate> &devices);
  // There is a plan for it, or no better one than that which runs.
  void answer(const Situation &situation);

private:
  Situation answered_;
  std::optional<Situation> seen_;
  int lasts_ = 0; // looks
};

} // namespace merak::elastic
