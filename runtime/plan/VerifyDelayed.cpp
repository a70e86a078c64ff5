// Rows and gradients that a step leaves to the next one (docs/Sparse.md,
// docs/DelayedGradients.md): what is applied late is of the step before, and
// nothing else is.
//
// A value is of the step before if it was made from what that step left: state
// that is no tensor of the model. It is of this step if it was made from a
// batch that was loaded. Parameters are neither. An update that takes the rate
// and the number of the step before must be made from values of the step before
// alone, every other one from none of them; what was applied is overwritten
// before the step ends, so that it is applied once; and what runs between steps
// applies the same.
//
// An update of a whole parameter is all that the step before has done to it:
// nothing reads the parameter before. Where no step has left a gradient, its
// factor is not a number, so that nothing changes.
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Communication.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/Entries.h"
#include "runtime/plan/LibraryKernels.h"
#include "runtime/plan/Regions.h"
#include "runtime/plan/Verify.h"

#include <cmath>
#include <fmt/format.h>
#include <map>
#include <set>
#include <utility>

using namespace merak::planpb;

namespace merak {
namespace {

struct Made {
  bool before = false, now = false;
  void join(const Made &other) {
    before |= other.before;
    now |= other.now;
  }
};

// Whether anything crosses from step to step: in most plans nothing does.
bool leavesOrTakes(const Program &program) {
  for (const Buffer &buffer : program.buffers())
    if (isLeftToNextStep(buffer))
      return true;
  for (const Procedure &procedure : program.procedures())
    for (const Instruction &instruction : procedure.instructions())
      if (isOfStepBefore(instruction))
        return true;
  return false;
}

class DelayedCheck {
public:
  explicit DelayedCheck(const Program &program)
      : program_(program), table_(accessTable(program)),
        made_(program.buffers_size()) {}

  Status run() {
    for (int b = 0; b < program_.buffers_size(); ++b)
      made_[b].before = isLeftToNextStep(program_.buffers(b));
    for (int c = 0; c < program_.calls_size(); ++c)
      walk(program_.calls(c).procedure(),
           [&](int i) { return describeAt(program_, c, i); });
    const std::set<uint32_t> ofStep = std::exchange(applied_, {});
    if (ofStep.empty())
      return problems_.take();
    for (uint32_t buffer : left_)
      if (made_[buffer].before)
        problems_.add(
            fmt::format("\"{}\" of the step before is not overwritten "
                        "in the step: it would be applied twice",
                        program_.buffers(buffer).name()));
    checkFlush(ofStep);
    for (const char *entry : {kBeginEntry, kFlushEntry})
      checkNothingLeft(entry);
    return problems_.take();
  }

private:
  static bool isTensor(const Buffer &buffer) {
    return !buffer.tensor().empty() &&
           (buffer.category() == Buffer::PARAMETERS ||
            buffer.category() == Buffer::OPTIMIZER);
  }

  static std::set<std::string> namedScalars(const Instruction &instruction) {
    std::set<std::string> names;
    for (const Scalar &scalar : instruction.scalars())
      if (scalar.value_case() == Scalar::kRuntime)
        names.insert(scalar.runtime());
    return names;
  }

  template <typename Where> void walk(uint32_t procedure, Where where) {
    const Procedure &proto = program_.procedures(int(procedure));
    for (int i = 0; i < proto.instructions_size(); ++i)
      execute(proto.instructions(i), table_[procedure][i],
              [&] { return where(i); });
  }

  template <typename Where>
  void execute(const Instruction &instruction, const std::vector<Access> &list,
               Where where) {
    const LibraryKernel *kernel = findLibraryKernel(instruction.op());
    if (kernel && kernel->touches == Touches::Behind)
      return; // what rows are owed is neither
    Made all{false, instruction.kind() == Instruction::LOAD_INPUT &&
                        stepsAhead(instruction) == 0};
    for (const Access &access : list)
      if (const Buffer &buffer = program_.buffers(int(access.buffer));
          access.read && !isTensor(buffer)) {
        all.join(made_[access.buffer]);
        if (isLeftToNextStep(buffer))
          left_.insert(access.buffer);
      }
    if (kernel && kernel->rates == RateClass::Optimizer)
      checkUpdate(instruction, *kernel, all, where);
    else
      for (const Access &access : list)
        if (access.read && isTensor(program_.buffers(int(access.buffer))))
          if (auto [at, isFirst] = read_.try_emplace(access.buffer); isFirst)
            at->second = where();
    for (const Access &access : list) {
      const Buffer &buffer = program_.buffers(int(access.buffer));
      if (!access.write || isTensor(buffer))
        continue;
      const Region whole = wholeRegion(buffer);
      if (!access.accumulate && access.region.dense &&
          access.region.begin <= whole.begin && access.region.end >= whole.end)
        made_[access.buffer] = all;
      else
        made_[access.buffer].join(all);
    }
  }

