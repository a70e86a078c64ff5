#include "runtime/launch/RunLog.h"

#include "runtime/core/Output.h"
#include "runtime/plan/Norms.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <unistd.h>

namespace merak::runtime {

std::string progressLine(const StepResult &step, int64_t lastStep,
                         int64_t tokens, int64_t samples) {
  const std::string last = std::to_string(lastStep);
  std::string line =
      fmt::format("step {:>{}}/{}", step.step, last.size(), last);
  for (const auto &[name, value] : step.outputs)
    if (!isNorm(name))
      line += fmt::format(" | {} {:.6f}", name, value);
  for (const auto &[name, value] : step.outputs)
    if (isNorm(name))
      line += fmt::format(" | {} {:.4f}",
                          name == kGradNorm ? "norm" : "replica norm", value);
  if (step.lr > 0)
    line += fmt::format(" | lr {:.2e}", step.lr);
  if (step.lossScale != 1)
    line += fmt::format(" | scale {:g}", step.lossScale);
  if (step.epochs > 1) // who trains on all data once need not count
    line += fmt::format(" | epoch {:.0f}", std::ceil(step.epochs));
  line += fmt::format(" | {:.2f} ms", step.seconds * 1e3);
  if (tokens > 0)
    line += fmt::format(" | {:.0f} tok/s", double(tokens) / step.seconds);
  else
    line += fmt::format(" | {:.0f} samples/s", double(samples) / step.seconds);
  if (step.skipped)
    line += step.overflowed ? " | skipped: scaled gradients are not finite"
                            : " | skipped: gradients are not finite";
  return line;
}

std::string logLine(const StepResult &step, int64_t tokens,
                    const nlohmann::ordered_json &copies) {
  nlohmann::ordered_json json;
  json["step"] = step.step;
  for (const auto &[name, value] : step.outputs)
    if (!isNorm(name))
      json[name] = value;
  json["lr"] = step.lr;
  if (step.epochs > 0)
    json["epoch"] = step.epochs;
  for (const auto &[name, value] : step.outputs)
    if (isNorm(name))
      json[name] = value;
  if (step.lossScale != 1)
    json["loss_scale"] = step.lossScale;
  if (step.skipped)
    json["skipped"] = true;
  if (step.captured)
    json["graph"] = true;
  json["seconds"] = step.seconds;
  json["tokens_per_second"] = double(tokens) / step.seconds;
  json["memory_bytes"] = step.memoryBytes;
  for (size_t r = 0; r < step.rates.size(); ++r) {
    const rates::DeviceRate &device = step.rates[r];
    json["rates"].push_back(std::round(1000 * device.rate) / 1000);
    if (device.pace != rates::Pace::Normal)
      json["slow"][std::to_string(r)] = {{"pace", nameOf(device.pace)},
                                         {"since", device.since}};
  }
  if (!step.idle.empty())
    json["idle"] = step.idle;
  if (!copies.is_null())
    json["copies"] = copies;
  return json.dump();
}

Result<size_t> keptOfLog(const std::string &text, int64_t stepsBefore) {
  size_t begin = 0;
  std::optional<size_t> cut;
  int64_t number = 1;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1, ++number) {
    const auto json =
        nlohmann::json::parse(text.begin() + int64_t(begin),
                              text.begin() + int64_t(end), nullptr, false);
    if (!json.is_object() || !json.contains("step") ||
        !json["step"].is_number_integer())
      return Status::error(
          fmt::format("line {} is not of the log of a run", number));
    if (!cut && json["step"].get<int64_t>() > stepsBefore)
      cut = begin;
  }
  return cut.value_or(begin);
}

namespace {

std::string cannotWrite(const std::string &path) {
  return fmt::format("cannot write \"{}\": {}", path, std::strerror(errno));
}

// Cuts the file behind what stays of it.
Status cutLog(const std::string &path, int64_t stepsBefore) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return {}; // there is none
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  auto kept = keptOfLog(text, stepsBefore);
  if (!kept)
    return Status(kept.status())
        .withContext(fmt::format("cannot continue \"{}\"", path));
  if (*kept < text.size() && truncate(path.c_str(), off_t(*kept)) != 0)
    return Status::error(cannotWrite(path));
  return {};
}

} // namespace

