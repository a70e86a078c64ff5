// Names and actions of the schema as the rest of the code has them.
#include "runtime/plan/Plan.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>

using namespace merak::planpb;

namespace merak {
namespace {

// Numbers of the schema are one more: 0 is what an absent field holds.
constexpr int numberOf(Action action) { return int(action) + 1; }
static_assert(numberOf(Action::P) == ScheduleStep::PROLOGUE);
static_assert(numberOf(Action::F) == ScheduleStep::FORWARD);
static_assert(numberOf(Action::R) == ScheduleStep::RECOMPUTE);
static_assert(numberOf(Action::B) == ScheduleStep::BACKWARD);
static_assert(numberOf(Action::W) == ScheduleStep::WEIGHT);
static_assert(numberOf(Action::U) == ScheduleStep::UPDATE);
static_assert(numberOf(Action::S) == ScheduleStep::EXCHANGE);
static_assert(numberOf(Action::G) == ScheduleStep::GATHER);
static_assert(kActions == ScheduleStep::Action_MAX);

// ALL_REDUCE: all_reduce.
std::string lower(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return name;
}

} // namespace

std::string collectiveName(Instruction::Collective kind) {
  return Instruction::Collective_IsValid(kind)
             ? lower(Instruction::Collective_Name(kind))
             : fmt::format("collective {}", int(kind));
}

std::string reductionName(Instruction::Reduction kind) {
  return Instruction::Reduction_IsValid(kind)
             ? lower(Instruction::Reduction_Name(kind))
             : fmt::format("reduction {}", int(kind));
}

std::string opName(const Instruction &instruction) {
  return instruction.kind() == Instruction::COLLECTIVE
             ? collectiveName(instruction.collective())
             : instruction.op();
}

ScheduleStep::Action toProto(Action action) {
  return ScheduleStep::Action(numberOf(action));
}

ScheduleStep toProto(const Step &step) {
  ScheduleStep proto;
  proto.set_action(toProto(step.action));
  proto.set_microbatch(step.microbatch);
  proto.set_chunk(step.chunk);
  proto.set_early(step.early);
  return proto;
}

std::optional<Action> actionOf(ScheduleStep::Action action) {
  if (action == ScheduleStep::ACTION_INVALID ||
      !ScheduleStep::Action_IsValid(action))
    return std::nullopt;
  return Action(int(action) - 1);
}

std::string actionName(const Procedure &procedure) {
  std::optional<Action> action = actionOf(procedure.action());
  return std::string(1, action ? letter(*action) : '?');
}

std::vector<Step> scheduleOf(const Program &program) {
  std::vector<Step> steps;
  for (const ScheduleStep &proto : program.schedule())
    if (std::optional<Action> action = actionOf(proto.action()))
      steps.push_back({*action, int(proto.microbatch()), int(proto.chunk()),
                       proto.early()});
  return steps;
}

} // namespace merak
