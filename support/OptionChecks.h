// What the tools ask of options that are numbers, each with a sentence that
// says what was expected and what was found.
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace merak {

// All of the text; nothing if it is anything else.
template <typename T> std::optional<T> numberOf(std::string_view text) {
  T number{};
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return {};
  return number;
}

// "64GiB", "1.5 GB", "4096": GB is 10^9 bytes, GiB 2^30; letters of any case.
// Nothing if it is no such, or not at least one byte or zero.
inline std::optional<int64_t> bytesOf(std::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  std::string_view unit = text.substr(std::min(digits, text.size()));
  const std::optional<double> number =
      numberOf<double>(text.substr(0, text.size() - unit.size()));
  if (!number)
    return {};
  while (unit.starts_with(' '))
    unit.remove_prefix(1);
  double factor = 1;
  if (!unit.empty()) {
    constexpr std::string_view prefixes = "kmgtp";
    const auto lower = [](char c) { return char(c | 0x20); };
    size_t prefix = prefixes.find(lower(unit.front()));
    std::string rest;
    for (char c : unit.substr(prefix == prefixes.npos ? 0 : 1))
      rest += lower(c);
    if (rest != "b" && (prefix == prefixes.npos || rest != "ib"))
      return {};
    for (; prefix != prefixes.npos; --prefix) // down to npos
      factor *= rest == "ib" ? 1024 : 1000;
  }
  const double bytes = *number * factor;
  if (!(bytes < 9e18) || (bytes > 0 && bytes < 1) ||
      (unit.empty() && !numberOf<int64_t>(text)))
    return {};
  return unit.empty() ? *numberOf<int64_t>(text) : int64_t(bytes);
}

// A whole number.
inline CLI::Validator
isFrom(int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) {
  const std::string range = most == std::numeric_limits<int64_t>::max()
                                ? fmt::format("from {}", least)
                                : fmt::format("from {} to {}", least, most);
  return {[=](std::string &text) {
            const std::optional<int64_t> number = numberOf<int64_t>(text);
            return number && *number >= least && *number <= most
                       ? std::string()
                       : fmt::format("expected a whole number {}, found '{}'",
                                     range, text);
          },
          range};
}

// A number that need not be whole.
inline CLI::Validator isNoLess(double least) {
  return {[=](std::string &text) {
            const std::optional<double> number = numberOf<double>(text);
            return number && *number >= least
                       ? std::string()
                       : fmt::format("expected a number from {:g}, found '{}'",
                                     least, text);
          },
          fmt::format("from {:g}", least)};
}

// Bytes, which the option then has as digits alone.
inline CLI::Validator inBytes() {
  return {[](std::string &text) {
            const std::optional<int64_t> bytes = bytesOf(text);
            if (!bytes)
              return fmt::format("expected bytes, as 40000000000, 40GB or "
                                 "37.5GiB, found '{}'",
                                 text);
            text = std::to_string(*bytes);
            return std::string();
          },
          "bytes"};
}

} // namespace merak
