#include "runtime/checkpoint/CopyChoice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace merak::runtime {
namespace {

std::vector<int> readParts(std::istringstream &words, const char *end) {
  std::vector<int> parts;
  for (std::string word; words >> word && word != end;)
    parts.push_back(std::stoi(word));
  return parts;
}

// The order in which they were made, then by content.
using Key = std::tuple<int64_t, int64_t, std::string>;
Key keyOf(const FoundGeneration &generation) {
  return {generation.start, generation.step, generation.manifest};
}

} // namespace

std::string packFound(const FoundCopies &found) {
  std::string text;
  if (found.base)
    text += fmt::format("base {} {} {}\n", found.base->start, found.base->from,
                        found.base->step);
  for (const FoundGeneration &g : found.generations)
    text +=
        fmt::format("made {} {} {} {} {} ; {} ;\n", g.start, g.step, g.manifest,
                    g.parts, fmt::join(g.good, " "), fmt::join(g.damaged, " "));
  return text;
}

Result<FoundCopies> unpackFound(const std::string &text) {
  FoundCopies found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "base") {
      CopyBase base;
      if (!(words >> base.start >> base.from >> base.step))
        return Status::error(fmt::format("\"{}\" is no base of copies", line));
      found.base = base;
      continue;
    }
    FoundGeneration g;
    if (what != "made" ||
        !(words >> g.start >> g.step >> g.manifest >> g.parts))
      return Status::error(fmt::format("\"{}\" tells of no copies", line));
    g.good = readParts(words, ";");
    g.damaged = readParts(words, ";");
    found.generations.push_back(std::move(g));
  }
  return found;
}

CopyChoice chooseCopies(const std::vector<FoundCopies> &found) {
  std::optional<CopyBase> newest;
  for (const FoundCopies &host : found)
    if (host.base && (!newest || host.base->start > newest->start))
      newest = host.base;
  std::map<Key, std::vector<const FoundGeneration *>> byKey; // by host or null
  for (size_t host = 0; host < found.size(); ++host)
    for (const FoundGeneration &generation : found[host].generations) {
      const bool onLine = newest && (generation.start == newest->start ||
                                     (generation.start == newest->from &&
                                      generation.step == newest->step));
      if (!onLine)
        continue;
      auto &hosts = byKey[keyOf(generation)];
      hosts.resize(found.size());
      hosts[host] = &generation;
    }
  CopyChoice choice;
  for (auto at = byKey.rbegin(); at != byKey.rend() && !choice.found; ++at) {
    const auto &[start, step, manifest] = at->first;
    std::set<int> good, damaged;
    int64_t parts = 0;
    std::vector<std::vector<int>> present(found.size());
    for (size_t host = 0; host < found.size(); ++host)
      if (const FoundGeneration *generation = at->second[host]) {
        parts = generation->parts;
        present[host] = generation->good;
        good.insert(generation->good.begin(), generation->good.end());
        damaged.insert(generation->damaged.begin(), generation->damaged.end());
      }
    CopyChoice::Lacking lacking{step, manifest, {}, false};
    for (int part = 0; part < parts; ++part)
      if (!good.count(part)) {
        lacking.parts.push_back(part);
        lacking.damaged |= damaged.count(part) > 0;
      }
    if (!lacking.parts.empty()) {
      choice.lacking.push_back(std::move(lacking));
      continue;
    }
    choice.found = true;
    choice.start = start;
    choice.step = step;
    choice.manifest = manifest;
    choice.parts = parts;
    choice.present = std::move(present);
  }
  return choice;
}

} // namespace merak::runtime
