// What one layout saves, every other layout loads, bit by bit.
#include "test/unit/checkpoint/Layouts.h"

#include "runtime/checkpoint/CheckpointWriter.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <limits>

namespace merak::runtime::test {

TEST(Checkpoint, EveryLayoutLoadsEveryOther) {
  for (int from = 0; from < kLayouts; ++from) {
    const std::string dir = temporaryFolder() + "/checkpoint";
    auto source = holder(from);
    source->fill(1000);
    const Status saved = save(*source, dir, {7, 56});
    ASSERT_TRUE(saved.ok()) << saved.str();
    for (int to = 0; to < kLayouts; ++to) {
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
  for (int kind = 0; kind < kLayouts; ++kind) {
    const std::string dir = temporaryFolder() + "/checkpoint";
    auto source = holder(kind);
    ASSERT_TRUE(save(*source, dir, {}).ok());
    int64_t elements = 0;
    for (const auto &file :
         std::filesystem::directory_iterator(dir + "/step-0")) {
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

TEST(Checkpoint, AnotherModelIsRefusedWithEveryDifference) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  Holder other(1, 1, 1);
  other.add("w", {6, 9}, {{6, {}}, {9, {}}});
  other.add("extra", {2}, {{2, {}}});
  other.add("extra.exp_avg", {2}, {{2, {}}}, {0}, planpb::Tensor::OPTIMIZER);
  other.add("scalar", {}, Dims{});
  other.start();
  ASSERT_TRUE(save(other, dir, {}).ok());
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

// As versions before generations wrote it.
TEST(Checkpoint, OldOnesLoad) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  auto source = holder(1);
  source->fill(3);
  ASSERT_TRUE(save(*source, dir, {9, 72}).ok());
  nlohmann::ordered_json index =
      nlohmann::ordered_json::parse(readFile(dir + "/step-9/index.json"));
  for (const char *key : {"checksum", "run", "state", "shards"})
    index.erase(key);
  index["version"] = 1;
  const std::string old = temporaryFolder() + "/old";
  std::filesystem::copy(dir + "/step-9", old);
  writeFile(old + "/index.json", index.dump(1));
  auto target = holder(2);
  CheckpointState state;
  const Status status = load(*target, old, state);
  ASSERT_TRUE(status.ok()) << status.str();
  EXPECT_EQ(state.step, 9);
  EXPECT_EQ(state.samples, 72);
  EXPECT_FALSE(state.seed.has_value());
  for (const char *name : kNames)
    EXPECT_EQ(target->gather(name), source->gather(name)) << name;
  // A newer one that says it is old is neither.
  index["run"] = "0123456789abcdef";
  writeFile(old + "/index.json", index.dump(1));
  EXPECT_EQ(load(*target, old, state).str(),
            "\"" + old +
                "/index.json\": not the index of a checkpoint of its version");
}

TEST(Checkpoint, TheStateComesBack) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  auto source = holder(0);
  CheckpointState state;
  state.step = 5;
  state.samples = 40;
  state.skipped = 2;
  state.seed = UINT64_MAX;
  state.data = "tokens \"x\" \xc3\xa4";
  state.schedule = "constant lr=0.1";
  state.lr = 0.1;
  ASSERT_TRUE(save(*source, dir, state).ok());
  CheckpointState found;
  ASSERT_TRUE(load(*source, dir, found).ok());
  EXPECT_EQ(found.step, 5);
  EXPECT_EQ(found.samples, 40);
  EXPECT_EQ(found.skipped, 2);
  EXPECT_EQ(found.seed, UINT64_MAX);
  EXPECT_EQ(found.data, state.data);
  EXPECT_EQ(found.schedule, state.schedule);
  EXPECT_EQ(found.lr, 0.1);
  EXPECT_EQ(found.run.size(), 16u);
  auto alone = readCheckpointState(dir);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->run, found.run);
}

// Nothing that is not finite replaces what was good, unless it is wanted.
TEST(Checkpoint, ValuesThatAreNotFiniteAreNotSaved) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  auto source = holder(1);
  source->fill(3);
  ASSERT_TRUE(save(*source, dir, {1, 8}).ok());
  static_cast<float *>(source->ranks[1].program->bufferData(0))[5] =
      std::numeric_limits<float>::infinity();
  EXPECT_EQ(save(*source, dir, {2, 16}).str(),
            "\"w\" holds values that are not finite: nothing is saved");
  EXPECT_FALSE(std::filesystem::exists(dir + "/step-2"));
  CheckpointState state;
  ASSERT_TRUE(load(*source, dir, state).ok());
  EXPECT_EQ(state.step, 1);
  static_cast<float *>(source->ranks[1].program->bufferData(0))[5] = NAN;
  auto writer =
      CheckpointWriter::open(source->plan, source->ranks, {dir, 3, true});
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE((*writer)->write({2, 16}).ok());
}

// Masks are made of -inf; nothing trains them.
TEST(Checkpoint, FrozenTensorsHoldWhatTheyLike) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  Holder h(1, 1, 1);
  h.add("w", {2}, {{2, {}}});
  h.add("mask", {2}, {{2, {}}}, {0}, planpb::Tensor::FROZEN);
  h.start();
  static_cast<float *>(h.ranks[0].program->bufferData(1))[0] = -INFINITY;
  EXPECT_TRUE(save(h, dir, {}).ok());
}

// Ranks read what they need and no other file.
TEST(Checkpoint, RanksReadTheirShards) {
  const std::string dir = temporaryFolder() + "/checkpoint";
  auto source = holder(2);
  ASSERT_TRUE(save(*source, dir, {1, 8}).ok());
  // Rank 3 is of the second stage: what it holds, ranks 2 and 3 wrote.
  std::filesystem::remove(dir + "/step-1/rank-1.safetensors");
  TensorStore store;
  CheckpointState state;
  const std::span<const RankMemory> all(source->ranks);
  EXPECT_TRUE(
      openCheckpoint(source->plan, dir, store, state, all.subspan(2, 1)).ok());
  EXPECT_NE(openCheckpoint(source->plan, dir, store, state, all.first(2))
                .str()
                .find("rank-1.safetensors\" is missing"),
            std::string::npos);
}

TEST(Checkpoint, DamageIsASentence) {
  const std::string folder = temporaryFolder() + "/checkpoint";
  const std::string dir = folder + "/step-0";
  auto source = holder(1);
  ASSERT_TRUE(save(*source, folder, {}).ok());
  CheckpointState state;
  auto error = [&] { return load(*source, folder, state).str(); };
  const std::string index = readFile(dir + "/index.json");
  const std::string shard = readFile(dir + "/rank-0.safetensors");
  const std::string at = "\"" + dir + "/index.json\": ";

  writeFile(dir + "/index.json", index.substr(0, index.size() / 2));
  EXPECT_EQ(error(), at + "not the index of a checkpoint");
  auto change = [&](const std::string &from, const std::string &to) {
    std::string text = index;
    text.replace(text.find(from), from.size(), to);
    writeFile(dir + "/index.json", text);
  };
  change("\"version\": 2", "\"version\": 3");
  EXPECT_EQ(error(), at + "version 3 is newer than this program");
  change("\"step\": 0", "\"step\": 1");
  EXPECT_EQ(error(), at + "corrupted: its checksum is not that of its content");
  change("\"step\": 0", "\"step\":    0");
  EXPECT_EQ(error(), "") << "the same, spelled otherwise";
  writeFile(dir + "/index.json", index);
  writeFile(dir + "/rank-0.safetensors", shard.substr(0, shard.size() - 4));
  EXPECT_NE(error().find("rank-0.safetensors\": truncated: "),
            std::string::npos);
  std::string flipped = shard;
  flipped[shard.size() - 3] ^= 1;
  writeFile(dir + "/rank-0.safetensors", flipped);
  EXPECT_NE(error().find("rank-0.safetensors\": corrupted, or of another "
                         "checkpoint"),
            std::string::npos);
  std::filesystem::remove(dir + "/rank-0.safetensors");
  EXPECT_NE(error().find("rank-0.safetensors\" is missing"), std::string::npos);
  writeFile(dir + "/rank-0.safetensors", shard);
  EXPECT_EQ(error(), "");
  std::filesystem::remove_all(dir);
  EXPECT_EQ(error(), "\"" + folder +
                         "\" is not a checkpoint: no index.json, and no "
                         "folder step-N");
}

} // namespace merak::runtime::test
