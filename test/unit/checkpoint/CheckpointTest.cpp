// What one layout saves, every other layout loads, bit by bit.
#include "test/unit/checkpoint/CheckpointTesting.h"

#include <filesystem>

namespace merak::runtime::test {
namespace {

// Dimension 12 = 3 x 4@tp: each rank holds three boxes.
planpb::Layout fused() {
  planpb::Layout layout = layoutOf({{5, {}}});
  planpb::DimLayout &dim = *layout.add_dims();
  dim.add_factors()->set_size(3);
  planpb::Factor &heads = *dim.add_factors();
  heads.set_size(4);
  heads.add_axes("tp");
  return layout;
}

// The same tensors on four meshes.
std::unique_ptr<Holder> holder(int kind) {
  const planpb::Tensor::Role frozen = planpb::Tensor::FROZEN,
                             optimizer = planpb::Tensor::OPTIMIZER,
                             parameter = planpb::Tensor::PARAMETER;
  std::unique_ptr<Holder> h;
  switch (kind) {
  case 0: // one rank
    h = std::make_unique<Holder>(1, 1, 1);
    h->add("w", {6, 8}, {{6, {}}, {8, {}}});
    h->add("qkv", {5, 12}, {{5, {}}, {12, {}}});
    h->add("tied", {4, 3}, {{4, {}}, {3, {}}});
    h->add("scalar", {}, Dims{});
    h->add("mask", {2}, {{2, {}}}, {0}, frozen);
    h->add("w.exp_avg", {6, 8}, {{6, {}}, {8, {}}}, {0}, optimizer);
    break;
  case 1: // replicas and rows
    h = std::make_unique<Holder>(1, 2, 2);
    h->add("w", {6, 8}, {{6, {"tp"}}, {8, {}}});
    h->add("qkv", {5, 12}, fused(), {0}, parameter);
    h->add("tied", {4, 3}, {{4, {"tp"}}, {3, {}}});
    h->add("scalar", {}, Dims{});
    h->add("mask", {2}, {{2, {}}}, {0}, frozen);
    // Optimizer state over replicas too.
    h->add("w.exp_avg", {6, 8}, {{6, {"tp"}}, {8, {"dp"}}}, {0}, optimizer);
    break;
  case 2: // two stages, columns, a tied weight on both
    h = std::make_unique<Holder>(2, 1, 4);
    h->add("w", {6, 8}, {{6, {}}, {8, {"tp"}}}, {1});
    h->add("qkv", {5, 12}, fused(), {0}, parameter);
    h->add("tied", {4, 3}, {{4, {"tp"}}, {3, {}}}, {0, 1});
    h->add("scalar", {}, Dims{}, {1});
    h->add("mask", {2}, {{2, {}}}, {0}, frozen);
    h->add("w.exp_avg", {6, 8}, {{6, {}}, {8, {"tp"}}}, {1}, optimizer);
    break;
  default: // stages that hold the tied weight in different layouts
    h = std::make_unique<Holder>(2, 1, 2);
    h->add("w", {6, 8}, {{6, {"tp"}}, {8, {}}}, {0});
    h->add("qkv", {5, 12}, fused(), {1}, parameter);
    h->add("tied", {4, 3}, {{4, {"tp"}}, {3, {}}}, {0});
    ProgramBuilder builder(h->plan.programs[1]);
    const uint32_t tied = builder.buffer("tied", planpb::F32, {4, 3});
    builder.at(tied).set_tensor("tied");
    *builder.at(tied).mutable_layout() = layoutOf({{4, {}}, {3, {}}});
    h->add("scalar", {}, Dims{}, {0});
    h->add("mask", {2}, {{2, {}}}, {1}, frozen);
    h->add("w.exp_avg", {6, 8}, {{6, {}}, {8, {}}}, {0}, optimizer);
    break;
  }
  h->start();
  return h;
}

const char *const kNames[] = {"w",      "qkv",  "tied",
                              "scalar", "mask", "w.exp_avg"};

Status load(Holder &h, const std::string &path, CheckpointState &state) {
  TensorStore checkpoint;
  MERAK_RETURN_IF_ERROR(openCheckpoint(h.plan, path, checkpoint, state));
  auto store = TensorStore::fromPlan(h.plan, &checkpoint);
  if (!store)
    return store.status();
  for (const auto &[name, tensor] : checkpoint.tensors())
    store->add(name, tensor);
  return loadTensors(h.plan, h.ranks, *store);
}

} // namespace

TEST(Checkpoint, EveryLayoutLoadsEveryOther) {
  for (int from = 0; from < 4; ++from) {
    const std::string dir = temporaryFolder() + "/checkpoint";
    auto source = holder(from);
    source->fill(1000);
    const Status saved =
        saveCheckpoint(source->plan, source->ranks, dir, {7, 56, ""});
    ASSERT_TRUE(saved.ok()) << saved.str();
    for (int to = 0; to < 4; ++to) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      auto target = holder(to);
      target->fill(-1);
      CheckpointState state;
      const Status status = load(*target, dir, state);
      ASSERT_TRUE(status.ok()) << status.str();
      EXPECT_EQ(state.step, 7);
      EXPECT_EQ(state.samples, 56);
      EXPECT_EQ(state.note, "");
      for (const char *name : kNames)
        EXPECT_EQ(target->gather(name), source->gather(name)) << name;
      // Replicas too: all that a rank holds comes from the checkpoint.
      auto expected = holder(to);
      expected->fill(1000);
      for (size_t r = 0; r < target->ranks.size(); ++r)
        EXPECT_EQ(
            std::memcmp(target->ranks[r].program->bufferData(0),
                        expected->ranks[r].program->bufferData(0),
                        expected->ranks[r].program->proto().arena_bytes()),
            0)
            << "rank " << r;
    }
  }
}

