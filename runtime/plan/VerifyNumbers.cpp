// Numbers of a file that are too large, or no numbers: before anything is
// multiplied or allocated by them, and whether what a step reads and holds is
// in proportion to the plan.
#include "runtime/plan/Describe.h"
#include "runtime/plan/KernelRecords.h"
#include "runtime/plan/RateProgram.h"
#include "runtime/plan/Verify.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

using namespace merak::planpb;

namespace merak {
namespace {

// Beyond any model, and far enough below 2^63 for sums and byte counts.
constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr int64_t kMostSteps = int64_t{1} << 53;
constexpr int kMostStreams = 4096;
// How often an operand may read the bytes of the arena: as much as a second of
// one instruction, where a factor that was damaged would be years.
constexpr int64_t kMostReads = 1024;
constexpr int64_t kLeastArena = int64_t{1} << 20;

// False if a size is negative or the product above kMostElements.
bool inRange(const google::protobuf::RepeatedField<int64_t> &shape) {
  int64_t elements = 1;
  for (int64_t size : shape)
    if (size < 0 ||
        __builtin_mul_overflow(elements, std::max<int64_t>(size, 1),
                               &elements) ||
        elements > kMostElements)
      return false;
  return true;
}

bool inRange(const Layout &layout) {
  google::protobuf::RepeatedField<int64_t> sizes;
  for (const DimLayout &dim : layout.dims())
    for (const Factor &factor : dim.factors())
      sizes.Add(factor.size());
  return inRange(sizes);
}

bool inRange(int64_t count, int64_t most) {
  return count >= 0 && count <= most;
}

// Seconds, bytes, flops: sums of them are numbers, too.
bool isAmount(double value) { return value >= 0 && value <= 1e24; }

class NumberCheck {
public:
  explicit NumberCheck(const LoadedPlan &plan)
      : plan_(plan), file_(plan.file) {}

  Status run() {
    checkManifest();
    checkOptimizer(file_.optimizer());
    for (size_t p = 0; p < plan_.programs.size(); ++p)
      checkProgram(static_cast<int>(p), plan_.programs[p]);
    return problems_.take();
  }

private:
  void require(bool fine, const std::string &what) {
    if (!fine)
      problems_.add(what);
  }

  void checkManifest() {
    const std::pair<const char *, int64_t> counts[] = {
        {"global_batch", file_.global_batch()},
        {"microbatch", file_.microbatch()},
        {"microbatches", file_.microbatches()},
        {"tokens_per_step", file_.tokens_per_step()}};
    for (auto [name, count] : counts)
      require(
          inRange(count, kMostElements),
          fmt::format("manifest · {} is {}, which is no count", name, count));
    checkMesh();
    require(isAmount(file_.predicted_step_seconds()),
            "manifest · the predicted step is no time");
    for (const Tensor &tensor : file_.tensors())
      require(inRange(tensor.shape()),
              fmt::format("manifest · tensor \"{}\" has the shape [{}]",
                          tensor.name(), fmt::join(tensor.shape(), ",")));
    for (const Input &input : file_.inputs()) {
      require(inRange(input.shape()),
              fmt::format("manifest · input \"{}\" has the shape [{}]",
                          input.name(), fmt::join(input.shape(), ",")));
      if (input.batched())
        require(input.shape_size() > 0 &&
                    input.shape(0) == file_.global_batch(),
                fmt::format("manifest · input \"{}\" is batched, but its first "
                            "size is not the global batch of {}",
                            input.name(), file_.global_batch()));
    }
  }

  // Tensors are divided among its places.
  void checkMesh() {
    checkAxes(file_.mesh());
    for (const Mesh &mesh : file_.meshes())
      checkAxes(mesh.axes());
  }
  void checkAxes(const google::protobuf::RepeatedPtrField<Axis> &axes) {
    int64_t places = 1;
    for (const Axis &axis : axes)
      if (axis.size() < 1 ||
          __builtin_mul_overflow(places, axis.size(), &places) ||
          places > kMostElements)
        return problems_.add(fmt::format("manifest · mesh axis \"{}\" has size "
                                         "{}",
                                         axis.name(), axis.size()));
  }

