#include "runtime/report/MemoryUse.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

using namespace merak::planpb;

namespace merak::report {

double MemoryUse::Point::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

MemoryTracker::MemoryTracker(const LoadedPlan &plan,
                             const CommunicationMap &map)
    : plan_(plan), map_(map) {
  for (int c = 0; c < map.classes(); ++c) {
    std::vector<int> &first = firstSlot_.emplace_back();
    int next = 0;
    for (const Buffer &buffer :
         plan.programOf(map.representative(c)).buffers()) {
      first.push_back(next);
      next += std::max<int>(1, static_cast<int>(buffer.slots()));
    }
    accesses_.emplace_back(next);
  }
}

void MemoryTracker::add(const ExecutionSpan &span) {
  const Program &program = plan_.programOf(map_.representative(span.rankClass));
  const Call &call = program.calls(span.call);
  const Instruction &inst =
      program.procedures(call.procedure()).instructions(span.instruction);
  auto touch = [&](const Operand &operand, bool defines) {
    const Buffer &buffer = program.buffers(operand.buffer());
    accesses_[span.rankClass][firstSlot_[span.rankClass][operand.buffer()] +
                              slotOf(buffer, call)]
        .push_back(
            {span.begin, span.end, span.call, span.instruction, defines});
  };
  for (const Operand &operand : inst.inputs())
    touch(operand, false);
  for (const Operand &operand : inst.outputs())
    touch(operand, !inst.accumulate());
}

std::vector<MemoryTracker::Life> MemoryTracker::livesOf(int rankClass,
                                                        double seconds) {
  const Program &program = plan_.programOf(map_.representative(rankClass));
  std::vector<Life> lives;
  for (int buffer = 0; buffer < program.buffers_size(); ++buffer) {
    const int first = firstSlot_[rankClass][buffer];
    const int slots =
        std::max<int>(1, static_cast<int>(program.buffers(buffer).slots()));
    for (int slot = 0; slot < slots; ++slot) {
      std::vector<Access> &list = accesses_[rankClass][first + slot];
      // Parameters, constants and moments outlast every step, and updates in
      // place may name them as a result only.
      if (program.buffers(buffer).category() == Buffer::PARAMETERS ||
          program.buffers(buffer).category() == Buffer::OPTIMIZER) {
        lives.push_back({0, seconds, buffer});
        continue;
      }
      if (list.empty())
        continue;
      // What one instruction reads and writes, it reads first.
      std::sort(list.begin(), list.end(), [](const Access &a, const Access &b) {
        return std::tuple(a.begin, a.call, a.instruction, a.defines) <
               std::tuple(b.begin, b.call, b.instruction, b.defines);
      });
      const size_t before = lives.size();
      const bool carried = !list.front().defines;
      int lastCall = -1;
      for (const Access &access : list) {
        const bool fresh = access.defines && access.call != lastCall;
        if (lives.size() == before || fresh)
          lives.push_back({lives.size() == before && carried ? 0 : access.begin,
                           access.end, buffer});
        lives.back().end = std::max(lives.back().end, access.end);
        lastCall = access.call;
      }
      if (carried)
        lives.back().end = seconds;
    }
  }
  return lives;
}

// By buffer; empty where nothing is known.
std::vector<std::string> MemoryTracker::originsOf(const Program &program) {
  std::vector<std::string> origins(program.buffers_size());
  for (int i = 0; i < program.buffers_size(); ++i)
    origins[i] = program.buffers(i).tensor();
  for (const Procedure &procedure : program.procedures())
    for (const Instruction &inst : procedure.instructions())
      for (const Operand &output : inst.outputs())
        if (std::string &origin = origins[output.buffer()]; origin.empty())
          origin = inst.name();
  return origins;
}

std::vector<MemoryUse> MemoryTracker::finish(double seconds) {
  std::vector<MemoryUse> result;
  for (int c = 0; c < map_.classes(); ++c) {
    const Program &program = plan_.programOf(map_.representative(c));
    MemoryUse &use = result.emplace_back();
    use.arenaBytes = static_cast<double>(program.arena_bytes());
    const std::vector<Life> lives = livesOf(c, seconds);
    std::map<double, CategoryBytes> changes;
    changes[0] = {};
    for (const Life &life : lives) {
      const Buffer &buffer = program.buffers(life.buffer);
      if (life.end <= life.begin)
        continue;
      const double bytes = static_cast<double>(buffer.bytes());
      changes[life.begin][buffer.category()] += bytes;
      changes[life.end][buffer.category()] -= bytes;
    }
    CategoryBytes now{};
    for (const auto &[time, change] : changes) {
      for (int i = 0; i < kCategories; ++i)
        now[i] += change[i];
      use.points.push_back({time, now});
      if (use.points.size() == 1 ||
          use.points.back().total() > use.peak.total())
        use.peak = use.points.back();
    }
    const std::vector<std::string> origins = originsOf(program);
    std::map<int, int> copies; // by buffer
    for (const Life &life : lives)
      if (life.begin <= use.peak.time && use.peak.time < life.end)
        ++copies[life.buffer];
    for (auto [index, count] : copies) {
      const Buffer &buffer = program.buffers(index);
      use.atPeak.push_back({buffer.name(), origins[index], buffer.category(),
                            double(buffer.bytes()) * count, count});
    }
    std::stable_sort(
        use.atPeak.begin(), use.atPeak.end(),
        [](const auto &a, const auto &b) { return a.bytes > b.bytes; });
  }
  return result;
}

} // namespace merak::report
