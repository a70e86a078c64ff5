#include "codegen/PlanWriter/PlanWriter.h"

#include "codegen/Kernels/GpuBinary.h"
#include "codegen/PlanWriter/Manifest.h"
#include "codegen/PlanWriter/ProgramWriter.h"
#include "codegen/PlanWriter/SharedOperands.h"
#include "runtime/plan/KernelRecords.h"
#include "runtime/plan/Partial.h"
#include "runtime/plan/Serialized.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"

using namespace mlir;

namespace merak {

namespace {

using resharding::kBoundariesFile;

LogicalResult fail(ModuleOp module, const Status &status) {
  for (const std::string &message : status.messages())
    module.emitError(message);
  return failure();
}

// Kernels of all programs in one shared object.
FailureOr<codegen::KernelObject> compile(ModuleOp module,
                                         const codegen::KernelTarget &target) {
  codegen::CompileOptions options;
  options.target = target;
  bool any = false;
  module.walk([&](plan::KernelOp) { any = true; });
  if (!any)
    return codegen::KernelObject();
  return codegen::compileKernels(module, {}, options);
}

// The linker writes a file; the plan keeps its contents.
Result<codegen::KernelFile> link(const std::string &object,
                                 codegen::Sanitizer sanitizer) {
  llvm::SmallString<128> path;
  if (std::error_code error =
          llvm::sys::fs::createTemporaryFile("merak-kernels", "so", path))
    return Status::error("cannot create a temporary file: " + error.message());
  Status linked =
      codegen::linkSharedObject({object}, path.str().str(), sanitizer);
  Result<codegen::KernelFile> result = linked;
  if (linked.ok()) {
    auto file = llvm::MemoryBuffer::getFile(path);
    if (file)
      result = codegen::KernelFile{"kernels.so", (*file)->getBuffer().str()};
    else
      result = Status::error("cannot read " + path.str().str() + ": " +
                             file.getError().message());
  }
  llvm::sys::fs::remove(path);
  return result;
}

// A conversion that the processor lacks would be a call of a library that the
// kernels do not have.
LogicalResult checkHalf(ModuleOp module, const codegen::KernelTarget &target) {
  if (target.hasHalf)
    return success();
  for (auto kernel : module.getOps<func::FuncOp>()) {
    auto isF16 = [](Type type) { return getElementTypeOrSelf(type).isF16(); };
    if (kernel->hasAttr(plan::kKernelAttr) &&
        (llvm::any_of(kernel.getArgumentTypes(), isF16) ||
         llvm::any_of(kernel.getResultTypes(), isF16)))
      return fail(module,
                  Status::error("--target: kernels for '" + target.name +
                                "' cannot convert f16; expected x86-64-v3 or "
                                "later, or --precision=bf16"));
  }
  return success();
}

FailureOr<codegen::KernelTarget> targetOf(ModuleOp module,
                                          const planpb::PlanFile &file,
                                          const std::string &asked) {
  const bool isGpu = file.device() == "cuda";
  Result<codegen::KernelTarget> target =
      codegen::KernelTarget::fromName(!asked.empty() ? asked
                                      : isGpu        ? "sm_80"
                                                     : "native");
  if (target.ok())
    target = target->asEnvironmentAsks();
  if (!target.ok())
    return fail(module, target.status());
  if (target->isGpu != isGpu)
    return fail(module,
                Status::error("--target: the cluster's devices are of "
                              "the kind '" +
                              file.device() + "' and cannot run kernels for '" +
                              target->name + "'"));
  if (failed(checkHalf(module, *target)))
    return failure();
  return *target;
}

void addProgram(planpb::Program program, LoadedPlan &plan) {
  plan.programs.push_back(std::move(program));
  plan.file.add_programs("program-" + std::to_string(plan.programs.size() - 1) +
                         ".pb");
  plan.programs.back().set_index(plan.programs.size() - 1);
}

// Where values go between unlike meshes, ranks of a stage send and receive
// boxes of their own: those with the same ones share a program. The manifest
// has named the stages so far.
void addProgramsOfRanks(ArrayRef<plan::ProgramOp> stages,
                        const llvm::StringMap<codegen::CompiledKernel> &kernels,
                        const Boundaries &boundaries, LoadedPlan &plan) {
  std::map<std::pair<uint32_t, std::string>, uint32_t> known;
  google::protobuf::RepeatedPtrField<planpb::MemoryRow> memory;
  memory.Swap(plan.file.mutable_memory());
  for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
    const uint32_t stage = plan.file.ranks(rank).program();
    planpb::Program program =
        writeProgram(stages[stage], kernels, boundaries, rank);
    program.set_index(0);
    auto [it, fresh] = known.try_emplace(std::pair(stage, serialized(program)),
                                         plan.programs.size());
    if (fresh) {
      addProgram(std::move(program), plan);
      planpb::MemoryRow *row = plan.file.add_memory();
      *row = memory[int(stage)];
      row->set_program(it->second);
    }
    plan.file.mutable_ranks(rank)->set_program(it->second);
  }
}

// Returns how values go between meshes, for reports; of one mesh nothing.
FailureOr<std::string>
addPrograms(ModuleOp module,
            const llvm::StringMap<codegen::CompiledKernel> &kernels,
            LoadedPlan &plan) {
  FailureOr<Boundaries> boundaries = Boundaries::of(module);
  if (failed(boundaries))
    return failure();
  for (const planpb::Channel &channel : boundaries->parts().channels())
    *plan.file.add_channels() = channel;
  SmallVector<plan::ProgramOp> stages(module.getOps<plan::ProgramOp>());
  if (plan.file.meshes_size() > 0) {
    addProgramsOfRanks(stages, kernels, *boundaries, plan);
    return boundaries->description();
  }
  for (plan::ProgramOp program : stages)
    addProgram(writeProgram(program, kernels, *boundaries, 0), plan);
  return std::string();
}

} // namespace

