#include "runtime/launch/LinkOption.h"

#include "support/ReadFile.h"

#include <charconv>
#include <fmt/format.h>
#include <map>

namespace merak::runtime {
namespace {

using Units = std::map<std::string, double>;
const Units kTimes{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
const Units kRates{{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};

// A number with one of the units.
bool parseQuantity(std::string_view text, const Units &units, double &value) {
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc())
    return false;
  auto unit = units.find(std::string(end, text.data() + text.size()));
  if (unit == units.end())
    return false;
  value *= unit->second;
  return value >= 0 && value < 1e300;
}

bool parseSpeed(std::string_view text, LinkSpeed &speed) {
  if (text.ends_with("/s"))
    text.remove_suffix(2);
  const size_t slash = text.find('/');
  return slash != std::string_view::npos &&
         parseQuantity(text.substr(0, slash), kTimes, speed.latency) &&
         parseQuantity(text.substr(slash + 1), kRates, speed.bandwidth) &&
         speed.bandwidth > 0;
}

bool parseLevels(std::string_view text, Links &links) {
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos) {
    links.perNode = 1;
    if (!parseSpeed(text, links.inter))
      return false;
    links.intra = links.inter;
    return true;
  }
  const size_t at = text.find('@', comma);
  if (at == std::string_view::npos)
    return false;
  const std::string_view count = text.substr(at + 1);
  auto [end, error] =
      std::from_chars(count.data(), count.data() + count.size(), links.perNode);
  return error == std::errc() && end == count.data() + count.size() &&
         links.perNode > 0 && parseSpeed(text.substr(0, comma), links.intra) &&
         parseSpeed(text.substr(comma + 1, at - comma - 1), links.inter);
}

} // namespace

Result<Links> parseLinks(const std::string &text) {
  Links links;
  if (!parseLevels(text, links))
    return Status::error(fmt::format(
        "--links: expected LATENCY/BANDWIDTH as in 5us/200MB/s, "
        "INTRA,INTER@RANKS as in 5us/2GB/s,50us/200MB/s@4, a cluster file, or "
        "plan, found \"{}\"",
        text));
  return links;
}

Result<Links> linksOf(const std::string &option, const std::string &planCluster,
                      const ClusterLinks &clusterLinks) {
  const bool named = option == "plan" || option.ends_with(".json");
  if (named && !clusterLinks)
    return Status::error("--links: this build reads no cluster files");
  if (option == "plan") {
    if (planCluster.empty())
      return Status::error("--links=plan: the plan names no cluster");
    return clusterLinks(planCluster, "the plan's cluster");
  }
  if (!named)
    return parseLinks(option);
  std::string text;
  if (const std::string why = readFile(option, text); !why.empty())
    return Status::error(
        fmt::format("cannot read the cluster file \"{}\": {}", option, why));
  return clusterLinks(text, option);
}

} // namespace merak::runtime
