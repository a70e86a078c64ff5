// Plans whose stages lie on meshes of their own: who meets whom, what the
// verifier says of lists and pairs that do not fit, and values that differ
// between the ranks of one stage and come from another.
#include "runtime/plan/Communication.h"
#include "runtime/plan/Verify.h"
#include "test/unit/plan/PlanBuilder.h"

#include <filesystem>
#include <gtest/gtest.h>

namespace merak {
namespace {

using planpb::Buffer;
using planpb::Instruction;
using planpb::Program;

// `replicatedPlan` with a mesh for each of its two stages: ranks 0.. of the
// first, ranks dp.. of the last.
LoadedPlan meshesPlan(int dp) {
  LoadedPlan plan = plantest::replicatedPlan(dp);
  planpb::PlanFile &file = plan.file;
  for (int mesh = 0; mesh < 2; ++mesh)
    *file.add_meshes()->mutable_axes() = file.mesh();
  file.clear_mesh();
  planpb::NamedGroup *pairs = file.add_groups();
  pairs->set_name("pairs");
  planpb::Channel *act = file.add_channels(), *grad = file.add_channels();
  act->set_name("act");
  grad->set_name("grad");
  for (int d = 0; d < dp; ++d) {
    file.mutable_ranks(dp + d)->set_mesh(1);
    planpb::RankList *list = pairs->add_lists();
    list->add_ranks(d);
    list->add_ranks(dp + d);
    auto add = [](planpb::Channel *channel, int from, int to) {
      planpb::RankPair *pair = channel->add_pairs();
      pair->set_from(from);
      pair->set_to(to);
    };
    add(act, d, dp + d);
    add(grad, dp + d, d);
  }
  for (Program &program : plan.programs) {
    for (planpb::Group &group : *program.mutable_groups())
      if (group.axes(0) == "pp") {
        group.clear_axes();
        group.set_named("pairs");
      }
    for (planpb::Procedure &procedure : *program.mutable_procedures())
      for (Instruction &instruction : *procedure.mutable_instructions())
        if (!instruction.channel().empty()) {
          instruction.clear_peer();
          instruction.set_channel_index(instruction.channel() == "act" ? 1 : 2);
        }
  }
  return plan;
}

std::string structure(const LoadedPlan &plan) {
  return verifyStructure(plan).str();
}

void dropDpSum(Program &program) {
  auto *instructions = program.mutable_procedures(3)->mutable_instructions();
  for (int i = 0; i < instructions->size(); ++i)
    if ((*instructions)[i].kind() == Instruction::COLLECTIVE)
      return instructions->DeleteSubrange(i, 1);
}

TEST(Meshes, ArePlansLikeOthers) {
  for (int dp : {1, 2, 3})
    EXPECT_EQ(verifyPlan(meshesPlan(dp)).str(), "");
}

TEST(Meshes, RanksMeetByPairsAndLists) {
  LoadedPlan plan = meshesPlan(3);
  RankMap ranks(plan.file);
  EXPECT_EQ(ranks.meshes(), 2);
  EXPECT_EQ(ranks.meshOf(4), 1);
  Instruction send;
  send.set_kind(Instruction::SEND);
  send.set_channel_index(1);
  EXPECT_EQ(ranks.peer(1, send), 4);
  EXPECT_EQ(ranks.peer(4, send), -1); // only receives there
  send.set_kind(Instruction::RECV);
  EXPECT_EQ(ranks.peer(4, send), 1);
  planpb::Group group;
  group.set_named("pairs");
  EXPECT_EQ(ranks.members(5, group), (std::vector<int>{2, 5}));
  group.clear_named();
  group.add_axes("dp"); // inside the own mesh
  EXPECT_EQ(ranks.members(5, group), (std::vector<int>{3, 4, 5}));
  group.set_axes(0, "pp"); // no rank of another mesh
  EXPECT_EQ(ranks.members(5, group), (std::vector<int>{5}));
}

TEST(Meshes, LayoutsReferToTheOwnMesh) {
  LoadedPlan plan = meshesPlan(2);
  plan.file.mutable_meshes(1)->mutable_axes(1)->set_size(5);
  EXPECT_EQ(layoutMesh(plan.file, 0).at("dp"), 2);
  EXPECT_EQ(layoutMesh(plan.file, 3).at("dp"), 5);
  EXPECT_EQ(layoutMesh(plan.file, 3).at("mb"), 2);
}

TEST(Meshes, OnlyTheirPlansAreOfTheNewVersion) {
  const std::string folder =
      (std::filesystem::path(testing::TempDir()) / "meshes.plan").string();
  for (auto [plan, version] :
       {std::pair(plantest::replicatedPlan(2), kOneMeshVersion),
        std::pair(meshesPlan(2), kPlanVersion)}) {
    std::filesystem::remove_all(folder);
    ASSERT_TRUE(savePlan(folder, plan.file, plan.programs).ok());
    Result<LoadedPlan> loaded = loadPlan(folder);
    ASSERT_TRUE(loaded.ok()) << loaded.status().str();
    EXPECT_EQ(loaded->file.version(), version);
    EXPECT_EQ(loaded->programs[0].version(), version);
    EXPECT_EQ(verifyPlan(*loaded).str(), "");
  }
  std::filesystem::remove_all(folder);
}

TEST(Meshes, PairsAndListsThatDoNotFit) {
  LoadedPlan plan = meshesPlan(2);
  planpb::PlanFile &file = plan.file;
  file.mutable_channels(0)->mutable_pairs(1)->set_from(0);
  file.mutable_channels(1)->mutable_pairs(0)->set_to(7);
  file.mutable_groups(0)->mutable_lists(1)->set_ranks(1, 2);
  EXPECT_EQ(structure(plan),
            "manifest · group \"pairs\": rank 2 is there twice\n"
            "manifest · channel \"act\": rank 0 sends twice\n"
            "manifest · channel \"grad\": from rank 2 to 7 of 4\n"
            "program 1 · group 0 is \"pairs\", which rank 3 is not in");
}

TEST(Meshes, ChannelsAndGroupsThatAreNotThere) {
  LoadedPlan plan = meshesPlan(2);
  plan.file.mutable_channels(0)->set_name("other");
  plan.file.mutable_channels()->RemoveLast();
  plan.programs[0].mutable_groups(0)->set_named("none");
  const std::string text = structure(plan);
  for (const char *part :
       {"channel 0 is \"other\", not \"act\"", "channel 1 of 1",
        "group 0 is \"none\", which rank 0 is not in"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(Meshes, ProgramsAndRanksOfNoMesh) {
  LoadedPlan plan = meshesPlan(2);
  plan.file.mutable_ranks(3)->set_mesh(0);
  plan.file.mutable_ranks(1)->set_mesh(2);
  const std::string text = structure(plan);
  for (const char *part : {"rank 1 is of mesh 2, but there are 2",
                           "program 1 runs on meshes 1 and 0"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(Meshes, APairThatOnlyOneEndHas) {
  LoadedPlan plan = meshesPlan(2);
  plan.file.mutable_channels(0)->mutable_pairs()->RemoveLast();
  EXPECT_EQ(verifyMatching(plan).str(),
            "channel \"act\": rank 1 (program 0) sends to a rank that its "
            "pairs do not name, where there is no rank\n"
            "channel \"act\": rank 3 (program 1) receives from a rank that its "
            "pairs do not name, where there is no rank");
}

// Both stages have to sum over their replicas: the last one because of what it
// receives, which differs along dp as the senders do.
TEST(Meshes, SumsThatEveryReplicaForgot) {
  for (int stage : {0, 1}) {
    LoadedPlan plan = meshesPlan(3);
    dropDpSum(plan.programs[stage]);
    const std::string text = verifyPlan(plan).str();
    const std::string tensor = "tensor \"w" + std::to_string(stage) +
                               "\" should be equal on all ranks along dp";
    EXPECT_NE(text.find(tensor), std::string::npos) << text;
  }
}

// One sender may serve replicas whose values are equal: then nothing has to be
// summed, until the sender's replicas differ.
TEST(Meshes, DifferencesTravelBetweenMeshes) {
  LoadedPlan plan = meshesPlan(2);
  Program &stage0 = plan.programs[0], &stage1 = plan.programs[1];
  for (Buffer &x : *stage0.mutable_buffers())
    if (x.name() == "x") {
      auto *factor = x.mutable_layout()->mutable_dims(0)->mutable_factors(0);
      factor->clear_axes();
      factor->add_axes("mb");
    }
  dropDpSum(stage0);
  dropDpSum(stage1);
  EXPECT_EQ(verifyReplication(plan).str(), "");
  stage1.mutable_procedures(2)
      ->mutable_instructions(0)
      ->mutable_scalars(0)
      ->set_coordinate("dp");
  const std::string text = verifyReplication(plan).str();
  for (const char *tensor : {"tensor \"w0\"", "tensor \"w1\""})
    EXPECT_NE(text.find(tensor), std::string::npos) << tensor << "\n" << text;
}

} // namespace
} // namespace merak