// No byte is written twice: replicas leave it to the first.
TEST(Checkpoint, EachBoxHasOneWriter) {
  for (int kind = 0; kind < 4; ++kind) {
    const std::string dir = temporaryFolder() + "/checkpoint";
    auto source = holder(kind);
    ASSERT_TRUE(saveCheckpoint(source->plan, source->ranks, dir, {}).ok());
    int64_t elements = 0;
    for (const auto &file : std::filesystem::directory_iterator(dir)) {
      if (file.path().extension() != ".safetensors")
        continue;
      auto shard = openSafetensors(file.path().string());
      ASSERT_TRUE(shard.ok());
      for (const auto &[name, entry] : shard->tensors) {
        int64_t size = 1;
        for (int64_t extent : entry.shape)
          size *= extent;
        elements += size;
      }
    }
    EXPECT_EQ(elements, 48 + 60 + 12 + 1 + 2 + 48) << kind;
  }
}

TEST(Checkpoint, ReplacesCheckpointsAndNothingElse) {
  const std::string dir = temporaryFolder();
  auto source = holder(0);
  ASSERT_TRUE(
      saveCheckpoint(source->plan, source->ranks, dir + "/a/", {1, 1, ""})
          .ok());
  ASSERT_TRUE(
      saveCheckpoint(source->plan, source->ranks, dir + "/a", {2, 2, ""}).ok());
  CheckpointState state;
  ASSERT_TRUE(load(*source, dir + "/a", state).ok());
  EXPECT_EQ(state.step, 2);
  std::filesystem::create_directories(dir + "/precious");
  writeFile(dir + "/precious/letter", "dear");
  EXPECT_EQ(
      saveCheckpoint(source->plan, source->ranks, dir + "/precious", {}).str(),
      "\"" + dir +
          "/precious\" is there and is not a checkpoint; it is not "
          "replaced");
  EXPECT_EQ(readFile(dir + "/precious/letter"), "dear");
  int left = 0;
  for ([[maybe_unused]] const auto &entry :
       std::filesystem::directory_iterator(dir))
    ++left;
  EXPECT_EQ(left, 2) << "temporary folders are removed";
}

