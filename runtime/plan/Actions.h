// The actions of a stage and the ordered lists of them that schedules are: one
// type for planning, the IR and the plan, with one form as text. What the
// actions mean stands in docs/Schedules.md.
#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace merak {

// P prologue, F forward, R recompute, B gradient of inputs (of weights too
// where the schedule has no W), W gradient of weights, U update, S exchange of
// gradients that several stages hold parts of; it runs right before U. G is the
// first: it gathers what of stored parameters lives for the whole step.
enum class Action { P, F, R, B, W, U, S, G };
inline constexpr int kActions = 8;

constexpr char letter(Action action) { return "PFRBWUSG"[int(action)]; }
std::optional<Action> parseAction(std::string_view letter);
// U, S and G run once a step, the others once for every microbatch.
constexpr bool isOncePerStep(Action action) {
  return action == Action::U || action == Action::S || action == Action::G;
}

// An action of one chunk of a stage: a chunk is a part of the model, for P the
// pass over the microbatches.
struct ActionId {
  Action action = Action::F;
  int chunk = 0;
  auto operator<=>(const ActionId &) const = default;
};
// "F", with a chunk "F.1".
std::string str(const ActionId &id);

// One place of a stage's list.
struct Step {
  Action action = Action::F;
  int microbatch = 0; // U, S, G: 0
  int chunk = 0;      // part of the model on this stage; 0 but for interleaved
  // R only: may start before the gradient of its microbatch has arrived.
  bool early = false;

  ActionId id() const { return {action, chunk}; }
  // An R that waits for the gradient.
  bool isLate() const { return action == Action::R && !early; }
  bool operator==(const Step &) const = default;
};

// "F0", "B2.1" with a chunk, "U"; an R that is not early is "r0".
std::string str(const Step &step);
// A list cell by cell. A forward whose recomputation is early is "f0": the same
// action, marked for readers.
std::vector<std::string> cellsOf(std::span<const Step> steps);
// The cells with a space between them.
std::string str(std::span<const Step> steps);

// What is wrong with the cell at `position` of a list.
struct CellProblem {
  int position = 0;
  std::string text;
};
// The inverse of cellsOf: one step a cell, and all problems at once. With
// problems the steps at their positions mean nothing.
std::vector<Step> parseCells(std::span<const std::string> cells,
                             std::vector<CellProblem> &problems);
// The words of a line.
std::vector<std::string> splitCells(const std::string &line);
// For a cell that is none.
std::string noActionText(std::string_view cell);

} // namespace merak
