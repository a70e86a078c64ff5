#include "runtime/launch/Hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace merak::runtime {

Result<std::vector<Host>> parseHosts(const std::string &text) {
  std::vector<Host> hosts;
  Status problems;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.rfind(':');
    Host host{part.substr(0, colon)};
    if (colon != std::string::npos) {
      const char *begin = part.data() + colon + 1,
                 *end = part.data() + part.size();
      const auto read = std::from_chars(begin, end, host.slots);
      if (read.ec != std::errc() || read.ptr != end || host.slots < 1)
        problems.merge(Status::error(
            fmt::format("--hosts: expected a number of ranks behind \"{}:\", "
                        "found \"{}\"",
                        host.name, part.substr(colon + 1))));
    }
    if (host.name.empty())
      problems.merge(Status::error(
          fmt::format("--hosts: expected HOST:RANKS, found \"{}\"", part)));
    else if (std::any_of(hosts.begin(), hosts.end(), [&](const Host &other) {
               return other.name == host.name;
             }))
      problems.merge(Status::error(
          fmt::format("--hosts: \"{}\" is there twice", host.name)));
    hosts.push_back(std::move(host));
  }
  if (!problems.ok())
    return problems;
  return hosts;
}

int64_t slotsOf(const std::vector<Host> &hosts) {
  int64_t slots = 0;
  for (const Host &host : hosts)
    slots += host.slots;
  return slots;
}

std::string placesOf(const std::vector<Host> &hosts, int64_t ranks) {
  std::string text;
  for (const Host &host : hosts) {
    const int64_t here = std::min(host.slots, ranks);
    if (here > 0)
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",", host.name, here);
    ranks -= here;
  }
  return text;
}

std::set<std::string> namesOf(const std::vector<Host> &hosts) {
  std::set<std::string> names;
  for (const Host &host : hosts)
    names.insert(host.name);
  return names;
}

std::vector<Host> without(const std::vector<Host> &hosts,
                          const std::set<std::string> &lost) {
  std::vector<Host> rest;
  std::copy_if(hosts.begin(), hosts.end(), std::back_inserter(rest),
               [&](const Host &host) { return !lost.count(host.name); });
  return rest;
}

static void replace(std::string &word, const std::string &what,
                    const std::string &with) {
  for (size_t at = 0; (at = word.find(what, at)) != std::string::npos;
       at += with.size())
    word.replace(at, what.size(), with);
}

std::string quoted(std::string word) {
  replace(word, "'", "'\\''");
  return "'" + word + "'";
}

std::vector<std::string> launch(const std::string &launcher, int64_t ranks,
                                const std::string &hosts,
                                const std::vector<std::string> &command) {
  std::string line = "exec " + launcher;
  replace(line, "{ranks}", std::to_string(ranks));
  replace(line, "{hosts}", hosts);
  for (const std::string &word : command)
    line += " " + quoted(word);
  return {"/bin/sh", "-c", line};
}

} // namespace merak::runtime