// The run adds to what its agent says.
bool LogEnd::isOf(const nlohmann::ordered_json &agents) const {
  const auto items = agents.items();
  return std::all_of(items.begin(), items.end(), [&](const auto &item) {
    return restart.contains(item.key()) && restart[item.key()] == item.value();
  });
}

double LogEnd::stepSeconds() const {
  constexpr size_t window = 5;
  if (last.size() < window)
    return 0;
  std::vector<double> sorted(last.end() - window, last.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[window / 2];
}

static std::vector<double> ratesOf(const nlohmann::ordered_json &step) {
  std::vector<double> rates;
  const auto slow = step.value("slow", nlohmann::ordered_json::object());
  for (const auto &rate : step["rates"]) {
    const bool isSlow = slow.contains(std::to_string(rates.size()));
    rates.push_back(
        isSlow && rate.is_number()
            ? std::max(1.01, std::round(rate.get<double>() * 100) / 100)
            : 1);
  }
  return rates;
}

std::optional<LogEnd> endOfLog(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  std::optional<LogEnd> end;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step") ||
        !json["step"].is_number_integer())
      continue;
    if (!end)
      end.emplace();
    end->step = json["step"].get<int64_t>();
    if (json.contains("restart")) {
      end->restart = json["restart"];
      end->asked = nullptr;
      end->seconds = 0;
      end->rates.clear();
    }
    if (json.contains("replan") && json["replan"].is_object() &&
        json["replan"].value("what", std::string()) == "restart")
      end->asked = json["replan"];
    if (json.contains("rates") && json["rates"].is_array())
      end->rates = ratesOf(json);
    if (json.contains("restart") || json.contains("replan"))
      end->last.clear();
    else if (json.contains("seconds") && json["seconds"].is_number()) {
      end->last.push_back(json["seconds"].get<double>());
      end->seconds += end->last.back();
    }
  }
  return end;
}

Result<RunLog> RunLog::open(const std::string &path,
                            const planpb::PlanFile &plan, int64_t lastStep,
                            int64_t stepsBefore) {
  RunLog log;
  log.path_ = path;
  log.lastStep_ = lastStep;
  log.tokens_ = plan.tokens_per_step();
  log.samples_ = plan.global_batch();
  if (path.empty())
    return Result<RunLog>(std::move(log));
  if (stepsBefore > 0)
    MERAK_RETURN_IF_ERROR(cutLog(path, stepsBefore));
  log.file_.reset(std::fopen(path.c_str(), stepsBefore > 0 ? "a" : "w"));
  if (!log.file_)
    return Status::error(cannotWrite(path));
  return Result<RunLog>(std::move(log));
}

Status RunLog::add(const StepResult &step,
                   const nlohmann::ordered_json &copies) {
  seconds_.push_back(step.seconds);
  skipped_ += step.skipped;
  Status written = printLine(progressLine(step, lastStep_, tokens_, samples_));
  if (file_)
    written.merge(writeLine(file_.get(), fmt::format("\"{}\"", path_),
                            logLine(step, tokens_, copies)));
  return written;
}

Status RunLog::tell(const std::string &object) {
  return file_ ? writeLine(file_.get(), fmt::format("\"{}\"", path_), object)
               : Status();
}

std::string RunLog::summary() const {
  const std::string skipped =
      skipped_ == 0 ? ""
                    : fmt::format("{} of {} steps skipped: gradients were not "
                                  "finite",
                                  skipped_, seconds_.size());
  if (seconds_.size() < 3)
    return skipped;
  std::vector<double> sorted(seconds_.begin() + 1, seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2];
  std::string line =
      fmt::format("{} steps, median {:.2f} ms", seconds_.size(), median * 1e3);
  if (tokens_ > 0)
    line += fmt::format(", {:.0f} tok/s", double(tokens_) / median);
  if (!skipped.empty())
    line += "; " + skipped;
  return line;
}

} // namespace merak::runtime
