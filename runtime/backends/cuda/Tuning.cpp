#include "runtime/backends/cuda/Tuning.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <unistd.h>

namespace merak::cuda {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int kVersion = 2; // of the file; 1 timed a device that rested
// The first round warms up: code is loaded, clocks rise.
constexpr int kRounds = 4;
constexpr double kHopeless = 1.3; // times the fastest: not timed again
constexpr double kClearly = 0.98; // of an earlier alternative's time

std::string userFile() {
  const char *cache = std::getenv("XDG_CACHE_HOME");
  if (cache && *cache == '/')
    return std::string(cache) + "/merak/tuning.json";
  const char *home = std::getenv("HOME");
  return home && *home == '/' ? std::string(home) + "/.cache/merak/tuning.json"
                              : std::string();
}

} // namespace

Tuning::Tuning(std::string file, bool times)
    : file_(std::move(file)), times_(times) {
  read();
}

Tuning &Tuning::ofProcess() {
  static Tuning &tuning = *[] {
    const char *named = std::getenv("MERAK_TUNING");
    if (named && std::strcmp(named, "off") == 0)
      return new Tuning({}, false);
    auto *made = new Tuning(named && *named ? named : userFile());
    made->named_ = named && *named;
    made->tells_ = true;
    return made;
  }();
  return tuning;
}

void Tuning::shareWithProcesses() {
  std::lock_guard lock(mutex_);
  times_ = false;
  if (!named_)
    known_.clear();
}

bool Tuning::active() const {
  std::lock_guard lock(mutex_);
  return times_ || !known_.empty();
}

std::string Tuning::problem() const {
  std::lock_guard lock(mutex_);
  return problem_;
}

std::optional<Tuning::Choice> Tuning::choose(const std::string &key,
                                             size_t count, const Timer &time) {
  std::lock_guard lock(mutex_);
  if (const auto found = known_.find(key);
      found != known_.end() && found->second.count == count)
    return found->second.choice;
  if (!times_)
    return std::nullopt;
  std::vector<double> least(count, 0); // 0: not timed; negative: cannot run
  double best = 0;
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < count; ++i) {
      if (least[i] < 0 || (round > 1 && least[i] > kHopeless * best))
        continue;
      const Result<double> seconds = time(i);
      if (!seconds.ok()) {
        least[i] = -1;
        continue;
      }
      if (round == 0)
        continue;
      least[i] = least[i] > 0 ? std::min(least[i], *seconds) : *seconds;
      best = best > 0 ? std::min(best, least[i]) : least[i];
    }
  std::optional<Choice> choice;
  for (size_t i = 0; i < count; ++i)
    if (least[i] > 0 && (!choice || least[i] < kClearly * choice->seconds))
      choice = {i, least[i]};
  if (!choice)
    return std::nullopt;
  known_[key] = {count, *choice};
  const bool told = !problem_.empty();
  write();
  if (tells_ && !told && !problem_.empty())
    fmt::print(stderr, "note: {}\n", problem_);
  return choice;
}

void Tuning::read() {
  if (file_.empty())
    return;
  std::ifstream file(file_);
  if (!file)
    return; // it is made when something is known
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  // Compared as values: one of another type is another one, not an exception.
  if (!json.is_object() || json.value("version", Json()) != kVersion ||
      !json.contains("choices") || !json["choices"].is_object()) {
    problem_ = fmt::format(
        "\"{}\" is no file of choices of version {}: it is written anew", file_,
        kVersion);
    return;
  }
  for (const auto &[key, entry] : json["choices"].items()) {
    const auto number = [&, &entry = entry](const char *name) {
      return entry.is_object() && entry.contains(name) &&
             entry[name].is_number() && entry[name] >= 0;
    };
    if (!number("of") || !number("choice") || !number("seconds"))
      continue;
    Known known{
        entry["of"].get<size_t>(),
        {entry["choice"].get<size_t>(), entry["seconds"].get<double>()}};
    if (known.choice.index < known.count)
      known_.emplace(key, known); // one that was timed here stays
  }
}

// Whole or not at all, and what another process has written meanwhile stays.
void Tuning::write() {
  if (file_.empty())
    return;
  read();
  Json choices = Json::object();
  for (const auto &[key, known] : known_)
    choices[key] = {{"of", known.count},
                    {"choice", known.choice.index},
                    {"seconds", known.choice.seconds}};
  const std::string part = fmt::format("{}.{}", file_, ::getpid());
  std::error_code error;
  if (const fs::path folder = fs::path(file_).parent_path(); !folder.empty())
    fs::create_directories(folder, error);
  bool written = false;
  {
    std::ofstream file(part);
    file << Json{{"version", kVersion}, {"choices", choices}}.dump(1) << "\n";
    file.flush();
    written = file.good();
  }
  if (written)
    fs::rename(part, file_, error);
  if (!written || error) {
    problem_ = fmt::format("cannot write \"{}\": the next run may choose "
                           "differently, and round differently",
                           file_);
    fs::remove(part, error);
  }
}

} // namespace merak::cuda
