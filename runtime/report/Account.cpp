#include "runtime/report/Account.h"

#include "runtime/plan/Communication.h"
#include "runtime/plan/Copies.h"
#include "runtime/report/Costs.h"
#include "runtime/report/Simulate.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>

using namespace merak::planpb;

namespace merak::report {
namespace {

using Axes = std::vector<std::string>;

// Buffers that hold parameters, whole or in parts, as stored or gathered, and
// in any type: `gathered` those behind an all-gather.
struct ParameterCopies {
  std::vector<bool> of, gathered; // by buffer
};

// What one procedure does with one buffer.
struct Touch {
  int first = -1, last = -1; // instructions
  bool readFirst = false;
};

// Sums of one rank's program.
class Accountant {
public:
  Accountant(const LoadedPlan &plan, const CommunicationMap &map, int rank)
      : plan_(plan), map_(map), rank_(rank), program_(plan.programOf(rank)) {
    for (const Tensor &tensor : plan.file.tensors())
      tensors_[tensor.name()] = &tensor;
    touches_.resize(program_.procedures_size());
    for (int p = 0; p < program_.procedures_size(); ++p)
      touch(p);
    findBase();
    followParameters();
  }

  Account run() {
    account_.arenaBytes = double(program_.arena_bytes());
    countStored();
    countLasting();
    countTransients();
    countExchanges();
    return std::move(account_);
  }

private:
  void touch(int procedure);
  void followParameters();
  void follow(const Instruction &inst, bool &changed);
  const Tensor *tensorOf(const Buffer &buffer) const;
  bool isParameter(const Buffer &buffer) const;
  static bool isLasting(const Buffer &buffer);
  bool isOfOneAction(int buffer) const;
  bool isScattered(int buffer) const;
  bool isTransient(int buffer) const;
  void findBase();
  void countStored();
  void countLasting();
  double &sumFor(int buffer);
  void countTransients();
  // `gathered` becomes at least what is alive of parameters gathered for a use.
  TransientPeak peakOf(int procedure, double &gathered) const;
  void countExchanges();
  void count(const std::string &action, const Instruction &inst);

