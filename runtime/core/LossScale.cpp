#include "runtime/core/LossScale.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

namespace merak::runtime {

namespace {

// Scales are squared in f32, and their reciprocals are factors of f32.
constexpr double kMost = 0x1p60, kLeast = 0x1p-60;

bool readScale(const std::string &text, double &out) {
  const char *end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  return read.ec == std::errc() && read.ptr == end && out >= kLeast &&
         out <= kMost;
}

bool readCount(const std::string &text, int64_t &out) {
  const char *end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  return read.ec == std::errc() && read.ptr == end && out > 0;
}

Status unreadable(const std::string &found) {
  return Status::error(fmt::format(
      "--loss-scale: expected a factor above 0, auto, or auto:start=..,"
      "every=..,least=..,most=.., found \"{}\"",
      found));
}

} // namespace

Result<LossScaleOptions> LossScaleOptions::parse(const std::string &text) {
  LossScaleOptions options;
  if (readScale(text, options.start)) {
    options.moves = false;
    return options;
  }
  if (text == "auto")
    return options;
  constexpr std::string_view kAuto = "auto:";
  if (!text.starts_with(kAuto) || text.size() == kAuto.size())
    return unreadable(text);
  std::istringstream fields(text.substr(kAuto.size()));
  for (std::string field; std::getline(fields, field, ',');) {
    const size_t equal = field.find('=');
    const std::string key = field.substr(0, equal);
    const std::string value =
        equal == std::string::npos ? "" : field.substr(equal + 1);
    const bool good = key == "start"   ? readScale(value, options.start)
                      : key == "every" ? readCount(value, options.every)
                      : key == "least" ? readScale(value, options.least)
                      : key == "most"  ? readScale(value, options.most)
                                       : false;
    if (!good)
      return unreadable(field);
  }
  if (options.least > options.start || options.start > options.most)
    return Status::error(fmt::format(
        "--loss-scale: expected least <= start <= most, found {}, {}, {}",
        options.least, options.start, options.most));
  return options;
}

void LossScale::learn(bool finite) {
  if (!options_.moves)
    return;
  if (!finite) {
    value_ = std::max(options_.least, value_ / 2);
    steps_ = 0;
    return;
  }
  if (++steps_ < options_.every)
    return;
  value_ = std::min(options_.most, value_ * 2);
  steps_ = 0;
}

void LossScale::resume(double value, int64_t steps) {
  if (!options_.moves)
    return;
  value_ = std::clamp(value, options_.least, options_.most);
  steps_ = steps;
}

} // namespace merak::runtime
