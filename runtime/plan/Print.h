// Plans as text: for reading, for golden tests, for comparing two plans.
#pragma once

#include "runtime/plan/Plan.h"

#include <span>

namespace merak {

// Manifest and all programs. Stable: the same plan gives the same text, and
// buffers appear by name, so that one more buffer changes one line.
std::string printPlan(const LoadedPlan &plan);
std::string printManifest(const planpb::PlanFile &file);
// `file` may be null; with it the ranks that run the program are named.
std::string printProgram(const planpb::Program &program,
                         const planpb::PlanFile *file = nullptr);

// Lines that differ, in the manner of a unified diff with headings; empty if
// the plans print alike. Checksums and indices of instructions are left out.
std::string diffPlans(const LoadedPlan &a, const LoadedPlan &b);

// "12.3 MiB"; exact below 1 KiB.
std::string humanBytes(uint64_t bytes);
// "3" or "0-3, 8".
std::string rankList(const std::vector<int> &ranks);

// Bytes at the peak per program and category with the ranks that run it:
//   program  ranks  parameters  gradients ...  arena
// Rows: PlanFile.memory; arenas: Program.arena_bytes, in order of programs.
std::string memoryTable(const planpb::PlanFile &file,
                        std::span<const uint64_t> arenas);
std::string memoryTable(const LoadedPlan &plan);

} // namespace merak
