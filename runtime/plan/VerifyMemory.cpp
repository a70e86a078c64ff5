// Data races, clobbered buffers and values that nobody wrote, over one step of
// one program.
//
// The calls are walked in list order, which every legal execution order
// refines: streams run in list order, a record stands before its wait, and
// call waits point backwards. Each stream has a vector clock; access a is
// ordered before access b if the clock of b's stream had reached a when b was
// issued. For each range of bytes the accesses that a later one could race with
// are kept: those that touch some of them. A strided view of not very many runs
// is taken run by run, so that it touches all of a range or nothing. A write of
// all of a range ends its history.
#include "runtime/plan/Ahead.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/LibraryKernels.h"
#include "runtime/plan/Regions.h"
#include "runtime/plan/SharedPlaces.h"
#include "runtime/plan/Verify.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

using namespace merak::planpb;

namespace merak {
namespace {

using Clock = std::vector<uint32_t>;

// One executed access. `call` -1: the state before the step.
struct Touch {
  const Access *access;
  uint64_t base;
  int call, instruction;
  uint32_t stream, position; // position: count of the stream's instructions
  bool fills = true;         // touches every byte of the ranges that keep it
};

// Views of more runs are taken as their bounding range, with holes.
constexpr int64_t kMostRuns = 128;

struct Segment {
  uint64_t end;
  std::vector<Touch> writers, readers; // oldest first
};

class MemoryCheck {
public:
  MemoryCheck(const LoadedPlan &plan, int index)
      : file_(plan.file), program_(plan.programs[index]),
        problems_(fmt::format("program {}", index)) {
    for (const Tensor &tensor : file_.tensors())
      roles_[tensor.name()] = tensor.role();
  }

  Status run() {
    accesses_ = accessTable(program_);
    for (size_t p = 0; p < accesses_.size(); ++p)
      for (size_t i = 0; i < accesses_[p].size(); ++i)
        checkWithin(static_cast<int>(p), static_cast<int>(i));
    placePersistent();
    Clock zero(program_.streams_size(), 0);
    clocks_.assign(program_.streams_size(), zero);
    finished_.reserve(program_.calls_size());
    for (int c = 0; c < program_.calls_size(); ++c)
      runCall(c);
    finishStep();
    return problems_.take();
  }

private:
  // Operands of one instruction against each other, in the same slot.
  void checkWithin(int p, int i) {
    const std::vector<Access> &list = accesses_[p][i];
    for (size_t a = 0; a < list.size(); ++a) {
      for (size_t b = a + 1; b < list.size(); ++b) {
        if (!list[b].write || list[a].buffer != list[b].buffer ||
            !regionsOverlap(list[a].region, 0, list[b].region, 0))
          continue;
        if (!list[a].write && sameView(list[a].region, 0, list[b].region, 0)) {
          if (!mayShare(program_.procedures(p).instructions(i), list[a].index,
                        list[b].index))
            problems_.add(fmt::format(
                "{}: writes buffer \"{}\" while it reads it, which this kernel "
                "may not do",
                describe(program_, p, i),
                program_.buffers(list[a].buffer).name()));
          continue;
        }
        problems_.add(fmt::format(
            "{}: {} buffer \"{}\" that overlap without being the same view",
            describe(program_, p, i),
            list[a].write ? "writes two parts of" : "reads and writes parts of",
            program_.buffers(list[a].buffer).name()));
      }
    }
  }

  // Whether an input and an output may be one view. Of generated kernels the
  // compiler asks it of their code as it writes the plan (SharedOperands.cpp);
  // reductions in place are what communicators do.
  static bool mayShare(const Instruction &instruction, int input, int output) {
    if (instruction.kind() != Instruction::LIBRARY)
      return true;
    const LibraryKernel *kernel = findLibraryKernel(instruction.op());
    return (kernel && kernel->rates == RateClass::Optimizer) || // its state
           (output == 0 && sharedInput(instruction.op()) == input);
  }

  // Bytes that one instruction reads and writes through two buffers: neither is
  // read wrongly later, but the kernel may read what it has written.
  void checkBuffersWithin(const std::vector<Access> &list, const Call &call,
                          int i) {
    for (const Access &from : list) {
      if (!from.read)
        continue;
      const uint64_t base = bufferAddress(program_.buffers(from.buffer), call);
      for (const Access &to : list) {
        if (!to.write || to.buffer == from.buffer)
          continue;
        const uint64_t at = bufferAddress(program_.buffers(to.buffer), call);
        if (!regionsOverlap(from.region, base, to.region, at))
          continue;
        const int p = static_cast<int>(call.procedure());
        problems_.addOnce(
            fmt::format("within {}/{} {} {}", p, i, from.buffer, to.buffer),
            fmt::format("{}: reads buffer \"{}\" and writes buffer \"{}\" at "
                        "the same bytes",
                        describe(program_, p, i),
                        program_.buffers(from.buffer).name(),
                        program_.buffers(to.buffer).name()));
      }
    }
  }

