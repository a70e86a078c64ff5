#include "runtime/launch/RunStatus.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace merak::runtime {
namespace {

using Json = nlohmann::json;

// The newest of each kind.
struct LogLines {
  Json last, rated, replanned, restarted, copies;
};

Result<LogLines> readLines(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Status::error(fmt::format("cannot read \"{}\"", path));
  LogLines lines;
  for (std::string line; std::getline(file, line);) {
    auto json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step"))
      continue; // cut off while it was written
    if (json.contains("replan")) {
      if (json["replan"].value("what", std::string()) == "switch")
        lines.replanned = json;
      continue;
    }
    if (json.contains("restart")) {
      lines.restarted = json;
      continue;
    }
    if (json.contains("rates"))
      lines.rated = json;
    if (json.contains("copies")) // later ones say what has changed
      lines.copies.update(json["copies"]);
    lines.last = std::move(json);
  }
  if (!lines.last.is_object())
    return Status::error(
        fmt::format("\"{}\": no step is done, or it is no log of a run", path));
  return lines;
}

std::string ratesText(const Json &rated) {
  std::string text = fmt::format("; rates of step {}:\n  rank    rate  pace",
                                 rated.value("step", int64_t(0)));
  const Json idle = rated.value("idle", Json::array());
  const Json slow = rated.value("slow", Json::object());
  for (size_t r = 0; r < rated["rates"].size(); ++r) {
    const Json &rate = rated["rates"][r];
    const auto found = slow.find(std::to_string(r));
    const bool isIdle = std::find(idle.begin(), idle.end(), r) != idle.end();
    text += fmt::format("\n  {:>4}  {:>6.2f}  ", r,
                        rate.is_number() ? rate.get<double>() : 0.0);
    text += isIdle ? "without a rank"
            : found == slow.end()
                ? "normal"
                : fmt::format("{} since step {}",
                              found->value("pace", std::string()),
                              found->value("since", int64_t(0)));
  }
  return text;
}

std::string restartText(const Json &restarted) {
  const Json &restart = restarted["restart"];
  const int64_t times = restart.value("restarts", int64_t(0));
  const std::string agent = restart.value("agent", std::string());
  std::string out;
  for (const Json &device : restart.value("left_out", Json::array()))
    out += fmt::format("\nleft out: device {} on host {}, which took {:.2f} "
                       "times as long as it should",
                       device.value("device", 0),
                       device.value("host", std::string()),
                       device.value("rate", 0.0));
  return fmt::format("\nstarted again{} after step {} with "
                     "\"{}\" on {} ranks{}: {}{}",
                     times == 0 ? "" // not since it was lost
                                : fmt::format(" {} time{}, last", times,
                                              times == 1 ? "" : "s"),
                     restarted.value("step", int64_t(0)),
                     restart.value("plan", std::string()),
                     restart.value("ranks", int64_t(0)),
                     agent.empty() ? "" : " by the agent on host " + agent,
                     restart.value("why", std::string()), out);
}

// As RunCopies tells it.
std::string copiesText(const Json &copies) {
  const auto step = copies.value("step", int64_t(0));
  const auto skipped = copies.value("skipped", int64_t(0));
  std::string text = step > 0
                         ? fmt::format("\ncopies of step {} in memory", step)
                         : "\nno copies in memory yet";
  if (skipped > 0)
    text += fmt::format(", {} left out", skipped);
  const Json hosts = copies.value("hosts", Json::array());
  const Json bytes = copies.value("bytes", Json::array());
  for (size_t h = 0; h < hosts.size() && h < bytes.size(); ++h)
    if (hosts[h].is_string() && bytes[h].is_number())
      text += fmt::format("\n  {}  {:.3g} MB", hosts[h].get<std::string>(),
                          1e-6 * bytes[h].get<double>());
  if (copies.contains("folder"))
    text += fmt::format("\n  in \"{}\" of each host, with room for two",
                        copies.value("folder", std::string()));
  return text;
}

} // namespace

Result<std::string> statusOf(const std::string &logPath) {
  const auto lines = readLines(logPath);
  if (!lines)
    return lines.status();
  std::string text =
      fmt::format("step {}, {:.2f} ms", lines->last.value("step", int64_t(0)),
                  1e3 * lines->last.value("seconds", 0.0));
  const bool isRated =
      lines->rated.is_object() && lines->rated["rates"].is_array();
  if (isRated)
    text += ratesText(lines->rated);
  else if (!lines->copies.is_object() && !lines->restarted.is_object())
    return Status::error(fmt::format(
        "{}; \"{}\" has no rates: start the run with --rates", text, logPath));
  if (lines->replanned.is_object())
    text += fmt::format("\nplan \"{}\" since step {}",
                        lines->replanned["replan"].value("to", std::string()),
                        lines->replanned.value("step", int64_t(0)) + 1);
  if (lines->restarted.is_object())
    text += restartText(lines->restarted);
  if (lines->copies.is_object())
    text += copiesText(lines->copies);
  return text;
}

} // namespace merak::runtime
