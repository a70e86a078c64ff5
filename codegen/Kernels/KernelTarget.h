// What kernels are compiled for: a level of the x86-64 architecture, or the
// oldest NVIDIA GPU that has to run them. It is fixed at compile time of the
// plan; the runtime never compiles.
#pragma once

#include "runtime/core/Status.h"

#include <memory>
#include <string>

namespace llvm {
class TargetMachine;
} // namespace llvm

namespace merak::codegen {

// Of which sanitizer the program is that loads the kernels: its runtime is
// asked before each of their accesses.
enum class Sanitizer { None, Address, Thread };

struct KernelTarget {
  std::string name;   // "x86-64-v3", "sm_80": as in PlanFile.kernel_target
  std::string triple; // "x86_64-unknown-linux-gnu"
  std::string cpu;    // LLVM's processor name
  bool hasFma = false;
  bool hasRound = false;      // vector floor, ceil, trunc, roundeven
  bool hasHalf = false;       // conversions from and to f16
  unsigned vectorWidth = 128; // bits of the widest register used
  bool isGpu = false;
  // Kernels are programs of one thread of a grid. On a processor such kernels
  // run in a simulated grid, which only tests have.
  bool isGrid = false;
  // Grids are as small as they can be: small kernels show what large ones do.
  // For tests.
  bool hasSmallGrids = false;
  Sanitizer sanitizer = Sanitizer::None;

  // "x86-64" | "x86-64-v3" | "x86-64-v4" | "native" (the best of these that
  // this machine runs) | "sm_80".
  static Result<KernelTarget> fromName(const std::string &name);
  // This target as MERAK_SANITIZE_KERNELS asks for it: "address" or "thread";
  // GPUs have no such kernels.
  Result<KernelTarget> asEnvironmentAsks() const;
  // Whether this machine's processor can run code for the target.
  bool runsHere() const;
};

// Null and `error` set if this LLVM cannot generate code for `target`.
std::unique_ptr<llvm::TargetMachine>
createTargetMachine(const KernelTarget &target, std::string &error);

} // namespace merak::codegen