FailureOr<LoadedPlan> describePlan(ModuleOp module,
                                   const PlanWriterOptions &options) {
  LoadedPlan plan;
  std::string constants;
  if (failed(writeManifest(module, plan.file, constants)))
    return failure();
  FailureOr<codegen::KernelTarget> target =
      targetOf(module, plan.file, options.target);
  if (failed(target))
    return failure();
  FailureOr<llvm::StringMap<codegen::CompiledKernel>> kernels =
      codegen::describeKernels(module, *target);
  if (failed(kernels))
    return failure();
  FailureOr<std::string> boundaries = addPrograms(module, *kernels, plan);
  if (failed(boundaries))
    return failure();
  // Files that nobody has written yet.
  const auto name = [&](const char *file, size_t bytes) {
    planpb::FileCheck *check = plan.file.add_files();
    check->set_name(file);
    check->set_bytes(bytes);
    return file;
  };
  if (!kernels->empty())
    plan.file.set_kernels(name("kernels", 0));
  if (!constants.empty())
    plan.file.set_constants(name("constants.bin", constants.size()));
  if (!boundaries->empty())
    name(kBoundariesFile, boundaries->size());
  return plan;
}

FailureOr<BuiltPlan> buildPlan(ModuleOp module,
                               const PlanWriterOptions &options, bool *isBug) {
  BuiltPlan built;
  planpb::PlanFile &file = built.plan.file;
  file.set_producer(options.producer);
  file.set_predicted_step_seconds(options.predictedStepSeconds);
  *file.mutable_decisions() = report::toProto(options.decisions);
  for (const std::string &option : options.options)
    file.add_options(option);
  for (int64_t device : options.devices)
    file.add_devices(uint32_t(device));
  std::string constants;
  if (failed(writeManifest(module, file, constants)))
    return failure();
  const bool isGpu = file.device() == "cuda";
  FailureOr<codegen::KernelTarget> target =
      targetOf(module, file, options.target);
  if (failed(target))
    return failure();
  FailureOr<codegen::KernelObject> kernels = compile(module, *target);
  if (failed(kernels) ||
      failed(checkSharedOperands(module, kernels->kernels))) {
    if (isBug)
      *isBug = true;
    return failure();
  }
  FailureOr<std::string> boundaries =
      addPrograms(module, kernels->kernels, built.plan);
  if (failed(boundaries))
    return failure();
  file.set_version(versionOf(file));
  auto addFile = [&](const char *name, std::string contents) {
    planpb::FileCheck *check = file.add_files();
    check->set_name(name);
    check->set_bytes(contents.size());
    check->set_checksum(planChecksum(contents.data(), contents.size()));
    built.extras.push_back({name, "", std::move(contents)});
  };
  if (!kernels->object.empty()) {
    Result<codegen::KernelFile> library =
        isGpu ? codegen::makeGpuBinary(kernels->object)
              : link(kernels->object, target->sanitizer);
    if (!library.ok())
      return fail(module, library.status());
    file.set_kernels(library->name);
    file.set_kernel_target(target->name);
    addFile(library->name.c_str(), std::move(library->bytes));
  }
  if (!constants.empty()) {
    file.set_constants("constants.bin");
    addFile("constants.bin", std::move(constants));
  }
  if (!options.weights.empty())
    addFile("weights.json", options.weights);
  if (!boundaries->empty())
    addFile(kBoundariesFile, *boundaries);
  recordKernels(built.plan);
  // What a broken program holds is for verifyPlan to say.
  if (verifyStructure(built.plan).ok())
    for (planpb::Program &program : built.plan.programs)
      annotatePartials(program);
  return built;
}

LogicalResult writePlan(ModuleOp module, const PlanWriterOptions &options,
                        bool *isBug) {
  FailureOr<BuiltPlan> built = buildPlan(module, options, isBug);
  if (failed(built))
    return failure();
  Status verified = verifyPlan(built->plan);
  if (!verified.ok()) {
    if (isBug)
      *isBug = true;
    return fail(module,
                std::move(verified).withContext(
                    "internal error: the plan does not pass its verifier"));
  }
  const bool hasKernels = !built->plan.file.kernels().empty();
  Status saved = savePlan(options.directory, std::move(built->plan.file),
                          std::move(built->plan.programs), built->extras);
  if (!saved.ok())
    return fail(module, saved);
  if (Status key = hasKernels ? canSign() : Status(); !key.ok())
    module.emitWarning("the plan is not signed, so merak-run wants "
                       "--trust-plan: " +
                       key.str());
  return success();
}

} // namespace merak