  const LoadedPlan &plan_;
  const CommunicationMap &map_;
  const int rank_;
  const Program &program_;
  std::map<std::string, const Tensor *> tensors_;
  std::vector<std::map<int, Touch>> touches_; // by procedure, then buffer
  ParameterCopies copies_;
  uint64_t base_ = 0; // of what procedures share
  std::map<std::tuple<std::string, std::string, std::string>, Exchange>
      exchanges_;
  Account account_;
};

double bytesOf(const Buffer &buffer) {
  if (buffer.slots() > 1)
    return double(buffer.slot_stride()) * buffer.slots();
  return double((buffer.bytes() + 63) / 64 * 64);
}

void Accountant::touch(int procedure) {
  const auto &instructions = program_.procedures(procedure).instructions();
  auto note = [&](const Operand &operand, int at, bool reads) {
    Touch &touch = touches_[procedure][operand.buffer()];
    if (touch.first < 0)
      touch = {at, at, reads};
    touch.last = at;
  };
  for (int i = 0; i < instructions.size(); ++i) {
    for (const Operand &operand : instructions[i].inputs())
      note(operand, i, true);
    for (const Operand &operand : instructions[i].outputs())
      note(operand, i, instructions[i].accumulate());
  }
}

const Tensor *Accountant::tensorOf(const Buffer &buffer) const {
  auto it = tensors_.find(buffer.tensor());
  return it == tensors_.end() ? nullptr : it->second;
}

bool Accountant::isParameter(const Buffer &buffer) const {
  const Tensor *tensor = tensorOf(buffer);
  return buffer.category() == Buffer::PARAMETERS && tensor &&
         tensor->role() == Tensor::PARAMETER;
}

// From one step to the next.
bool Accountant::isLasting(const Buffer &buffer) {
  return buffer.category() == Buffer::PARAMETERS ||
         buffer.category() == Buffer::OPTIMIZER;
}

// What reads parameters alone (a change of type, of order, a gather) makes
// copies of them; what an update writes is the parameter itself.
void Accountant::follow(const Instruction &inst, bool &changed) {
  bool gathered = inst.kind() == Instruction::COLLECTIVE &&
                  inst.collective() == Instruction::ALL_GATHER;
  for (const Operand &operand : inst.inputs()) {
    if (!copies_.of[operand.buffer()])
      return;
    gathered |= copies_.gathered[operand.buffer()];
  }
  if (inst.inputs().empty())
    return;
  for (const Operand &operand : inst.outputs()) {
    const int out = int(operand.buffer());
    if (isLasting(program_.buffers(out)) ||
        (copies_.of[out] && copies_.gathered[out] >= gathered))
      continue;
    copies_.of[out] = changed = true;
    copies_.gathered[out] = gathered;
  }
}

void Accountant::followParameters() {
  copies_.of.resize(program_.buffers_size());
  copies_.gathered.resize(program_.buffers_size());
  for (int i = 0; i < program_.buffers_size(); ++i)
    copies_.of[i] = isParameter(program_.buffers(i));
  for (bool changed = true; changed;) {
    changed = false;
    for (const Procedure &procedure : program_.procedures())
      for (const Instruction &inst : procedure.instructions())
        follow(inst, changed);
  }
}

// Whether one procedure alone writes and reads it.
bool Accountant::isOfOneAction(int index) const {
  const Buffer &buffer = program_.buffers(index);
  if (isLasting(buffer) || buffer.slots() > 1)
    return false;
  int procedures = 0;
  for (const auto &touches : touches_)
    if (auto it = touches.find(index); it != touches.end()) {
      ++procedures;
      if (it->second.readFirst)
        return false;
    }
  return procedures == 1;
}

// A rank's part of a sum that is an accumulator of its own before.
bool Accountant::isScattered(int index) const {
  for (const Procedure &procedure : program_.procedures())
    for (const Instruction &inst : procedure.instructions())
      if (inst.kind() == Instruction::COLLECTIVE &&
          inst.collective() == Instruction::REDUCE_SCATTER)
        for (const Operand &operand : inst.outputs())
          if (int(operand.buffer()) == index)
            return true;
  return false;
}

// What procedures share for their own values lies behind everything else.
bool Accountant::isTransient(int index) const {
  return isOfOneAction(index) && program_.buffers(index).offset() >= base_;
}

void Accountant::findBase() {
  for (int i = 0; i < program_.buffers_size(); ++i)
    if (const Buffer &buffer = program_.buffers(i); !isOfOneAction(i))
      base_ = std::max(base_, buffer.offset() + uint64_t(bytesOf(buffer)));
}

void Accountant::countStored() {
  std::map<Axes, StoredGroup> groups;
  for (const Buffer &buffer : program_.buffers()) {
    if (!isParameter(buffer))
      continue;
    Axes axes;
    int64_t held = 1, whole = 1;
    for (const DimLayout &dim : buffer.layout().dims())
      for (const Factor &factor : dim.factors())
        axes.insert(axes.end(), factor.axes().begin(), factor.axes().end());
    for (int64_t size : buffer.shape())
      held *= size;
    for (int64_t size : tensorOf(buffer)->shape())
      whole *= size;
    std::sort(axes.begin(), axes.end());
    StoredGroup &group = groups[axes];
    group.axes = axes;
    ++group.tensors;
    group.elements += whole;
    group.held += held;
    group.names.push_back(buffer.tensor());
    account_.parameters += whole;
  }
  for (auto &[axes, group] : groups)
    account_.stored.push_back(std::move(group));
}

double &Accountant::sumFor(int index) {
  const Buffer &buffer = program_.buffers(index);
  switch (buffer.category()) {
  case Buffer::PARAMETERS:
    if (isKeptCopy(buffer))
      return account_.otherBytes;
    return isParameter(buffer) ? account_.parameterBytes : account_.frozenBytes;
  case Buffer::GRADIENTS:
    return isScattered(index) ? account_.finalGradientBytes
                              : account_.gradientBytes;
  case Buffer::OPTIMIZER:
    return account_.optimizerBytes;
  case Buffer::ACTIVATIONS:
    return account_.activationBytes;
  case Buffer::COMMUNICATION:
    return account_.communicationBytes;
  default:
    return copies_.gathered[index] ? account_.gatheredBytes
                                   : account_.otherBytes;
  }
}

void Accountant::countLasting() {
  double lasting = 0;
  for (int i = 0; i < program_.buffers_size(); ++i)
    if (const Buffer &buffer = program_.buffers(i); buffer.offset() < base_) {
      sumFor(i) += bytesOf(buffer);
      lasting += bytesOf(buffer);
    }
  account_.transientBytes = account_.arenaBytes - lasting;
}

TransientPeak Accountant::peakOf(int procedure, double &gathered) const {
  std::map<int, std::array<double, 3>> changes; // gathered, gradients, others
  for (auto [index, touch] : touches_[procedure]) {
    if (!isTransient(index))
      continue;
    const Buffer &buffer = program_.buffers(index);
    const int kind = copies_.gathered[index]                  ? 0
                     : buffer.category() == Buffer::GRADIENTS ? 1
                                                              : 2;
    changes[touch.first][kind] += bytesOf(buffer);
    changes[touch.last + 1][kind] -= bytesOf(buffer);
  }
  TransientPeak peak;
  std::array<double, 3> now{};
  for (const auto &[at, change] : changes) {
    for (int kind = 0; kind < 3; ++kind)
      now[kind] += change[kind];
    gathered = std::max(gathered, now[0]);
    if (double sum = now[0] + now[1] + now[2]; sum > peak.bytes)
      peak = {actionName(program_.procedures(procedure)), sum, now[0], now[1],
              now[2]};
  }
  return peak;
}

void Accountant::countTransients() {
  for (int p = 0; p < program_.procedures_size(); ++p) {
    TransientPeak peak = peakOf(p, account_.gatheredForUse);
    if (peak.bytes > account_.peak.bytes)
      account_.peak = peak;
  }
}

void Accountant::count(const std::string &action, const Instruction &inst) {
  std::string kind = communicationKind(inst);
  std::string over = communicationPartners(program_, inst);
  Exchange &exchange = exchanges_[{action, kind, over}];
  exchange.action = action;
  exchange.kind = kind;
  exchange.over = over;
  ++exchange.count;
  const double bytes = messageBytes(program_, inst);
  exchange.message += bytes;
  if (inst.kind() == Instruction::SEND)
    exchange.sent += bytes;
  if (inst.kind() != Instruction::COLLECTIVE)
    return;
  const double n = double(
      map_.ranks().members(rank_, program_.groups(int(inst.group()))).size());
  const bool twice = inst.collective() == Instruction::ALL_REDUCE;
  exchange.sent += bytes * (n - 1) / n * (twice ? 2 : 1);
}

void Accountant::countExchanges() {
  for (const Call &call : program_.calls()) {
    const Procedure &procedure = program_.procedures(int(call.procedure()));
    for (const Instruction &inst : procedure.instructions())
      if (communicates(inst))
        count(actionName(procedure), inst);
  }
  for (const auto &[key, exchange] : exchanges_)
    account_.exchanges.push_back(exchange);
}

// ------------------------------------------------------------ as text

constexpr size_t kNames = 16;

std::string listed(const std::vector<std::string> &names) {
  const size_t shown = std::min(names.size(), kNames);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + long(shown), ", "));
  if (shown < names.size())
    text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

// The largest group goes without names: the others are the exceptions.
std::string describeStored(const Account &account) {
  int64_t most = 0;
  for (const StoredGroup &group : account.stored)
    most = std::max(most, group.elements);
  std::string text;
  for (const StoredGroup &group : account.stored) {
    const std::string where =
        group.axes.empty() ? "whole on every rank"
                           : fmt::format("over {}", fmt::join(group.axes, ","));
    text += fmt::format("  {}: {} parameters of {} elements, {} here", where,
                        group.tensors, group.elements, group.held);
    if (group.elements != most)
      text += ": " + listed(group.names);
    text += "\n";
  }
  return text;
}

std::string describeMemory(const Account &account) {
  std::string text;
  auto line = [&](const std::string &what, double bytes) {
    if (bytes == 0)
      return;
    text += fmt::format("  {:<34} {:>14.0f} bytes", what, bytes);
    if (account.parameters > 0)
      text += fmt::format("  {:>7.3f} a parameter",
                          bytes / double(account.parameters));
    text += "\n";
  };
  line("parameters as stored", account.parameterBytes);
  line("parameters gathered for the step", account.gatheredBytes);
  line("gradients", account.gradientBytes);
  line("gradients summed for the update", account.finalGradientBytes);
  line("optimizer state", account.optimizerBytes);
  line("constants and statistics", account.frozenBytes);
  line("activations", account.activationBytes);
  line("sent and received", account.communicationBytes);
  line("other values of the step", account.otherBytes);
  line("values within one action", account.transientBytes);
  line("in all", account.arenaBytes);
  const TransientPeak &peak = account.peak;
  if (peak.bytes > 0) {
    text += fmt::format("  within {} at most:\n", peak.action);
    line("  gathered parameters", peak.gathered);
    line("  gradients", peak.gradients);
    line("  others", peak.others);
  }
  line("gathered for a use at most", account.gatheredForUse);
  return text;
}

} // namespace

std::vector<Account> accountsOf(const LoadedPlan &plan,
                                const CommunicationMap &map) {
  const std::vector<std::string> labels = rowLabels(plan, map);
  std::vector<Account> accounts;
  for (int c = 0; c < map.classes(); ++c) {
    accounts.push_back(Accountant(plan, map, map.representative(c)).run());
    accounts.back().label = labels[c];
  }
  return accounts;
}

std::string describe(const std::vector<Account> &accounts) {
  std::string text;
  for (const Account &account : accounts) {
    text +=
        fmt::format("{}: {} parameters\n", account.label, account.parameters);
    text += describeStored(account) + describeMemory(account);
    for (const Exchange &exchange : account.exchanges)
      text += fmt::format("  {} {} over {}: {} times, {:.0f} bytes, {:.0f} "
                          "sent\n",
                          exchange.action, exchange.kind, exchange.over,
                          exchange.count, exchange.message, exchange.sent);
  }
  return text;
}

} // namespace merak::report
