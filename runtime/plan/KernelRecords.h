// Generated kernels are code for certain operands: sizes, strides and types are
// numbers in it. The manifest records with which signatures the compiler calls
// each of them, so that an instruction that differs is found before its kernel
// writes past a buffer.
#pragma once

#include "runtime/plan/Plan.h"

#include <set>
#include <utility>

namespace merak {

// (kernel, signature of a call of it)
using KernelSignatures = std::set<std::pair<std::string, uint64_t>>;

// Rows, types, sizes and strides of operands, and which scalars there are. Not
// where operands lie. Buffers of operands must exist.
uint64_t kernelSignature(const planpb::Program &program,
                         const planpb::Instruction &instruction);

// Puts those of all programs into the manifest.
void recordKernels(LoadedPlan &plan);
KernelSignatures kernelRecords(const planpb::PlanFile &file);

} // namespace merak
