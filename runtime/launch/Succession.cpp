#include "runtime/launch/Succession.h"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

namespace merak::runtime {

double secondsToTurn(size_t place, bool isGone, double silenceSeconds) {
  return silenceSeconds *
         ((isGone ? 0 : kCutOffSilences) + kTurnSilences * double(place));
}

Result<std::vector<AgentPlace>> parseAgents(const std::string &text) {
  std::vector<AgentPlace> places;
  Status problems;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.rfind(':');
    AgentPlace place{part.substr(0, colon)};
    if (place.host.size() > 2 && place.host.front() == '[' &&
        place.host.back() == ']') // an IPv6 address
      place.host = place.host.substr(1, place.host.size() - 2);
    const char *begin =
        part.data() + (colon == std::string::npos ? part.size() : colon + 1);
    const char *end = part.data() + part.size();
    const auto read = std::from_chars(begin, end, place.port);
    if (read.ec != std::errc() || read.ptr != end || place.host.empty() ||
        place.port < 1 || place.port > 65535)
      problems.merge(Status::error(
          fmt::format("--standby: expected HOST:PORT, found \"{}\"", part)));
    places.push_back(std::move(place));
  }
  if (!problems.ok())
    return problems;
  return places;
}

} // namespace merak::runtime
