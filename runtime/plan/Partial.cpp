#include "runtime/plan/Partial.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/Regions.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <unordered_map>

using namespace merak::planpb;

namespace merak {
namespace {

// An output of an instruction, executed in a call.
struct Writer {
  const Access *access;
  int call, procedure, instruction, output;
};

// Walks a step and tells for each operand that is read who wrote its bytes
// last. An accumulating writer does not end what it adds to.
class LastWriters {
public:
  explicit LastWriters(const Program &program)
      : program_(program), table_(accessTable(program)),
        state_(program.buffers_size()) {}

  // Requires that operands are not empty (those have no access).
  using Visit = std::function<void(int call, int instruction, int input,
                                   const std::vector<Writer> &)>;
  void walk(const Visit &visit) {
    for (int c = 0; c < program_.calls_size(); ++c) {
      const Call &call = program_.calls(c);
      int p = call.procedure();
      const Procedure &procedure = program_.procedures(p);
      for (int i = 0; i < procedure.instructions_size(); ++i) {
        const std::vector<Access> &list = table_[p][i];
        int inputs = procedure.instructions(i).inputs_size();
        // Accesses are the operands in order, if none is empty.
        if (static_cast<int>(list.size()) !=
            inputs + procedure.instructions(i).outputs_size())
          continue;
        for (int k = 0; k < inputs; ++k)
          visit(c, i, k, find(list[k], call));
        for (size_t k = inputs; k < list.size(); ++k)
          write({&list[k], c, p, i, static_cast<int>(k) - inputs}, call);
      }
    }
  }

private:
  PartMap<Writer> &parts(uint32_t buffer, const Call &call) {
    return state_[buffer][slotOf(program_.buffers(buffer), call)];
  }

  std::vector<Writer> find(const Access &access, const Call &call) {
    std::vector<Writer> result;
    for (const auto &[begin, writer] : parts(access.buffer, call))
      if (overlap(writer.access->region, access.region))
        result.push_back(writer);
    return result;
  }

  void write(const Writer &now, const Call &call) {
    const Region &region = now.access->region;
    PartMap<Writer> &list = parts(now.access->buffer, call);
    auto [it, end] = endedBy(list, region);
    while (it != end) {
      const Writer &old = it->second;
      const Region &covered = old.access->region;
      bool isOver = old.access == now.access || // of an earlier call
                    (!now.access->accumulate &&
                     (region.dense ? covered.begin >= region.begin &&
                                         covered.end <= region.end
                                   : sameView(covered, 0, region, 0)));
      it = isOver ? list.erase(it) : std::next(it);
    }
    list.emplace(region.begin, now);
  }

  bool overlap(const Region &a, const Region &b) {
    if (a.dense && b.dense)
      return a.begin < b.end && b.begin < a.end;
    auto [it, fresh] = overlaps_[&a].try_emplace(&b, false);
    if (fresh)
      it->second = regionsOverlap(a, 0, b, 0);
    return it->second;
  }

  const Program &program_;
  AccessTable table_;
  std::vector<std::map<uint32_t, PartMap<Writer>>> state_;
  std::unordered_map<const Region *, std::unordered_map<const Region *, bool>>
      overlaps_;
};

bool reduces(const Instruction &instruction) {
  return instruction.kind() == Instruction::COLLECTIVE &&
         (instruction.collective() == Instruction::ALL_REDUCE ||
          instruction.collective() == Instruction::REDUCE_SCATTER);
}

const Instruction &instructionOf(const Program &program, int call, int index) {
  return program.procedures(program.calls(call).procedure())
      .instructions(index);
}

// Zeros are a sum of zeros: a fill is what its reader takes it for.
bool neutral(const Program &program, const Writer &writer) {
  return program.procedures(writer.procedure)
             .instructions(writer.instruction)
             .op() == "fill";
}

} // namespace

bool annotatePartials(Program &program) {
  // Walk over a copy: operands are changed on the way.
  Program original = program;
  for (Procedure &procedure : *original.mutable_procedures())
    for (Instruction &instruction : *procedure.mutable_instructions())
      for (auto *operands :
           {instruction.mutable_inputs(), instruction.mutable_outputs()})
        for (Operand &operand : *operands)
          operand.clear_partial_group();
  program = original;
  auto output = [&](const Writer &writer) -> Operand & {
    return *program.mutable_procedures(writer.procedure)
                ->mutable_instructions(writer.instruction)
                ->mutable_outputs(writer.output);
  };
  LastWriters(original).walk(
      [&](int c, int i, int k, const std::vector<Writer> &writers) {
        const Instruction &inst = instructionOf(original, c, i);
        if (!reduces(inst))
          return;
        for (const Writer &writer : writers)
          if (!neutral(original, writer))
            output(writer).set_partial_group(inst.group() + 1);
      });
  LastWriters(original).walk(
      [&](int c, int i, int k, const std::vector<Writer> &writers) {
        uint32_t group = 0;
        for (const Writer &writer : writers)
          group = std::max(group, output(writer).partial_group());
        program.mutable_procedures(original.calls(c).procedure())
            ->mutable_instructions(i)
            ->mutable_inputs(k)
            ->set_partial_group(group);
      });
  if (verifyPartials(program).ok())
    return true;
  program = original;
  return false;
}

Status verifyPartials(const Program &program) {
  bool annotated = false;
  Problems problems(fmt::format("program {}", program.index()));
  for (int p = 0; p < program.procedures_size(); ++p)
    for (int i = 0; i < program.procedures(p).instructions_size(); ++i) {
      const Instruction &inst = program.procedures(p).instructions(i);
      for (const auto *operands : {&inst.inputs(), &inst.outputs()})
        for (const Operand &operand : *operands) {
          annotated |= operand.partial_group() != 0;
          if (operand.partial_group() >
              static_cast<uint32_t>(program.groups_size()))
            problems.add(fmt::format(
                "{}: a summand over group {} of {}", describe(program, p, i),
                operand.partial_group() - 1, program.groups_size()));
        }
    }
  Status status = problems.take();
  if (!annotated || !status.ok())
    return status;

  auto name = [&](uint32_t group) {
    return group ? fmt::format("a summand over ({})",
                               groupStr(program.groups(int(group) - 1)))
                 : std::string("a whole value");
  };
  LastWriters(program).walk([&](int c, int i, int k,
                                const std::vector<Writer> &writers) {
    const Instruction &inst = instructionOf(program, c, i);
    uint32_t expected = inst.inputs(k).partial_group();
    std::string key =
        fmt::format("{}/{}/{}", program.calls(c).procedure(), i, k);
    if (reduces(inst) && !writers.empty() && expected != inst.group() + 1)
      problems.addOnce(
          "reduce " + key,
          fmt::format("{} reduces buffer \"{}\" over ({}), but takes it as {}",
                      describeAt(program, c, i),
                      program.buffers(inst.inputs(k).buffer()).name(),
                      groupStr(program.groups(int(inst.group()))),
                      name(expected)));
    for (const Writer &writer : writers) {
      uint32_t found = program.procedures(writer.procedure)
                           .instructions(writer.instruction)
                           .outputs(writer.output)
                           .partial_group();
      if (found == expected || neutral(program, writer))
        continue;
      problems.addOnce(
          key, fmt::format("{} takes buffer \"{}\" as {}, but {} left {} there",
                           describeAt(program, c, i),
                           program.buffers(inst.inputs(k).buffer()).name(),
                           name(expected),
                           describeAt(program, writer.call, writer.instruction),
                           name(found)));
    }
  });
  return problems.take();
}

} // namespace merak
