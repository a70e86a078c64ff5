// Reshardings as plans: the verifier executes all their ranks, and what arrives
// is followed back to who made it.
#include "Execution.h"
#include "Golden.h"

#include "passes/Resharding/Messages.h"
#include "passes/Resharding/ReshardPlan.h"
#include "runtime/layout/LayoutText.h"
#include "runtime/plan/Arrivals.h"
#include "runtime/plan/Verify.h"

#include <gtest/gtest.h>

namespace merak::resharding {
namespace {

using planpb::Instruction;

costmodel::Cluster cluster() {
  return hostCluster(4, 3, 1e9, 1e-5, 1e10, 1e-6);
}

LoadedPlan planned(const Placement &source, const Placement &target,
                   const std::string &strategy) {
  const Boundary boundary{"test", "f32", 4, source, target};
  LoadedPlan plan =
      *planOf(boundary,
              *reshard(source, target, 4, cluster(), *optionsOfPlan(strategy)),
              cluster());
  plan.file.set_version(versionOf(plan.file));
  return plan;
}

// 2 to 3 devices, 3 to 2, 1 to 4, 4 to 1, replicas on both sides.
TEST(ReshardPlan, AllStrategiesPassTheVerifier) {
  std::vector<std::string> all = strategyNames();
  all.push_back("");
  int passesOn = 0;
  for (const auto &[from, a, to, b] :
       std::vector<std::tuple<std::string, std::vector<MeshAxis>, std::string,
                              std::vector<MeshAxis>>>{
           {"[12@x, 256]", {{"x", 2}}, "[12@x, 256]", {{"x", 3}}},
           {"[12, 256@x]", {{"x", 3}}, "[12@x, 256]", {{"x", 2}}},
           {"[512, 256]", {{"x", 1}}, "[512, 256]", {{"x", 4}}},
           {"[512@x, 256]", {{"x", 4}}, "[512, 256]", {{"x", 1}}},
           {"[3 x 8@x x 16, 64]", {{"x", 2}}, "[3 x 8@x x 16, 64]", {{"x", 4}}},
           {"[512@x, 256]",
            {{"x", 2}, {"y", 2}},
            "[512, 256@x]",
            {{"x", 2}, {"y", 2}}},
           {"[]", {{"x", 2}}, "[]", {{"x", 3}}}})
    for (const std::string &strategy : all) {
      int64_t devices = 1;
      for (const MeshAxis &axis : a)
        devices *= axis.size;
      const LoadedPlan plan =
          planned(placed(from, a, 0), placed(to, b, devices), strategy);
      EXPECT_EQ(verifyPlan(plan).str(), "") << from << to << strategy;
      for (const planpb::Program &program : plan.programs)
        passesOn += program.streams_size() > 2;
    }
  EXPECT_GT(passesOn, 20);
}

// One device to three in another node, by a chain in chunks.
LoadedPlan chain() {
  return planned(placed("[1024, 1024]", {{"x", 1}}, 0),
                 placed("[1024, 1024]", {{"x", 3}}, 3), "broadcast");
}

bool sameSender(const Arrival &a, const Arrival &b) {
  return a.sender == b.sender;
}

Instruction &firstSend(planpb::Program &program) {
  for (Instruction &instruction :
       *program.mutable_procedures(0)->mutable_instructions())
    if (instruction.kind() == Instruction::SEND)
      return instruction;
  throw std::logic_error("no send");
}

TEST(ReshardPlan, WhatIsPassedOnIsOfWhoMadeIt) {
  const LoadedPlan plan = chain();
  const CommunicationMap map(plan);
  const Arrivals arrivals(map);
  for (int rank : {1, 2, 3}) {
    int64_t elements = 0;
    for (const Arrival &one : arrivals.of(rank, 0)) {
      EXPECT_EQ(one.sender, 0);
      elements += one.into.elements();
    }
    EXPECT_EQ(elements, 1 << 20);
    EXPECT_TRUE(
        bringTheSame(arrivals.of(rank, 0), arrivals.of(1, 0), sameSender));
  }
  EXPECT_TRUE(arrivals.of(0, 0).empty());
}

// A gather and a chain bring the same in other pieces.
TEST(ReshardPlan, PiecesDoNotMatter) {
  const LoadedPlan a = chain(),
                   b = planned(placed("[1024, 1024]", {{"x", 1}}, 0),
                               placed("[1024, 1024]", {{"x", 3}}, 3),
                               "scatter-gather");
  const CommunicationMap mapA(a), mapB(b);
  const Arrivals of(mapA), others(mapB);
  EXPECT_NE(of.of(3, 0).size(), others.of(3, 0).size());
  EXPECT_TRUE(bringTheSame(of.of(3, 0), others.of(3, 0), sameSender));
  EXPECT_FALSE(bringTheSame(of.of(3, 0), others.of(3, 0),
                            [](const auto &, const auto &) { return false; }));
  EXPECT_FALSE(bringTheSame(of.of(3, 0), of.of(0, 0), sameSender));
}

TEST(ReshardPlan, AnotherBoxPassedOnIsAnotherValue) {
  LoadedPlan plan = chain();
  planpb::Operand *view = firstSend(plan.programs[1]).mutable_inputs(0);
  // The rows behind, which are not there yet.
  view->set_offset(view->offset() + 1024 * view->shape(0));
  const CommunicationMap map(plan);
  const Arrivals arrivals(map);
  EXPECT_FALSE(bringTheSame(arrivals.of(2, 0), arrivals.of(1, 0), sameSender));
  EXPECT_TRUE(bringTheSame(arrivals.of(3, 0), arrivals.of(2, 0), sameSender));
}

TEST(ReshardPlan, WhatIsChangedOnTheWayIsOfWhoChangedIt) {
  LoadedPlan plan = chain();
  planpb::Program &program = plan.programs[1];
  planpb::Procedure *procedure = program.mutable_procedures(0);
  const planpb::Operand whole = procedure->instructions(0).outputs(0);
  Instruction fill;
  fill.set_kind(Instruction::LIBRARY);
  fill.set_op("fill");
  *fill.add_outputs() = whole;
  const planpb::Procedure before = *procedure;
  procedure->clear_instructions();
  *procedure->add_instructions() = before.instructions(0);
  *procedure->add_instructions() = fill;
  for (int i = 1; i < before.instructions_size(); ++i)
    *procedure->add_instructions() = before.instructions(i);
  const CommunicationMap map(plan);
  const Arrivals arrivals(map);
  for (const Arrival &one : arrivals.of(2, 0))
    EXPECT_EQ(one.sender, 1);
  EXPECT_FALSE(arrivals.of(2, 0).empty());
}

} // namespace
} // namespace merak::resharding