  static bool persistent(const Buffer &buffer) {
    return buffer.category() == Buffer::PARAMETERS ||
           buffer.category() == Buffer::OPTIMIZER;
  }

  // Parameters and optimizer state are there when the step begins.
  void placePersistent() {
    segments_[0] = {std::max<uint64_t>(1, program_.arena_bytes()), {}, {}};
    wholes_.reserve(program_.buffers_size());
    for (int b = 0; b < program_.buffers_size(); ++b) {
      const Buffer &buffer = program_.buffers(b);
      wholes_.push_back(
          {static_cast<uint32_t>(b), wholeRegion(buffer), true, false, false});
      if (!persistent(buffer) || buffer.bytes() == 0)
        continue;
      forRange(buffer.offset(), buffer.offset() + buffer.bytes(),
               [&](uint64_t, Segment &segment) {
                 if (!segment.writers.empty()) {
                   const Buffer &other =
                       program_.buffers(segment.writers[0].access->buffer);
                   problems_.addOnce(
                       fmt::format("p {} {}", buffer.name(), other.name()),
                       fmt::format("buffers \"{}\" and \"{}\" overlap, and "
                                   "both outlive the step",
                                   other.name(), buffer.name()));
                 }
                 segment.writers.assign(
                     1, {&wholes_[b], buffer.offset(), -1, -1, 0, 0});
               });
    }
  }

  void runCall(int c) {
    const Call &call = program_.calls(c);
    const Procedure &procedure = program_.procedures(call.procedure());
    std::vector<bool> entered(program_.streams_size(), false);
    std::map<uint32_t, Clock> events;
    for (int i = 0; i < procedure.instructions_size(); ++i) {
      const Instruction &instruction = procedure.instructions(i);
      uint32_t stream = instruction.stream();
      Clock &clock = clocks_[stream];
      if (!entered[stream]) {
        entered[stream] = true;
        for (const CallWait &wait : call.waits())
          if (wait.stream() == stream)
            join(clock, finished_[wait.call()][wait.on()]);
      }
      ++clock[stream];
      if (instruction.kind() == Instruction::RECORD)
        events[instruction.event()] = clock;
      else if (instruction.kind() == Instruction::WAIT)
        join(clock, events[instruction.event()]);
      const std::vector<Access> &list = accesses_[call.procedure()][i];
      checkBuffersWithin(list, call, i);
      for (const Access &access : list)
        if (access.read)
          touch(access, call, c, i, clock, false);
      for (const Access &access : list)
        if (access.write)
          touch(access, call, c, i, clock, true);
    }
    finished_.push_back(clocks_);
  }

  static void join(Clock &clock, const Clock &other) {
    for (size_t s = 0; s < clock.size(); ++s)
      clock[s] = std::max(clock[s], other[s]);
  }

  void touch(const Access &access, const Call &call, int c, int i,
             const Clock &clock, bool write) {
    uint32_t stream =
        program_.procedures(call.procedure()).instructions(i).stream();
    uint64_t base = bufferAddress(program_.buffers(access.buffer), call);
    Touch now{&access, base, c, i, stream, clock[stream], true};
    if (!regionRuns(access.region, base, kMostRuns, runs_)) {
      now.fills = false;
      runs_ = {{base + access.region.begin, base + access.region.end}};
    }
    for (const Run &run : runs_) {
      forRange(run.begin, run.end, [&](uint64_t begin, Segment &segment) {
        if (!now.fills && !touches(now, begin, segment.end))
          return; // a hole
        if (write)
          writeSegment(segment, now, clock);
        else
          readSegment(begin, segment, now, &clock);
      });
      if (write && now.fills)
        mergeRange(run.begin, run.end, now);
    }
  }

  static bool ordered(const Touch &before, const Clock &clock) {
    return before.call < 0 || clock[before.stream] >= before.position;
  }

  static bool touches(const Touch &touch, uint64_t begin, uint64_t end) {
    return regionTouches(touch.access->region, touch.base, begin, end);
  }

  // Of two that touch one range.
  static bool overlap(const Touch &a, const Touch &b) {
    return a.fills || b.fills ||
           regionsOverlap(a.access->region, a.base, b.access->region, b.base);
  }

  // `clock` null: the reader after the step, for which everything is ordered.
  void readSegment(uint64_t begin, Segment &segment, const Touch &now,
                   const Clock *clock) {
    if (clock)
      for (const Touch &writer : segment.writers)
        if (!ordered(writer, *clock) && overlap(writer, now))
          race(writer, "writes", now, "reads");
    const auto newest =
        std::find_if(segment.writers.rbegin(), segment.writers.rend(),
                     [&](const Touch &writer) { return overlap(writer, now); });
    const Touch *last = newest == segment.writers.rend() ? nullptr : &*newest;
    if (!last || last->access->buffer != now.access->buffer) {
      // Holes of a strided view need not hold anything.
      if (regionTouches(now.access->region, now.base, begin, segment.end))
        last ? clobbered(*last, now) : unwritten(now);
    }
    if (!clock)
      return;
    remember(segment.readers, now, *clock);
  }

