#include "tools/merak-plan/Rates.h"

#include "support/OptionChecks.h"
#include "support/ReadFile.h"
#include "tools/merak-plan/Reshard.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak {

namespace fs = std::filesystem;
using stragglers::Description;
using stragglers::Findings;
using stragglers::ReplanOptions;
using stragglers::Situation;

void addRatesOptions(CLI::App &command, RatesRequest &request) {
  command
      .add_option("what", request.what,
                  "description of a model, devices and situations: a JSON file "
                  "or its text (docs/Stragglers.md)")
      ->required();
  command.add_option("--situation", request.situation,
                     "the situation of this name alone");
  command.add_option("--rates", request.rates,
                     "devices that are slow or gone: 0=2.57,8-15=6.87,20=gone");
  command.add_option("--from", request.from,
                     "JSON file with the plan that runs (default: the "
                     "description's, or the uniform plan)");
  command
      .add_option("--reaction", request.reaction,
                  "the most that may change (default: grouping)")
      ->check(CLI::IsMember(stragglers::reactionNames()));
  command
      .add_option("--objective", request.objective,
                  "time that is made least: without the filling of pipelines "
                  "(steady, default) or with it (filled)")
      ->check(CLI::IsMember(stragglers::objectiveNames()));
  command
      .add_option("--threads", request.threads,
                  "threads to plan with (default: all; the plan is the same)")
      ->check(isFrom(0, 1024));
  command.add_option("--seed", request.seed, "of the search (default: 1)");
  auto *table =
      command.add_flag("--compare", request.compare, "one line a situation");
  auto *json = command.add_flag("--json", request.json, "JSON instead of text");
  json->excludes(table);
  command.add_option("-o,--output", request.output,
                     "JSON file to write the report of one situation into");
  command.add_option("--strategy", request.strategy,
                     "file to write the plan of one situation into, for "
                     "merakc --strategy");
}

namespace {

Status contentsOf(const std::string &path, std::string &text) {
  if (std::string why = readFile(path, text); !why.empty())
    return Status::error(fmt::format("{}: {}", path, why));
  return {};
}

Result<Description> described(const RatesRequest &request) {
  if (!request.what.empty() && request.what.front() == '{')
    return stragglers::parseDescription(request.what, "description", "");
  std::string text;
  MERAK_RETURN_IF_ERROR(contentsOf(request.what, text));
  return stragglers::parseDescription(
      text, request.what, fs::path(request.what).parent_path().string());
}

ReplanOptions optionsOf(const RatesRequest &request) {
  ReplanOptions options;
  stragglers::parseReaction(request.reaction, options.most);
  stragglers::parseObjective(request.objective, options.search.objective);
  options.search.threads = request.threads;
  options.search.seed = request.seed;
  return options;
}

// Leaves the situation that was asked for.
Status choose(const RatesRequest &request, Description &description) {
  std::vector<std::string> names;
  for (const Situation &situation : description.situations)
    names.push_back(situation.name);
  if (!request.situation.empty())
    std::erase_if(description.situations, [&](const Situation &s) {
      return s.name != request.situation;
    });
  if (description.situations.empty())
    return Status::error(
        fmt::format("--situation={}: there is none; known are {}",
                    request.situation, fmt::join(names, "; ")));
  for (const auto &[option, file] :
       {std::pair("--output", &request.output),
        std::pair("--strategy", &request.strategy)})
    if (!file->empty() && description.situations.size() > 1)
      return Status::error(fmt::format("{} takes one situation: choose it with "
                                       "--situation=NAME",
                                       option));
  return {};
}

Status complete(const RatesRequest &request, Description &description) {
  MERAK_RETURN_IF_ERROR(choose(request, description));
  for (Situation &situation : description.situations)
    if (Status status = stragglers::setRates(situation.problem, request.rates);
        !status.ok())
      return std::move(status).withContext("--rates");
  if (request.from.empty())
    return {};
  std::string text;
  MERAK_RETURN_IF_ERROR(contentsOf(request.from, text));
  Result<stragglers::Plan> plan = stragglers::parsePlan(text, request.from);
  if (plan)
    description.plan = std::move(*plan);
  return plan.status();
}

} // namespace

Result<std::string> ratesReport(const RatesRequest &request) {
  Result<Description> description = described(request);
  if (!description)
    return description.status();
  MERAK_RETURN_IF_ERROR(complete(request, *description));
  const ReplanOptions options = optionsOf(request);
  std::vector<Findings> all;
  Status status;
  for (const Situation &situation : description->situations) {
    Result<Findings> found = stragglers::findingsOf(
        situation.name, situation.problem,
        description->plan ? *description->plan
                          : stragglers::uniformPlan(situation.problem),
        options);
    status.merge(Status(found.status()).withContext(situation.name));
    if (found)
      all.push_back(std::move(*found));
  }
  if (!status.ok())
    return status;
  const double unit = description->seconds;
  if (!request.output.empty())
    MERAK_RETURN_IF_ERROR(writeText(
        request.output, stragglers::toJson(all.front(), unit) + "\n"));
  if (!request.strategy.empty())
    MERAK_RETURN_IF_ERROR(
        writeText(request.strategy,
                  stragglers::toStrategy(*all.front().problem,
                                         all.front().replanning.best().plan) +
                      "\n"));
  if (request.compare)
    return stragglers::tableStr(all, unit);
  std::vector<std::string> texts;
  for (const Findings &findings : all)
    texts.push_back(request.json ? stragglers::toJson(findings, unit)
                                 : stragglers::describe(findings, unit));
  return request.json ? fmt::format("[{}]\n", fmt::join(texts, ",\n"))
                      : fmt::format("{}", fmt::join(texts, ""));
}

} // namespace merak
