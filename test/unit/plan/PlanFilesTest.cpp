// Plan directories: round trip, and one sentence for each way they break.
#include "runtime/plan/Plan.h"
#include "runtime/plan/Serialized.h"
#include "test/unit/plan/PlanBuilder.h"

#include <filesystem>
#include <fstream>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace merak {
namespace {

using google::protobuf::util::MessageDifferencer;

class PlanFiles : public testing::Test {
protected:
  void SetUp() override {
    root = fs::temp_directory_path() /
           ("merak-plan-test-" + std::to_string(::getpid()) + "-" +
            testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root);
    fs::create_directories(root);
    dir = (root / "out.plan").string();
    LoadedPlan sample = plantest::samplePlan();
    sample.file.set_constants("constants.bin");
    Status saved = savePlan(dir, sample.file, sample.programs,
                            {{"constants.bin", "", "some constants"}});
    ASSERT_TRUE(saved.ok()) << saved.str();
  }
  void TearDown() override { fs::remove_all(root); }

  std::string read(const std::string &name) {
    std::ifstream in(dir + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string &name, const std::string &bytes) {
    std::ofstream(dir + "/" + name, std::ios::binary) << bytes;
  }
  // The message of loading, with the directory's name shortened.
  std::string loadError() {
    Result<LoadedPlan> plan = loadPlan(dir);
    if (plan.ok())
      return "";
    std::string text = plan.status().str();
    for (size_t at; (at = text.find(dir)) != std::string::npos;)
      text.replace(at, dir.size(), "DIR");
    return text;
  }

  fs::path root;
  std::string dir;
};

TEST_F(PlanFiles, RoundTrip) {
  Result<LoadedPlan> plan = loadPlan(dir);
  ASSERT_TRUE(plan.ok()) << plan.status().str();
  LoadedPlan want = plantest::samplePlan();
  ASSERT_EQ(plan->programs.size(), 2u);
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(
        MessageDifferencer::Equals(plan->programs[i], want.programs[i]));
  plan->file.clear_files();
  plan->file.clear_checksum();
  plan->file.clear_programs();
  plan->file.clear_constants();
  EXPECT_TRUE(MessageDifferencer::Equals(plan->file, want.file));
  // Nothing beside the plan is left over.
  EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 1);
}

TEST_F(PlanFiles, SavingTwiceGivesTheSameBytes) {
  std::string manifest = read("plan.pb"), program = read("program-1.pb");
  Result<LoadedPlan> plan = loadPlan(dir);
  ASSERT_TRUE(plan.ok());
  Status saved = savePlan(dir, plan->file, plan->programs,
                          {{"constants.bin", "", "some constants"}});
  ASSERT_TRUE(saved.ok()) << saved.str();
  EXPECT_EQ(read("plan.pb"), manifest);
  EXPECT_EQ(read("program-1.pb"), program);
  EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 1);
}

TEST_F(PlanFiles, SavingLeavesOtherDirectoriesAlone) {
  fs::path other = root / "thesis";
  fs::create_directories(other);
  std::ofstream(other / "chapter1.txt") << "text";
  LoadedPlan sample = plantest::samplePlan();
  Status saved = savePlan(other.string(), sample.file, sample.programs);
  EXPECT_EQ(saved.str(), other.string() +
                             ": is not empty and not a plan, so it is left "
                             "alone");
  EXPECT_TRUE(fs::exists(other / "chapter1.txt"));
}

TEST_F(PlanFiles, FailedSaveKeepsTheOldPlan) {
  LoadedPlan sample = plantest::samplePlan();
  Status saved = savePlan(dir, sample.file, sample.programs,
                          {{"kernels.so", (root / "absent").string(), ""}});
  EXPECT_EQ(saved.str(), (root / "absent").string() + ": missing");
  EXPECT_EQ(loadError(), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(root), {}), 1);
}

TEST_F(PlanFiles, UnwritablePlace) {
  LoadedPlan sample = plantest::samplePlan();
  std::string bad = dir + "/plan.pb/out.plan";
  Status saved = savePlan(bad, sample.file, sample.programs);
  EXPECT_EQ(saved.str(), bad + ": cannot be created: Not a directory");
}

TEST_F(PlanFiles, Missing) {
  fs::rename(dir, dir + ".away");
  EXPECT_EQ(loadError(), "DIR: no such plan");
  fs::create_directories(dir);
  EXPECT_EQ(loadError(), "DIR: not a plan: it holds no plan.pb");
  fs::remove_all(dir);
  std::ofstream(dir) << "a file";
  EXPECT_EQ(loadError(), "DIR: a plan is a directory, this is a file");
}

TEST_F(PlanFiles, MissingProgramsAreAllReported) {
  fs::remove(dir + "/program-0.pb");
  fs::remove(dir + "/constants.bin");
  EXPECT_EQ(loadError(),
            "DIR/program-0.pb: missing\nDIR/constants.bin: missing");
}

TEST_F(PlanFiles, TruncatedProgram) {
  std::string bytes = read("program-1.pb");
  write("program-1.pb", bytes.substr(0, bytes.size() - 7));
  EXPECT_EQ(loadError(),
            "DIR/program-1.pb: truncated: " + std::to_string(bytes.size() - 7) +
                " bytes, expected " + std::to_string(bytes.size()));
}