  void checkOptimizer(const Optimizer &optimizer) {
    for (double value :
         {optimizer.lr(), optimizer.momentum(), optimizer.dampening(),
          optimizer.beta1(), optimizer.beta2(), optimizer.eps(),
          optimizer.weight_decay(), optimizer.grad_clip(),
          optimizer.min_factor(), optimizer.lr_decay(), optimizer.post_decay()})
      require(std::isfinite(value), "manifest · the optimizer has a value that "
                                    "is no number");
    require(inRange(optimizer.warmup(), kMostSteps) &&
                inRange(optimizer.total(), kMostSteps) &&
                optimizer.first_count() >= -kMostSteps &&
                optimizer.first_count() <= kMostSteps,
            "manifest · the optimizer counts steps that nobody takes");
    if (optimizer.rate().empty())
      return;
    const Result<RateProgram> rate = RateProgram::parse(optimizer.rate());
    for (const std::string &text : rate.status().messages())
      problems_.add("manifest · " + text);
  }

  void checkProgram(int index, const Program &program) {
    const std::string where = fmt::format("program {} · ", index);
    require(program.streams_size() <= kMostStreams,
            fmt::format("{}has {} streams", where, program.streams_size()));
    for (const Buffer &buffer : program.buffers()) {
      require(inRange(buffer.shape()),
              fmt::format("{}buffer \"{}\" has the shape [{}]", where,
                          buffer.name(), fmt::join(buffer.shape(), ",")));
      require(inRange(buffer.layout()),
              fmt::format("{}buffer \"{}\" has a layout of too many elements",
                          where, buffer.name()));
    }
    for (const Output &output : program.outputs())
      require(inRange(output.shape()) && inRange(output.layout()),
              fmt::format("{}output \"{}\" has the shape [{}]", where,
                          output.name(), fmt::join(output.shape(), ",")));
    for (int p = 0; p < program.procedures_size(); ++p)
      for (int i = 0; i < program.procedures(p).instructions_size(); ++i)
        checkInstruction(program, p, i);
  }

  void checkInstruction(const Program &program, int procedure, int index) {
    const Instruction &instruction =
        program.procedures(procedure).instructions(index);
    bool fine = isAmount(instruction.flops()) &&
                isAmount(instruction.bytes()) &&
                inRange(instruction.rows(), kMostElements);
    for (const auto *operands : {&instruction.inputs(), &instruction.outputs()})
      for (const Operand &operand : *operands)
        fine &= inRange(operand.shape());
    if (!fine)
      problems_.add(fmt::format("program {} · procedure {} instruction {}: has "
                                "a size, flops or bytes out of range",
                                program.index(), procedure, index));
  }

  const LoadedPlan &plan_;
  const PlanFile &file_;
  Problems problems_;
};

class ExtentCheck {
public:
  explicit ExtentCheck(const LoadedPlan &plan)
      : plan_(plan), file_(plan.file), records_(kernelRecords(plan.file)) {}

  Status run() {
    checkMicrobatches();
    for (size_t p = 0; p < plan_.programs.size(); ++p) {
      const Program &program = plan_.programs[p];
      checkMemory(static_cast<int>(p), program);
      for (const Output &output : program.outputs())
        checkOutput(static_cast<int>(p), program, output);
      for (int procedure = 0; procedure < program.procedures_size();
           ++procedure)
        for (int i = 0; i < program.procedures(procedure).instructions_size();
             ++i)
          checkInstruction(program, procedure, i);
    }
    return problems_.take();
  }

private:
  // Some stage has a call for each; one without ops of its own has fewer. Of
  // pipelines each has calls for its own.
  void checkMicrobatches() {
    std::set<int64_t> called;
    size_t most = 1;
    for (const Program &program : plan_.programs) {
      most = std::max(most, size_t(program.calls_size()));
      for (const Call &call : program.calls())
        called.insert(call.microbatch());
    }
    most = std::max(most, called.size());
    if (file_.microbatches() > int64_t(most))
      problems_.add(fmt::format("{} microbatches, and no program has more than "
                                "{} calls",
                                file_.microbatches(), most));
  }

