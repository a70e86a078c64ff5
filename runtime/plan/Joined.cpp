#include "runtime/plan/Joined.h"

#include "runtime/plan/Regions.h"

#include <fmt/format.h>

using namespace merak::planpb;

namespace merak {

constexpr uint64_t kAlignment = 64; // of buffers in the arena

bool isJoined(const Instruction &instruction) {
  return instruction.kind() == Instruction::COLLECTIVE &&
         instruction.attrs().count(kJoinedAttr) > 0;
}

Result<int64_t> joinedElements(const Program &program,
                               const Instruction &instruction) {
  auto fail = [](const std::string &what) {
    return Status::error("cannot join its operands: " + what);
  };
  const int count = instruction.inputs_size();
  if (instruction.collective() != Instruction::ALL_REDUCE || count == 0 ||
      instruction.outputs_size() != count || instruction.accumulate())
    return fail("only an all_reduce in place can");
  const DType dtype = program.buffers(instruction.inputs(0).buffer()).dtype();
  const int64_t size = dtypeSize(dtype);
  if (size == 0)
    return fail("they have no element type");
  uint64_t first = 0, end = 0;
  for (int k = 0; k < count; ++k) {
    const Operand &in = instruction.inputs(k), &out = instruction.outputs(k);
    const Buffer &buffer = program.buffers(in.buffer());
    const Region region(in, size);
    if (in.buffer() != out.buffer() ||
        !sameView(region, 0, Region(out, size), 0))
      return fail(fmt::format("number {} is not reduced in place", k));
    if (buffer.dtype() != dtype)
      return fail(fmt::format("number {} is {}, the first one {}", k,
                              dtypeName(buffer.dtype()), dtypeName(dtype)));
    if (buffer.slot_class() >= 0 && buffer.slots() > 1)
      return fail(
          fmt::format("\"{}\" has {} slots", buffer.name(), buffer.slots()));
    if (!region.dense)
      return fail(fmt::format("number {} has gaps", k));
    const uint64_t begin = buffer.offset() + region.begin;
    const uint64_t expected = (end + kAlignment - 1) / kAlignment * kAlignment;
    if (k == 0)
      first = begin;
    else if (begin != expected)
      return fail(fmt::format("\"{}\" begins at byte {}, behind the one before "
                              "would be {}",
                              buffer.name(), begin, expected));
    end = buffer.offset() + region.end;
  }
  return static_cast<int64_t>(end - first) / size;
}

} // namespace merak
