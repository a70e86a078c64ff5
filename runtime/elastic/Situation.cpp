#include "runtime/elastic/Situation.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace merak::elastic {

// Two rates of a device that is slow in both are apart from this factor on: a
// plan for one of them is within some percent of one for the other.
constexpr double kOtherRate = 1.25;
// Looks at which a situation says the same: of devices that are severely slow,
// or no longer, which is known after four looks already; and of mild ones and
// rates that drift, which a machine with other work has for a while.
constexpr int kLasts = 2, kLastsMild = 5;

Situation situationOf(const std::vector<rates::DeviceRate> &devices) {
  Situation situation;
  for (const rates::DeviceRate &device : devices)
    situation.push_back(
        device.pace == rates::Pace::Normal
            ? 1
            : std::max(1.01, std::round(100 * device.rate) / 100));
  return situation;
}

static bool isSlow(double rate) { return rate > 1; }

static bool otherDevices(const Situation &a, const Situation &b) {
  for (size_t d = 0; d < a.size(); ++d)
    if (isSlow(a[d]) != isSlow(b[d]))
      return true;
  return false;
}

// Whether a device became severely slow, or was and is normal again.
static bool isSevere(const Situation &a, const Situation &b) {
  const double severe = rates::Thresholds().severe;
  for (size_t d = 0; d < std::min(a.size(), b.size()); ++d)
    if (isSlow(a[d]) != isSlow(b[d]) && std::max(a[d], b[d]) >= severe)
      return true;
  return false;
}

bool differ(const Situation &a, const Situation &b) {
  if (a.size() != b.size() || otherDevices(a, b))
    return true;
  for (size_t d = 0; d < a.size(); ++d)
    if (std::max(a[d], b[d]) > kOtherRate * std::min(a[d], b[d]))
      return true;
  return false;
}

std::string str(const Situation &situation) {
  std::string text;
  for (size_t d = 0; d < situation.size(); ++d)
    if (isSlow(situation[d]))
      text +=
          fmt::format("{}{}:{:g}", text.empty() ? "" : ",", d, situation[d]);
  return text.empty() ? "none" : text;
}

Result<Situation> parseSituation(const std::string &text, size_t devices) {
  Situation situation(devices, 1);
  if (text.empty() || text == "none")
    return situation;
  const Status problem = Status::error(fmt::format(
      "expected DEVICE:RATE of {} devices, found \"{}\"", devices, text));
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    size_t device = 0;
    double rate = 0;
    auto read = std::from_chars(at, end, device);
    if (read.ec != std::errc() || read.ptr == end || *read.ptr != ':' ||
        device >= devices)
      return problem;
    read = std::from_chars(read.ptr + 1, end, rate);
    if (read.ec != std::errc() || !(rate >= 1) ||
        (read.ptr != end && *read.ptr != ','))
      return problem;
    situation[device] = rate;
    at = read.ptr + 1;
  }
  return situation;
}

std::optional<Situation>
Watch::look(const std::vector<rates::DeviceRate> &devices) {
  const Situation now = situationOf(devices);
  if (!differ(now, answered_)) {
    seen_.reset();
    return std::nullopt;
  }
  lasts_ = seen_ && !differ(now, *seen_) ? lasts_ + 1 : 1;
  seen_ = now;
  return lasts_ >= (isSevere(now, answered_) ? kLasts : kLastsMild)
             ? seen_
             : std::nullopt;
}

void Watch::answer(const Situation &situation) {
  answered_ = situation;
  seen_.reset();
  lasts_ = 0;
}

} // namespace merak::elastic
