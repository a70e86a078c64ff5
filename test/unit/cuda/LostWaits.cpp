// merak-lost-waits PLAN DATA SEEDS: the plan on the emulated device in SEEDS
// orders of its streams' work, which must all leave the same bytes in the
// ranks' memory; and then again for each wait of it, without that one.
//
// A wait between calls, or of an instruction for an event, is redundant if the
// verifier finds no race without it, or if other waits, and communication with
// other ranks, which the verifier of memory does not look at, order the same.
// Each other one must change some bytes in one of the orders, those must not.
// Prints what it found of each wait and exits with 1 if the two disagree.
#include "runtime/backends/cuda/CudaBackend.h"
#include "runtime/data/DataSource.h"
#include "runtime/launch/Session.h"
#include "runtime/plan/Describe.h"
#include "runtime/plan/Verify.h"
#include "test/unit/cuda/EmulatedDevice.h"
#include "test/unit/cuda/GlobalOrder.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace merak {
namespace {

constexpr int kSteps = 3;

// A wait: of an instruction (`call` false: place.first a procedure), or of a
// call (place.first a call), and which one of it.
struct Wait {
  int program;
  bool ofCall;
  int first, second;
};

std::vector<Wait> waitsOf(const LoadedPlan &plan) {
  std::vector<Wait> waits;
  for (int g = 0; g < int(plan.programs.size()); ++g) {
    const planpb::Program &program = plan.programs[g];
    for (int p = 0; p < program.procedures_size(); ++p)
      for (int i = 0; i < program.procedures(p).instructions_size(); ++i)
        if (program.procedures(p).instructions(i).kind() ==
            planpb::Instruction::WAIT)
          waits.push_back({g, false, p, i});
    for (int c = 0; c < program.calls_size(); ++c)
      for (int w = 0; w < program.calls(c).waits_size(); ++w)
        waits.push_back({g, true, c, w});
  }
  return waits;
}

std::string describe(const LoadedPlan &plan, const Wait &wait) {
  const planpb::Program &program = plan.programs[wait.program];
  if (!wait.ofCall)
    return fmt::format("program {} · {}", wait.program,
                       merak::describe(program, wait.first, wait.second));
  const planpb::CallWait &proto = program.calls(wait.first).waits(wait.second);
  return fmt::format("program {} · call {}: stream {} for stream {} of call {}",
                     wait.program, wait.first, proto.stream(), proto.on(),
                     proto.call());
}

LoadedPlan without(LoadedPlan plan, const Wait &wait) {
  planpb::Program &program = plan.programs[wait.program];
  if (wait.ofCall)
    program.mutable_calls(wait.first)
        ->mutable_waits()
        ->DeleteSubrange(wait.second, 1);
  else
    program.mutable_procedures(wait.first)
        ->mutable_instructions(wait.second)
        ->set_kind(planpb::Instruction::NOP);
  return plan;
}

bool impliedByOthers(const LoadedPlan &plan, const LoadedPlan &without,
                     const Wait &wait) {
  const test::GlobalOrder order(without);
  return wait.ofCall ? order.callHolds(wait.program, wait.first,
                                       plan.programs[wait.program]
                                           .calls(wait.first)
                                           .waits(wait.second))
                     : order.eventHolds(wait.program, wait.first, wait.second);
}

// What a few steps leave in memory.
Result<uint64_t> run(LoadedPlan plan, const std::string &path, uint64_t seed) {
  cuda::Emulation emulation;
  emulation.seed = seed;
  auto device = std::make_shared<cuda::EmulatedDevice>(emulation);
  runtime::SessionOptions options;
  options.threads = 1;
  // A rank that goes on with what it should not have yet may well compute what
  // is not finite.
  options.onNonFinite = runtime::OnNonFinite::ignore;
  auto session = runtime::Session::create(
      std::move(plan),
      [&](runtime::ThreadPool &) -> Result<std::unique_ptr<runtime::Backend>> {
        return std::unique_ptr<runtime::Backend>(
            std::make_unique<cuda::CudaBackend>(device));
      },
      options);
  if (!session)
    return session.status();
  runtime::DataOptions dataOptions;
  dataOptions.path = path;
  auto data = runtime::openData((*session)->plan().file, dataOptions);
  if (!data)
    return data.status();
  (*session)->setData(std::move(*data));
  MERAK_RETURN_IF_ERROR((*session)->loadWeights(""));
  for (int step = 0; step < kSteps; ++step)
    if (auto result = (*session)->step(); !result)
      return result.status();
  return device->contentHash();
}

// The first seed by which the plan leaves other bytes, or fails; 0: none.
Result<uint64_t> firstOther(const LoadedPlan &plan, const std::string &path,
                            uint64_t expected, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    auto found = run(plan, path, seed);
    if (!found || *found != expected)
      return seed;
  }
  return uint64_t{0};
}

int disagreements(const LoadedPlan &plan, const std::string &path,
                  uint64_t expected, uint64_t seeds) {
  int needed = 0, free = 0, implied = 0, wrong = 0;
  for (const Wait &wait : waitsOf(plan)) {
    const LoadedPlan other = without(plan, wait);
    const bool races = !verifyMemory(other, wait.program).ok();
    const bool isImplied = races && impliedByOthers(plan, other, wait);
    const uint64_t seed = *firstOther(other, path, expected, seeds);
    const bool isNeeded = races && !isImplied;
    ++(isNeeded ? needed : isImplied ? implied : free);
    const bool agree = isNeeded == (seed != 0);
    wrong += !agree;
    if (!agree && races) // what it should have changed
      std::printf("%s\n", verifyMemory(other, wait.program).str().c_str());
    std::printf("%s%s: %s, %s\n",
                agree ? "" : "wrong: ", describe(plan, wait).c_str(),
                isNeeded    ? "needed"
                : isImplied ? "implied by others"
                            : "orders no accesses",
                seed ? fmt::format("found by seed {}", seed).c_str()
                     : "changes nothing");
  }
  std::printf("%d waits are needed, %d implied by others, %d order no "
              "accesses\n",
              needed, implied, free);
  return wrong;
}

int report(const Status &status) {
  std::fprintf(stderr, "%s\n", status.str().c_str());
  return 1;
}

int lostWaits(const std::string &file, const std::string &data,
              uint64_t seeds) {
  auto plan = loadPlan(file);
  if (!plan)
    return report(plan.status());
  if (Status status = verifyPlan(*plan); !status.ok())
    return report(status);
  auto expected = run(*plan, data, 0);
  if (!expected)
    return report(expected.status());
  if (const uint64_t seed = *firstOther(*plan, data, *expected, seeds))
    return report(Status::error(fmt::format(
        "the whole plan computes something else with seed {}", seed)));
  return disagreements(*plan, data, *expected, seeds) > 0;
}

} // namespace
} // namespace merak

int main(int argc, char **argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: merak-lost-waits PLAN DATA SEEDS\n");
    return 2;
  }
  return merak::lostWaits(argv[1], argv[2],
                          std::strtoull(argv[3], nullptr, 10));
}
