#include "codegen/Kernels/KernelTarget.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/Target/TargetOptions.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/TargetParser/Triple.h"

#include <cstdlib>
#include <mutex>

namespace merak::codegen {

static constexpr const char *kLevels[] = {"x86-64-v4", "x86-64-v3", "x86-64"};

Result<KernelTarget> KernelTarget::fromName(const std::string &name) {
  if (name == "native") {
    for (const char *level : kLevels) {
      Result<KernelTarget> target = fromName(level);
      if (target->runsHere())
        return target;
    }
    return Status::error("no kernel target runs on this machine; expected an "
                         "x86-64 processor");
  }
  KernelTarget target;
  target.name = name;
  target.cpu = name;
  target.triple = "x86_64-unknown-linux-gnu";
  if (name == "sm_80") {
    target.triple = "nvptx64-nvidia-cuda";
    target.hasFma = target.hasRound = target.hasHalf = true;
    target.isGpu = target.isGrid = true;
  } else if (name == "x86-64-v4" || name == "x86-64-v3") {
    target.hasFma = target.hasRound = target.hasHalf = true;
    target.vectorWidth = name == "x86-64-v4" ? 512 : 256;
  } else if (name != "x86-64") {
    return Status::error("unknown kernel target '" + name +
                         "'; expected x86-64, x86-64-v3, x86-64-v4, native or "
                         "sm_80");
  }
  return target;
}

Result<KernelTarget> KernelTarget::asEnvironmentAsks() const {
  const char *text = std::getenv("MERAK_SANITIZE_KERNELS");
  if (!text || isGpu)
    return *this;
  const std::string asked = text;
  if (asked != "address" && asked != "thread")
    return Status::error("MERAK_SANITIZE_KERNELS: expected address or thread, "
                         "found \"" +
                         asked + "\"");
  Result<KernelTarget> target = *this;
  target->sanitizer =
      asked == "thread" ? Sanitizer::Thread : Sanitizer::Address;
  target->name += "+" + asked;
  return target;
}

bool KernelTarget::runsHere() const {
#if !defined(__x86_64__)
  return false;
#else
  if (isGpu)
    return false;
  llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  auto has = [&](std::initializer_list<const char *> names) {
    for (const char *feature : names)
      if (!features.lookup(feature))
        return false;
    return true;
  };
  if (vectorWidth >= 256 && !has({"avx2", "fma", "f16c", "bmi", "bmi2"}))
    return false;
  if (vectorWidth >= 512 &&
      !has({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}))
    return false;
  return true;
#endif
}

std::unique_ptr<llvm::TargetMachine>
createTargetMachine(const KernelTarget &target, std::string &error) {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
  });
  llvm::Triple triple(target.triple);
  const llvm::Target *backend =
      llvm::TargetRegistry::lookupTarget(triple, error);
  if (!backend)
    return nullptr;
  llvm::TargetOptions options;
  // Every operation rounds once: no contraction across operations.
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> machine(backend->createTargetMachine(
      triple, target.cpu, "", options, llvm::Reloc::PIC_, std::nullopt,
      llvm::CodeGenOptLevel::Default));
  if (!machine)
    error = "no code generator for " + target.triple;
  return machine;
}

} // namespace merak::codegen