  // Room for alignment, and no more than as much again as is used.
  static bool isInProportion(uint64_t bytes, uint64_t used) {
    return bytes / 2 <= std::max<uint64_t>(used, kLeastArena);
  }

  // Nothing but buffers makes the arena large, nothing but elements a buffer.
  void checkMemory(int index, const Program &program) {
    uint64_t end = 0;
    for (const Buffer &buffer : program.buffers()) {
      auto elements = static_cast<uint64_t>(dtypeSize(buffer.dtype()));
      for (int64_t size : buffer.shape())
        elements *= static_cast<uint64_t>(size);
      if (!isInProportion(buffer.bytes(), elements))
        problems_.add(fmt::format("program {} · buffer \"{}\" has {} bytes for "
                                  "{} of elements",
                                  index, buffer.name(), buffer.bytes(),
                                  elements));
      const uint64_t slots = std::max(1u, buffer.slots());
      end = std::max(end, buffer.offset() + buffer.bytes() +
                              (slots - 1) * buffer.slot_stride());
    }
    if (!isInProportion(program.arena_bytes(), end))
      problems_.add(fmt::format("program {} · the arena has {} bytes, its "
                                "buffers end at {}",
                                index, program.arena_bytes(), end));
  }

  // Parts of an output that has a layout lie where the layout says, in a value
  // of its shape.
  void checkOutput(int index, const Program &program, const Output &output) {
    if (output.layout().dims_size() != output.shape_size())
      return;
    const layout::Layout layout = fromProto(output.layout());
    const layout::AxisMap mesh = layoutMesh(file_, rankOf(file_, index));
    const Buffer &buffer = program.buffers(output.buffer());
    auto same = [](const std::vector<int64_t> &a,
                   const google::protobuf::RepeatedField<int64_t> &b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    if (!layoutFits(layout, mesh) ||
        !same(layout.globalShape(), output.shape()) ||
        (!output.shape().empty() &&
         !same(layout.localShape(mesh), buffer.shape())))
      problems_.add(fmt::format("program {} · output \"{}\" of shape [{}]: its "
                                "layout {} does not make it of buffer \"{}\"",
                                index, output.name(),
                                fmt::join(output.shape(), ","), layout.str(),
                                buffer.name()));
  }

  static bool layoutFits(const layout::Layout &layout,
                         const layout::AxisMap &mesh) {
    for (const layout::DimLayout &dim : layout.dims)
      for (const layout::Factor &factor : dim.factors) {
        int64_t parts = 1;
        for (const std::string &axis : factor.axes) {
          const auto found = mesh.find(axis);
          if (found == mesh.end() ||
              __builtin_mul_overflow(parts, found->second, &parts))
            return false;
        }
        if (parts < 1 || factor.size % parts)
          return false;
      }
    return true;
  }

  void checkInstruction(const Program &program, int procedure, int index) {
    const Instruction &instruction =
        program.procedures(procedure).instructions(index);
    const int64_t most =
        kMostReads *
        std::max<int64_t>(
            kLeastArena,
            std::min<uint64_t>(program.arena_bytes(), uint64_t{kMostElements}));
    for (const Operand &operand : instruction.inputs())
      if (elementCount(operand) > most)
        problems_.add(
            fmt::format("{}: reads {} elements of an arena of {} bytes",
                        describe(program, procedure, index),
                        elementCount(operand), program.arena_bytes()));
    if (instruction.kind() == Instruction::KERNEL && !records_.empty() &&
        !records_.count(
            {instruction.op(), kernelSignature(program, instruction)}))
      problems_.add(fmt::format(
          "{}: the kernel \"{}\" was not compiled for these operands",
          describe(program, procedure, index), instruction.op()));
  }

  const LoadedPlan &plan_;
  const PlanFile &file_;
  const KernelSignatures records_;
  Problems problems_;
};

} // namespace

Status verifyNumbers(const LoadedPlan &plan) { return NumberCheck(plan).run(); }

Status verifyExtents(const LoadedPlan &plan) { return ExtentCheck(plan).run(); }

} // namespace merak