TEST_F(PlanFiles, TruncationsOfTheManifestAreFound) {
  std::string bytes = read("plan.pb");
  for (size_t n = 0; n < bytes.size(); n += 3) {
    write("plan.pb", bytes.substr(0, n));
    ASSERT_NE(loadError(), "") << n << " bytes";
  }
  write("plan.pb", bytes.substr(0, 100));
  EXPECT_EQ(loadError(), "DIR/plan.pb: truncated, or not a plan (100 bytes "
                         "without the closing checksum)");
}

TEST_F(PlanFiles, CorruptedBytesAreFound) {
  for (const char *name : {"plan.pb", "program-0.pb", "constants.bin"}) {
    std::string bytes = read(name);
    for (size_t n = 0; n < bytes.size(); n += 29) {
      std::string broken = bytes;
      broken[n] ^= 0x10;
      write(name, broken);
      ASSERT_NE(loadError(), "") << name << " byte " << n;
    }
    write(name, bytes);
    EXPECT_EQ(loadError(), "");
  }
}

TEST_F(PlanFiles, CorruptedProgramIsNamed) {
  std::string bytes = read("program-0.pb");
  bytes[bytes.size() / 2] ^= 1;
  write("program-0.pb", bytes);
  EXPECT_EQ(loadError().rfind("DIR/program-0.pb: corrupted: checksum ", 0), 0u)
      << loadError();
}

TEST_F(PlanFiles, NewerVersion) {
  // A manifest as a later program writes it: same closing checksum.
  planpb::PlanFile file;
  file.set_version(kPlanVersion + 1);
  file.set_producer("later");
  std::string bytes = file.SerializeAsString();
  uint64_t checksum = planChecksum(bytes.data(), bytes.size());
  std::string sealed = bytes + "\xc9\x01";
  sealed.append(reinterpret_cast<const char *>(&checksum), 8);
  write("plan.pb", sealed);
  const char *want = "DIR/plan.pb: plan version 4 is newer than version 3, "
                     "which this program reads; use the tools that wrote the "
                     "plan";
  EXPECT_EQ(loadError(), want);
  // Or without one.
  write("plan.pb", bytes);
  EXPECT_EQ(loadError(), want);
}

TEST_F(PlanFiles, OlderVersion) {
  planpb::PlanFile file;
  file.set_version(kOneMeshVersion - 1);
  std::string bytes = file.SerializeAsString();
  uint64_t checksum = planChecksum(bytes.data(), bytes.size());
  bytes += "\xc9\x01";
  bytes.append(reinterpret_cast<const char *>(&checksum), 8);
  write("plan.pb", bytes);
  EXPECT_EQ(loadError(),
            "DIR/plan.pb: plan version 1 is older than version 2, which this "
            "program reads; compile the model again");
}

// Programs of ranks are shared where their bytes are equal.
TEST(Plan, EqualMessagesHaveEqualBytes) {
  std::vector<std::unique_ptr<planpb::Instruction>> all; // at many addresses
  std::string bytes;
  for (int round = 0; round < 100; ++round) {
    planpb::Instruction &one =
        *all.emplace_back(std::make_unique<planpb::Instruction>());
    for (int i = 0; i < 8; ++i) // in another order each time
      (*one.mutable_attrs())["a" + std::to_string((i + round) % 8)] = "1";
    if (round == 0)
      bytes = serialized(one);
    EXPECT_EQ(serialized(one), bytes);
  }
}

TEST(Plan, PeersAndGroups) {
  LoadedPlan plan = plantest::replicatedPlan(3);
  RankMap ranks(plan.file);
  planpb::Instruction send;
  planpb::Axis *peer = send.add_peer();
  peer->set_name("pp");
  peer->set_size(1);
  EXPECT_EQ(ranks.neighbour(2, send.peer()), 5);
  peer->set_size(2);
  EXPECT_EQ(ranks.neighbour(2, send.peer()), -1);
  planpb::Group group;
  group.add_axes("dp");
  EXPECT_EQ(ranks.members(4, group.axes()), (std::vector<int>{3, 4, 5}));
  group.add_axes("pp"); // row major by the listed axes
  EXPECT_EQ(ranks.members(4, group.axes()),
            (std::vector<int>{0, 3, 1, 4, 2, 5}));
}

TEST(Plan, LayoutsSurviveTheSchema) {
  layout::Layout layout;
  layout.dims = {{{{8, {"mb", "dp"}}, {32, {}}}}, {{{64, {"tp"}}}}, {}};
  layout.partial = {"tp"};
  EXPECT_EQ(fromProto(toProto(layout)), layout);
}

TEST(Plan, AddressesFollowSlots) {
  LoadedPlan plan = plantest::samplePlan();
  const planpb::Program &program = plan.programs[0];
  const planpb::Buffer &h = program.buffers(2);
  EXPECT_EQ(bufferAddress(h, program.calls(1)), h.offset());
  EXPECT_EQ(bufferAddress(h, program.calls(2)), h.offset() + h.slot_stride());
}

} // namespace
} // namespace merak
