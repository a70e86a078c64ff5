// The hosts of a run that a launcher starts: which of them are there, and the
// command that starts ranks on them.
#pragma once

#include "runtime/core/Status.h"

#include <set>
#include <string>
#include <vector>

namespace merak::runtime {

struct Host {
  std::string name;
  int64_t slots = 1; // ranks that it has place for
  bool operator==(const Host &) const = default;
};

// "a:4,b:4,c". Errors: names that are empty or twice, numbers that are none
// (all of them).
Result<std::vector<Host>> parseHosts(const std::string &text);

int64_t slotsOf(const std::vector<Host> &hosts);
// The first hosts that so many ranks have place on, "a:4,b:2".
std::string placesOf(const std::vector<Host> &hosts, int64_t ranks);
std::set<std::string> namesOf(const std::vector<Host> &hosts);
std::vector<Host> without(const std::vector<Host> &hosts,
                          const std::set<std::string> &lost);

// As a shell reads it back as one word.
std::string quoted(std::string word);
// A launcher's command, as a shell reads it, in which {ranks} and {hosts} are
// replaced, with `command` behind it.
std::vector<std::string> launch(const std::string &launcher, int64_t ranks,
                                const std::string &hosts,
                                const std::vector<std::string> &command);

} // namespace merak::runtime
