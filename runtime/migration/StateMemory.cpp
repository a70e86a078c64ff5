#include "runtime/migration/StateMemory.h"

#include "runtime/checkpoint/HeldTensors.h"
#include "runtime/core/HostBackend.h"
#include "runtime/plan/Joined.h"

#include <algorithm>
#include <set>

namespace merak::migration {

namespace {

std::set<int> joinedOperands(const planpb::Program &program) {
  std::set<int> result;
  for (const planpb::Procedure &procedure : program.procedures())
    for (const planpb::Instruction &instruction : procedure.instructions())
      if (isJoined(instruction))
        for (const auto *operands :
             {&instruction.inputs(), &instruction.outputs()})
          for (const planpb::Operand &operand : *operands)
            result.insert(int(operand.buffer()));
  return result;
}

// Those whose bytes, up to the next multiple of 64, belong to no other buffer.
std::set<int> undivided(const planpb::Program &program) {
  struct Range {
    uint64_t begin, end;
    int buffer;
  };
  std::vector<Range> ranges;
  for (int b = 0; b < program.buffers_size(); ++b) {
    const planpb::Buffer &buffer = program.buffers(b);
    const uint64_t slots = std::max<uint32_t>(buffer.slots(), 1);
    const uint64_t bytes = (slots - 1) * buffer.slot_stride() + buffer.bytes();
    ranges.push_back(
        {buffer.offset(), buffer.offset() + (bytes + 63) / 64 * 64, b});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range &a, const Range &b) { return a.begin < b.begin; });
  std::set<int> result;
  uint64_t before = 0; // where the buffers so far end
  for (size_t i = 0; i < ranges.size(); ++i) {
    const bool shared =
        before > ranges[i].begin ||
        (i + 1 < ranges.size() && ranges[i + 1].begin < ranges[i].end);
    if (!shared && ranges[i].end > ranges[i].begin)
      result.insert(ranges[i].buffer);
    before = std::max(before, ranges[i].end);
  }
  return result;
}

} // namespace

std::vector<int> buffersApart(const LoadedPlan &plan, int rank) {
  const planpb::Program &program = plan.programOf(rank);
  const std::set<int> joined = joinedOperands(program);
  const std::set<int> alone = undivided(program);
  std::vector<int> result;
  for (const runtime::HeldTensor &tensor : runtime::heldTensors(plan))
    for (const auto *held : {&tensor.values, &tensor.rounded})
      for (const runtime::HeldBuffer &where : *held)
        if (where.rank == rank && program.buffers(where.buffer).slots() <= 1 &&
            !joined.count(where.buffer) && alone.count(where.buffer))
          result.push_back(where.buffer);
  return result;
}

Result<runtime::BufferMemory> stateMemory(const LoadedPlan &plan, int rank,
                                          const runtime::BufferMemory &kept) {
  runtime::BufferMemory result;
  for (int buffer : buffersApart(plan, rank)) {
    const auto found = kept.find(buffer);
    if (found != kept.end() && found->second) {
      result[buffer] = found->second;
      continue;
    }
    auto memory =
        runtime::sharedHostMemory(plan.programOf(rank).buffers(buffer).bytes());
    if (!memory)
      return memory.status();
    result[buffer] = std::move(*memory);
  }
  return result;
}

} // namespace merak::migration
