#include "runtime/plan/Actions.h"

#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <sstream>

namespace merak {
namespace {

// Microbatches and chunks of cells have at most so many digits.
constexpr size_t kDigits = 6;

// Takes a number off the front of `text`.
std::optional<int> takeNumber(std::string_view &text) {
  size_t digits = 0;
  int value = 0;
  while (digits < text.size() && digits < kDigits &&
         std::isdigit(static_cast<unsigned char>(text[digits])))
    value = value * 10 + (text[digits++] - '0');
  if (digits == 0)
    return std::nullopt;
  text.remove_prefix(digits);
  return value;
}

// "B12.1": B, then 12, then 1.
std::optional<Step> parseCell(std::string_view cell) {
  if (cell.empty())
    return std::nullopt;
  Step step;
  bool isMarked = cell[0] == 'f' || cell[0] == 'r';
  char upper = isMarked ? static_cast<char>(cell[0] - 'a' + 'A') : cell[0];
  std::optional<Action> action = parseAction({&upper, 1});
  if (!action)
    return std::nullopt;
  step.action = *action;
  step.early = cell[0] == 'R';
  std::string_view rest = cell.substr(1);
  if (isOncePerStep(step.action))
    return rest.empty() ? std::optional(step) : std::nullopt;
  std::optional<int> microbatch = takeNumber(rest), chunk = 0;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    chunk = takeNumber(rest);
  }
  if (!microbatch || !chunk || !rest.empty())
    return std::nullopt;
  step.microbatch = *microbatch;
  step.chunk = *chunk;
  return step;
}

using Place = std::pair<int, int>; // microbatch, chunk

std::set<Place> earlyRecomputations(std::span<const Step> steps) {
  std::set<Place> early;
  for (const Step &step : steps)
    if (step.action == Action::R && step.early)
      early.insert({step.microbatch, step.chunk});
  return early;
}

std::string numberOf(const Step &step) { return str(step).substr(1); }

} // namespace

std::optional<Action> parseAction(std::string_view text) {
  for (int number = 0; number < kActions; ++number)
    if (text.size() == 1 && text[0] == letter(Action(number)))
      return Action(number);
  return std::nullopt;
}

std::string str(const ActionId &id) {
  return id.chunk ? fmt::format("{}.{}", letter(id.action), id.chunk)
                  : std::string(1, letter(id.action));
}

std::string str(const Step &step) {
  if (isOncePerStep(step.action))
    return std::string(1, letter(step.action));
  std::string text = fmt::format(
      "{}{}", step.isLate() ? 'r' : letter(step.action), step.microbatch);
  if (step.chunk)
    text += fmt::format(".{}", step.chunk);
  return text;
}

std::vector<std::string> cellsOf(std::span<const Step> steps) {
  std::set<Place> early = earlyRecomputations(steps);
  std::vector<std::string> cells;
  for (const Step &step : steps) {
    cells.push_back(str(step));
    if (step.action == Action::F && early.count({step.microbatch, step.chunk}))
      cells.back()[0] = 'f';
  }
  return cells;
}

std::string str(std::span<const Step> steps) {
  return fmt::format("{}", fmt::join(cellsOf(steps), " "));
}

std::vector<Step> parseCells(std::span<const std::string> cells,
                             std::vector<CellProblem> &problems) {
  std::vector<Step> steps;
  std::vector<int> marked; // positions of "f"
  for (int i = 0; i < int(cells.size()); ++i) {
    std::optional<Step> step = parseCell(cells[i]);
    if (!step)
      problems.push_back({i, noActionText(cells[i])});
    else if (cells[i][0] == 'f')
      marked.push_back(i);
    steps.push_back(step.value_or(Step()));
  }
  std::set<Place> early = earlyRecomputations(steps);
  for (int i : marked)
    if (!early.count({steps[i].microbatch, steps[i].chunk}))
      problems.push_back({i, fmt::format("f{0} announces an early "
                                         "recomputation R{0} that is not there",
                                         numberOf(steps[i]))});
  return steps;
}

std::vector<std::string> splitCells(const std::string &line) {
  std::istringstream words(line);
  std::vector<std::string> cells;
  for (std::string cell; words >> cell;)
    cells.push_back(cell);
  return cells;
}

std::string noActionText(std::string_view cell) {
  return fmt::format("'{}' is no action; expected one like F0, r1, B2.1 or U",
                     cell);
}

} // namespace merak
