// Copies of parameters that are kept from step to step (Copies.h) are never
// behind their parameters: between steps they are made of them, and nothing
// writes a parameter without its copy. Microbatches read them as the step
// before left them: nothing does after the update.
#include "runtime/plan/Copies.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/LibraryKernels.h"
#include "runtime/plan/Regions.h"
#include "runtime/plan/Verify.h"

#include <algorithm>
#include <fmt/format.h>
#include <set>

using namespace merak::planpb;

namespace merak {
namespace {

bool isWhole(const Program &program, const Operand &operand) {
  const Buffer &buffer = program.buffers(int(operand.buffer()));
  const int64_t size = int64_t(dtypeSize(buffer.dtype()));
  int64_t elements = 1;
  for (int64_t extent : buffer.shape())
    elements *= extent;
  const Region region(operand, size);
  return region.dense && region.begin == 0 &&
         region.end == uint64_t(elements * size);
}

// Of a whole tensor, in entry:begin.
bool makesCopy(const Program &program, const Instruction &inst) {
  return inst.op() == "copy" && inst.inputs_size() == 1 &&
         inst.outputs_size() == 1 && !inst.accumulate() &&
         inst.inputs(0).buffer() < uint32_t(program.buffers_size()) &&
         inst.outputs(0).buffer() < uint32_t(program.buffers_size()) &&
         isKeptCopy(program.buffers(int(inst.outputs(0).buffer()))) &&
         program.buffers(int(inst.inputs(0).buffer())).category() ==
             Buffer::PARAMETERS &&
         !program.buffers(int(inst.inputs(0).buffer())).tensor().empty();
}

class CopyCheck {
public:
  explicit CopyCheck(const Program &program)
      : program_(program), copies_(keptCopies(program)) {}

  Status run() {
    for (int b = 0; b < program_.buffers_size(); ++b)
      if (isKeptCopy(program_.buffers(b)) && !copies_.count(uint32_t(b)))
        problems_.add(fmt::format("buffer \"{}\" outlives the step, but {} "
                                  "makes it of no tensor",
                                  program_.buffers(b).name(), kBeginEntry));
    for (int p = 0; p < program_.procedures_size(); ++p)
      for (int i = 0; i < program_.procedures(p).instructions_size(); ++i)
        checkWrites(p, i);
    checkReads();
    return problems_.take();
  }

private:
  const std::string &name(uint32_t buffer) const {
    return program_.buffers(int(buffer)).name();
  }
  const Instruction &at(int p, int i) const {
    return program_.procedures(p).instructions(i);
  }
  static bool writes(const Instruction &inst, uint32_t buffer) {
    return std::any_of(
        inst.outputs().begin(), inst.outputs().end(),
        [&](const Operand &output) { return output.buffer() == buffer; });
  }

  void checkWrites(int p, int i) {
    const Instruction &inst = at(p, i);
    const bool begins = program_.procedures(p).name() == kBeginEntry &&
                        makesCopy(program_, inst);
    const LibraryKernel *kernel = findLibraryKernel(inst.op());
    const bool updates = kernel && kernel->rates == RateClass::Optimizer &&
                         kernel->touches == Touches::All;
    for (const auto &[copy, source] : copies_) {
      if (!begins && writes(inst, source) && !writes(inst, copy))
        problems_.add(fmt::format("{}: writes \"{}\", but not \"{}\", its copy",
                                  describe(program_, p, i), name(source),
                                  name(copy)));
      if (!writes(inst, copy))
        continue;
      const Operand &last = *std::prev(inst.outputs().end());
      if (begins
              ? !isWhole(program_, inst.inputs(0)) || !isWhole(program_, last)
              : !updates || inst.outputs(0).buffer() != source ||
                    last.buffer() != copy || !isWhole(program_, last))
        problems_.add(fmt::format("{}: writes \"{}\" other than as the copy of "
                                  "all of \"{}\"",
                                  describe(program_, p, i), name(copy),
                                  name(source)));
    }
  }

  void checkReads() {
    std::set<uint32_t> updated;
    for (int c = 0; c < program_.calls_size(); ++c) {
      const int p = int(program_.calls(c).procedure());
      for (int i = 0; i < program_.procedures(p).instructions_size(); ++i) {
        for (const Operand &input : at(p, i).inputs())
          if (updated.count(input.buffer()))
            problems_.add(
                fmt::format("{}: reads \"{}\" after the update has written it",
                            describeAt(program_, c, i), name(input.buffer())));
        for (const Operand &output : at(p, i).outputs())
          if (copies_.count(output.buffer()))
            updated.insert(output.buffer());
      }
    }
  }

  const Program &program_;
  const std::map<uint32_t, uint32_t> copies_;
  Problems problems_;
};

} // namespace

std::map<uint32_t, uint32_t> keptCopies(const Program &program) {
  std::map<uint32_t, uint32_t> copies;
  for (const Procedure &procedure : program.procedures())
    for (const Instruction &inst : procedure.instructions())
      if (procedure.name() == kBeginEntry && makesCopy(program, inst))
        copies.emplace(inst.outputs(0).buffer(), inst.inputs(0).buffer());
  return copies;
}

Status verifyCopies(const Program &program) {
  const bool any = std::any_of(program.buffers().begin(),
                               program.buffers().end(), isKeptCopy);
  return any ? CopyCheck(program).run() : Status();
}

} // namespace merak
