#include "runtime/launch/Rates.h"

#include "runtime/comm/World.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace merak::runtime {

static std::vector<int> programsOf(const LoadedPlan &plan) {
  std::vector<int> programs;
  for (const planpb::Rank &rank : plan.file.ranks())
    programs.push_back(int(rank.program()));
  return programs;
}

RateKeeper::RateKeeper(const LoadedPlan &plan, const ExpectedSeconds &expected,
                       Store *store)
    : store_(store), book_(programsOf(plan)) {
  if (expected)
    if (auto seconds = expected(plan); seconds.ok())
      expected_ = std::move(*seconds);
  rates::Seconds one;
  one.fill(1);
  expected_.resize(size_t(plan.file.ranks_size()), one);
}

Result<std::vector<std::string>> RateKeeper::add(StepResult &step) {
  std::string text = rates::toText(step.computed);
  if (store_) {
    auto all = store_->gather(fmt::format("rates/{}", step.step), text,
                              kPatienceSeconds);
    if (!all.ok())
      return all.status();
    text.clear();
    for (const std::string &part : *all)
      text += part;
  }
  auto computed = rates::parseSeconds(text);
  if (!computed.ok())
    return computed.status();
  std::vector<rates::Work> works;
  for (size_t r = 0; r < computed->size() && r < expected_.size(); ++r)
    works.push_back({(*computed)[r], expected_[r]});
  std::vector<std::string> news;
  for (const rates::PaceChange &change : book_.add(step.step, works))
    news.push_back(
        fmt::format("step {}: {}", step.step, rates::describe(change)));
  step.rates = book_.devices();
  return news;
}

Result<std::string> statusOf(const std::string &logPath) {
  std::ifstream file(logPath, std::ios::binary);
  if (!file)
    return Status::error(fmt::format("cannot read \"{}\"", logPath));
  nlohmann::json last, rated;
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("step"))
      continue; // cut off while it was written
    if (json.contains("rates"))
      rated = json;
    last = std::move(json);
  }
  if (!last.is_object())
    return Status::error(fmt::format(
        "\"{}\": no step is done, or it is no log of a run", logPath));
  std::string text =
      fmt::format("step {}, {:.2f} ms", last.value("step", int64_t(0)),
                  1e3 * last.value("seconds", 0.0));
  if (!rated.is_object() || !rated["rates"].is_array())
    return Status::error(fmt::format(
        "{}; \"{}\" has no rates: start the run with --rates", text, logPath));
  text += fmt::format("; rates of step {}:\n  rank    rate  pace",
                      rated.value("step", int64_t(0)));
  const nlohmann::json slow = rated.value("slow", nlohmann::json::object());
  for (size_t r = 0; r < rated["rates"].size(); ++r) {
    const nlohmann::json &rate = rated["rates"][r];
    const auto found = slow.find(std::to_string(r));
    text += fmt::format("\n  {:>4}  {:>6.2f}  {}", r,
                        rate.is_number() ? rate.get<double>() : 0.0,
                        found == slow.end()
                            ? "normal"
                            : fmt::format("{} since step {}",
                                          found->value("pace", std::string()),
                                          found->value("since", int64_t(0))));
  }
  return text;
}

} // namespace merak::runtime