  void writeSegment(Segment &segment, const Touch &now, const Clock &clock) {
    for (const Touch &reader : segment.readers)
      if (!ordered(reader, clock) && overlap(reader, now))
        race(reader, "reads", now, "writes");
    for (const Touch &writer : segment.writers)
      if (!ordered(writer, clock) && overlap(writer, now))
        race(writer, "writes", now, "writes");
    checkUpdate(segment, now);
    remember(segment.writers, now, clock);
  }

  // A later touch of the same kind stands for an earlier one that is ordered
  // before it and touches no other bytes of the segment.
  void remember(std::vector<Touch> &list, const Touch &now,
                const Clock &clock) {
    list.erase(std::remove_if(list.begin(), list.end(),
                              [&](const Touch &old) {
                                return ordered(old, clock) &&
                                       (now.fills || sameBytes(old, now));
                              }),
               list.end());
    list.push_back(now);
  }
  static bool sameBytes(const Touch &a, const Touch &b) {
    return a.base == b.base && a.access->region.operand &&
           b.access->region.operand &&
           (a.access == b.access ||
            sameView(a.access->region, a.base, b.access->region, b.base));
  }

  // Steps that rows were left out of, for which the parameter is what it was,
  // and what the step before left of rows.
  bool isOfEarlierStep(const Touch &touch) const {
    if (touch.call < 0 || touch.instruction < 0)
      return false;
    const Instruction &instruction =
        program_.procedures(program_.calls(touch.call).procedure())
            .instructions(touch.instruction);
    const LibraryKernel *kernel = findLibraryKernel(instruction.op());
    return kernel &&
           (kernel->touches == Touches::Behind ||
            (kernel->touches == Touches::Named && isOfStepBefore(instruction)));
  }

  // Trained parameters change once a step, running statistics at any time,
  // everything else that is loaded from the model never.
  void checkUpdate(const Segment &segment, const Touch &now) {
    const Buffer &buffer = program_.buffers(now.access->buffer);
    if (buffer.category() != Buffer::PARAMETERS || buffer.tensor().empty())
      return;
    auto role = roles_.find(buffer.tensor());
    if (role == roles_.end() || now.call < 0 ||
        role->second == Tensor::STATISTIC)
      return;
    if (role->second != Tensor::PARAMETER) {
      problems_.addOnce("frozen " + buffer.tensor(),
                        fmt::format("{}: writes \"{}\", which is not trained",
                                    at(now), buffer.tensor()));
      return;
    }
    if (isOfEarlierStep(now))
      return;
    updated_.insert(now.access->buffer);
    for (const Touch &writer : segment.writers)
      if (writer.call >= 0 && !isOfEarlierStep(writer) &&
          writer.access->buffer == now.access->buffer && overlap(writer, now))
        problems_.addOnce("twice " + buffer.tensor(),
                          fmt::format("{}: updates \"{}\" again after {}",
                                      at(now), buffer.tensor(), at(writer)));
  }

  void finishStep() {
    for (int b = 0; b < program_.buffers_size(); ++b) {
      const Buffer &buffer = program_.buffers(b);
      bool kept = persistent(buffer);
      // Gradients of parameters can be saved after the step.
      kept |=
          buffer.category() == Buffer::GRADIENTS && !buffer.tensor().empty();
      for (const Output &output : program_.outputs())
        kept |= static_cast<int>(output.buffer()) == b;
      if (!kept || buffer.bytes() == 0)
        continue;
      uint64_t slots = std::max(1u, buffer.slots());
      for (uint64_t s = 0; s < slots; ++s) {
        uint64_t base = buffer.offset() + s * buffer.slot_stride();
        // Padding behind the elements is nobody's.
        uint64_t elements = dtypeSize(buffer.dtype());
        for (int64_t size : buffer.shape())
          elements *= size;
        Touch reader{&wholes_[b], base, program_.calls_size(), -1, 0, 0};
        forRange(base, base + elements, [&](uint64_t begin, Segment &segment) {
          readSegment(begin, segment, reader, nullptr);
        });
      }
      auto role = roles_.find(buffer.tensor());
      if (file_.mode() == "train" && buffer.category() == Buffer::PARAMETERS &&
          role != roles_.end() && role->second == Tensor::PARAMETER &&
          !updated_.count(b))
        problems_.add(
            fmt::format("parameter \"{}\" is never updated", buffer.tensor()));
    }
  }