TEST(Checkpoint, AnotherModelIsRefusedWithEveryDifference) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  Holder other(1, 1, 1);
  other.add("w", {6, 9}, {{6, {}}, {9, {}}});
  other.add("extra", {2}, {{2, {}}});
  other.add("extra.exp_avg", {2}, {{2, {}}}, {0}, planpb::Tensor::OPTIMIZER);
  other.add("scalar", {}, Dims{});
  other.start();
  ASSERT_TRUE(saveCheckpoint(other.plan, other.ranks, dir, {}).ok());
  auto target = holder(1);
  CheckpointState state;
  const std::string at = "\"" + dir + "\": ";
  EXPECT_EQ(load(*target, dir, state).str(),
            at + "tensor \"w\" is f32[6,9], the plan has f32[6,8]\n" + at +
                "parameter \"qkv\" is missing\n" + at +
                "parameter \"tied\" is missing\n" + at +
                "the plan has no parameter \"extra\"");
}

// A file of parameters as other programs write it.
TEST(Checkpoint, PlainParametersStartWithoutOptimizer) {
  const std::string path = temporaryFolder() + "/model.safetensors";
  auto source = holder(0);
  source->fill(5);
  std::vector<SafetensorsOutput> tensors;
  for (const char *name : {"w", "qkv", "tied", "scalar"}) {
    std::vector<int64_t> shape;
    for (const planpb::Tensor &tensor : source->plan.file.tensors())
      if (tensor.name() == name)
        shape.assign(tensor.shape().begin(), tensor.shape().end());
    tensors.push_back(
        {name, planpb::F32, shape, [bytes = source->gather(name)](char *data) {
           std::memcpy(data, bytes.data(), bytes.size());
           return Status();
         }});
  }
  ASSERT_TRUE(writeSafetensors(path, tensors).ok());
  auto target = holder(2);
  target->fill(9);
  CheckpointState state;
  const Status status = load(*target, path, state);
  ASSERT_TRUE(status.ok()) << status.str();
  EXPECT_EQ(state.step, 0);
  EXPECT_EQ(state.note, "1 optimizer tensors are not in \"" + path +
                            "\" and start from zero");
  for (const char *name : {"w", "qkv", "tied", "scalar"})
    EXPECT_EQ(target->gather(name), source->gather(name)) << name;
  EXPECT_EQ(target->gather("w.exp_avg"), std::string(48 * 4, '\0'));
}

TEST(Checkpoint, DamageIsASentence) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  auto source = holder(1);
  ASSERT_TRUE(saveCheckpoint(source->plan, source->ranks, dir, {}).ok());
  CheckpointState state;
  auto error = [&] { return load(*source, dir, state).str(); };
  const std::string index = readFile(dir + "/index.json");
  const std::string shard = readFile(dir + "/rank-0.safetensors");

  writeFile(dir + "/index.json", index.substr(0, index.size() / 2));
  EXPECT_EQ(error(), "\"" + dir +
                         "/index.json\": not the index of a "
                         "checkpoint");
  std::string newer = index;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 2");
  writeFile(dir + "/index.json", newer);
  EXPECT_EQ(error(),
            "\"" + dir + "/index.json\": version 2 is newer than this program");
  writeFile(dir + "/index.json", index);
  writeFile(dir + "/rank-0.safetensors", shard.substr(0, shard.size() - 4));
  EXPECT_NE(error().find("rank-0.safetensors\": tensor \""), std::string::npos);
  std::filesystem::remove(dir + "/rank-0.safetensors");
  EXPECT_NE(error().find("No such file"), std::string::npos);
  writeFile(dir + "/rank-0.safetensors", shard);
  EXPECT_EQ(error(), "");
  std::filesystem::remove(dir + "/index.json");
  EXPECT_EQ(error(), "\"" + dir + "\" is not a checkpoint: no index.json");
}

} // namespace merak::runtime::test
