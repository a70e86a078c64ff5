#include "runtime/plan/Shares.h"
#include "runtime/plan/Verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

using namespace merak::planpb;

namespace merak {

std::set<int64_t> trainedBy(const Program &program) {
  std::set<int64_t> microbatches;
  for (const Call &call : program.calls())
    if (call.microbatch() >= 0 &&
        program.procedures(int(call.procedure())).action() !=
            ScheduleStep::PROLOGUE)
      microbatches.insert(call.microbatch());
  return microbatches;
}

// A program by which each share is told.
static std::map<std::set<int64_t>, size_t> sharesOf(const LoadedPlan &plan) {
  std::map<std::set<int64_t>, size_t> shares;
  for (size_t p = 0; p < plan.programs.size(); ++p)
    if (std::set<int64_t> own = trainedBy(plan.programs[p]); !own.empty())
      shares.emplace(std::move(own), p);
  return shares;
}

bool hasShares(const LoadedPlan &plan) { return sharesOf(plan).size() > 1; }

Status verifyShares(const LoadedPlan &plan) {
  const std::map<std::set<int64_t>, size_t> shares = sharesOf(plan);
  if (shares.size() < 2)
    return {};
  Status problems;
  std::map<int64_t, size_t> trained;
  for (const auto &[share, program] : shares)
    for (int64_t microbatch : share)
      if (auto [it, fresh] = trained.emplace(microbatch, program); !fresh)
        problems.merge(Status::error(fmt::format(
            "program {} · microbatch {} is trained by program {} too, which "
            "has other microbatches: a pipeline trains its own alone",
            program, microbatch, it->second)));
  std::vector<int64_t> missing;
  for (int64_t microbatch = 0; microbatch < plan.file.microbatches();
       ++microbatch)
    if (!trained.count(microbatch))
      missing.push_back(microbatch);
  if (!missing.empty())
    problems.merge(Status::error(
        fmt::format("no program trains microbatch{} {}",
                    missing.size() > 1 ? "es" : "", fmt::join(missing, ", "))));
  return problems;
}

} // namespace merak