  // By what an update reads: a gradient or slices and ids, and the factor.
  template <typename Where>
  void checkUpdate(const Instruction &instruction, const LibraryKernel &kernel,
                   const Made &all, Where where) {
    const std::set<std::string> numbers = namedScalars(instruction);
    if (numbers.count("lr") + numbers.count("step") > 0 &&
        numbers.count("lr_before") + numbers.count("step_before") > 0)
      problems_.add(fmt::format(
          "{}: takes the rate of one step and the number of another", where()));
    if (!isOfStepBefore(instruction)) {
      if (all.before)
        problems_.add(fmt::format("{}: takes the number of this step for what "
                                  "the step before left",
                                  where()));
      return;
    }
    if (all.now || !all.before)
      problems_.add(fmt::format(
          "{}: takes the number of the step before, but not only what that "
          "step left",
          where()));
    const uint32_t parameter = instruction.outputs(0).buffer();
    const bool isFirst = applied_.insert(parameter).second;
    if (kernel.touches == Touches::Named)
      return;
    if (!isFirst)
      problems_.add(
          fmt::format("{}: applies what the step before left again", where()));
    if (const auto reader = read_.find(parameter); reader != read_.end())
      problems_.add(fmt::format(
          "{}: {} reads \"{}\" without what the step before left", where(),
          reader->second, program_.buffers(int(parameter)).tensor()));
    const auto clip = instruction.attrs().find("clip");
    if (clip == instruction.attrs().end() || clip->second != "1" ||
        instruction.inputs_size() < 2)
      problems_.add(fmt::format(
          "{}: has no factor by which nothing is left before the first step",
          where()));
    else
      factors_.insert(instruction.inputs(1).buffer());
  }

  // Behind this procedure, which runs between steps.
  void checkNothingLeft(const char *entry) {
    std::map<uint32_t, bool> isNone;
    for (uint32_t factor : factors_)
      isNone[factor] = false;
    for (const Procedure &procedure : program_.procedures())
      for (const Instruction &instruction : procedure.instructions()) {
        if (procedure.name() != entry)
          continue;
        for (const Operand &output : instruction.outputs())
          if (const auto factor = isNone.find(output.buffer());
              factor != isNone.end())
            factor->second = instruction.op() == "fill" &&
                             instruction.scalars_size() == 1 &&
                             instruction.scalars(0).has_f() &&
                             std::isnan(instruction.scalars(0).f());
      }
    for (const auto &[factor, none] : isNone)
      if (!none)
        problems_.add(fmt::format("\"{}\": behind {} no step has left a "
                                  "gradient, but the factor is a "
                                  "number",
                                  program_.buffers(int(factor)).name(), entry));
  }

  void checkFlush(const std::set<uint32_t> &ofStep) {
    for (int b = 0; b < program_.buffers_size(); ++b)
      made_[b] = {isLeftToNextStep(program_.buffers(b)), false};
    read_.clear();
    for (int p = 0; p < program_.procedures_size(); ++p)
      if (program_.procedures(p).name() == kFlushEntry)
        walk(uint32_t(p), [&](int i) { return describe(program_, p, i); });
    for (uint32_t table : ofStep)
      if (!applied_.count(table))
        problems_.add(fmt::format("\"{}\": what a step delays is not applied "
                                  "between steps",
                                  program_.buffers(int(table)).tensor()));
  }

  const Program &program_;
  const AccessTable table_;
  std::vector<Made> made_;               // by buffer
  std::set<uint32_t> applied_;           // parameters
  std::set<uint32_t> left_;              // by the step before, and read
  std::set<uint32_t> factors_;           // of gradients that were left
  std::map<uint32_t, std::string> read_; // parameters, by their first readers
  Problems problems_;
};

} // namespace

// No order of calls says that what other programs run between steps matches.
Status verifyEntries(const LoadedPlan &plan) {
  const CommunicationMap map(plan);
  Problems problems;
  for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
    const uint32_t index = plan.file.ranks(rank).program();
    const Program &program = plan.programs[index];
    for (int p = 0; p < program.procedures_size(); ++p) {
      const Procedure &procedure = program.procedures(p);
      for (int i = 0;
           isEntry(procedure.name()) && i < procedure.instructions_size();
           ++i) {
        const Instruction &instruction = procedure.instructions(i);
        if (instruction.kind() != Instruction::COLLECTIVE)
          continue;
        for (int member : map.ranks().members(
                 rank, program.groups(int(instruction.group()))))
          if (plan.file.ranks(member).program() != index)
            problems.addOnce(
                fmt::format("{} {} {}", index, p, i),
                fmt::format("{}: meets rank {}, which runs another program, "
                            "between steps",
                            describe(program, int(p), i), member));
      }
    }
  }
  return problems.take();
}

Status verifyDelayed(const Program &program) {
  return leavesOrTakes(program) ? DelayedCheck(program).run() : Status();
}

} // namespace merak