  // ------------------------------------------------------------ messages

  std::string at(const Touch &touch) {
    if (touch.call < 0)
      return "the state before the step";
    if (touch.instruction < 0)
      return "after the step";
    return describeAt(program_, touch.call, touch.instruction);
  }

  // Once for all microbatches.
  std::string place(const Touch &touch) {
    bool inside = touch.call >= 0 && touch.instruction >= 0;
    return fmt::format(
        "{}/{}/{}", inside ? int(program_.calls(touch.call).procedure()) : -1,
        touch.instruction, touch.access->buffer);
  }

  static std::string range(const Touch &touch) {
    return fmt::format("[{}, {})", touch.base + touch.access->region.begin,
                       touch.base + touch.access->region.end);
  }

  const std::string &name(const Touch &touch) {
    return program_.buffers(touch.access->buffer).name();
  }

  void race(const Touch &first, const char *firstDoes, const Touch &second,
            const char *secondDoes) {
    problems_.addOnce(
        "race " + place(first) + " " + place(second),
        fmt::format("race: {} on stream {} {} bytes {} of buffer \"{}\", and "
                    "{} on stream {} {} bytes {} of buffer \"{}\", but "
                    "nothing orders them",
                    at(first), first.stream, firstDoes, range(first),
                    name(first), at(second), second.stream, secondDoes,
                    range(second), name(second)));
  }

  void clobbered(const Touch &writer, const Touch &reader) {
    std::string who =
        reader.instruction < 0
            ? fmt::format("buffer \"{}\", needed after the step,", name(reader))
            : fmt::format("{} reads buffer \"{}\", which", at(reader),
                          name(reader));
    problems_.addOnce(
        "clobbered " + place(writer) + " " + place(reader),
        fmt::format("{} was overwritten by {} through buffer \"{}\" at bytes "
                    "{}: the buffers overlap while both are live",
                    who, at(writer), name(writer), range(writer)));
  }

  void unwritten(const Touch &reader) {
    if (reader.instruction < 0) {
      problems_.addOnce("unwritten " + place(reader),
                        fmt::format("buffer \"{}\" is needed after the step, "
                                    "but not all of it was written",
                                    name(reader)));
      return;
    }
    problems_.addOnce(
        "unwritten " + place(reader),
        fmt::format("{} {} buffer \"{}\" at bytes {}, which nothing wrote "
                    "before",
                    at(reader), reader.access->accumulate ? "adds to" : "reads",
                    name(reader), range(reader)));
  }

  // ------------------------------------------------------------ byte map

  // Calls `visit` on the segments of [begin, end), cut at both ends.
  template <typename Visit>
  void forRange(uint64_t begin, uint64_t end, Visit visit) {
    auto it = split(begin);
    split(end);
    for (; it != segments_.end() && it->first < end; ++it)
      visit(it->first, it->second);
  }

  std::map<uint64_t, Segment>::iterator split(uint64_t at) {
    auto it = segments_.lower_bound(at);
    if (it != segments_.end() && it->first == at)
      return it;
    if (it == segments_.begin())
      return it;
    auto previous = std::prev(it);
    if (previous->second.end <= at)
      return it;
    // Each side keeps what touches it.
    Segment tail{previous->second.end, {}, {}};
    for (auto list : {&Segment::writers, &Segment::readers}) {
      std::copy_if((previous->second.*list).begin(),
                   (previous->second.*list).end(),
                   std::back_inserter(tail.*list), [&](const Touch &touch) {
                     return touch.fills || touches(touch, at, tail.end);
                   });
      std::erase_if(previous->second.*list, [&](const Touch &touch) {
        return !touch.fills && !touches(touch, previous->first, at);
      });
    }
    previous->second.end = at;
    return segments_.emplace_hint(it, at, std::move(tail));
  }

  // After a write of all of a range its bytes have one history again: only what
  // was not ordered before it (and so was reported) is forgotten.
  void mergeRange(uint64_t begin, uint64_t end, const Touch &now) {
    auto first = segments_.find(begin);
    auto last = segments_.lower_bound(end);
    first->second.end = end;
    first->second.writers.assign(1, now);
    first->second.readers.clear();
    segments_.erase(std::next(first), last);
  }

  const PlanFile &file_;
  const Program &program_;
  Problems problems_;
  std::map<std::string, Tensor::Role> roles_;
  AccessTable accesses_;
  std::vector<Access> wholes_; // by buffer
  std::map<uint64_t, Segment> segments_;
  std::vector<Clock> clocks_;                // by stream
  std::vector<std::vector<Clock>> finished_; // by call, stream
  std::set<uint32_t> updated_;
  std::vector<Run> runs_; // of the access at hand
};

} // namespace

Status verifyMemory(const LoadedPlan &plan, int program) {
  return MemoryCheck(plan, program).run();
}

} // namespace merak
