#include "test/unit/checkpoint/Layouts.h"

#include "runtime/core/HalfFloat.h"

namespace merak::runtime::test {

// Two tensors in one file of the model, constants of the plan, zeros; each rank
// gets its part.
TEST(TensorStore, InitialValuesComeFromWhereThePlanSays) {
  Holder h(1, 1, 2);
  h.add("w", {2, 4}, {{2, {}}, {4, {"tp"}}});
  h.add("table", {4}, {{4, {}}}, {0}, planpb::Tensor::CONSTANT);
  h.add("m", {4}, {{4, {"tp"}}}, {0}, planpb::Tensor::OPTIMIZER);
  h.plan.dir = temporaryFolder();
  h.plan.file.set_model_dir(temporaryFolder());
  h.plan.file.set_constants("constants.bin");
  const float weights[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7};
  const float table[] = {9, 8, 7, 6};
  writeFile(h.plan.file.model_dir() + "/w.data",
            {reinterpret_cast<const char *>(weights), sizeof(weights)});
  writeFile(h.plan.dir + "/constants.bin",
            {reinterpret_cast<const char *>(table), sizeof(table)});
  planpb::Source &w = *h.plan.file.mutable_tensors(0)->mutable_source();
  w.set_kind(planpb::Source::FILE);
  w.set_path("w.data");
  w.set_offset(4);
  h.plan.file.mutable_tensors(1)->mutable_source()->set_kind(
      planpb::Source::CONSTANTS);
  h.start();
  h.fill(77);
  auto store = TensorStore::fromPlan(h.plan);
  ASSERT_TRUE(store.ok()) << store.status().str();
  ASSERT_TRUE(loadTensors(h.plan, h.ranks, *store).ok());
  const auto *right =
      static_cast<const float *>(h.ranks[1].program->bufferData(0));
  EXPECT_EQ(std::vector<float>(right, right + 4),
            (std::vector<float>{2, 3, 6, 7}));
  const std::string bytes = h.gather("table");
  EXPECT_EQ(std::memcmp(bytes.data(), table, sizeof(table)), 0);
  EXPECT_EQ(h.gather("m"), std::string(16, '\0'));
}

TEST(TensorStore, RoundedCopiesAreMadeFromTheMasterValues) {
  Holder h(1, 1, 1);
  h.add("w", {2}, {{2, {}}});
  ProgramBuilder builder(h.plan.programs[0]);
  const uint32_t copy = builder.buffer("w.bf16", planpb::BF16, {2});
  builder.at(copy).set_tensor("w");
  *builder.at(copy).mutable_layout() = layoutOf({{2, {}}});
  writeWeights(h.plan, "w", {1.0f + 0x1p-9f, -3});
  h.start();
  auto store = TensorStore::fromPlan(h.plan);
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE(loadTensors(h.plan, h.ranks, *store).ok());
  const auto *halves =
      static_cast<const uint16_t *>(h.ranks[0].program->bufferData(int(copy)));
  EXPECT_EQ(bf16ToFloat(halves[0]), 1.0f);
  EXPECT_EQ(bf16ToFloat(halves[1]), -3.0f);
  // The checkpoint has the exact value, not the rounded one.
  const std::string dir = temporaryFolder() + "/checkpoint";
  ASSERT_TRUE(save(h, dir, {}).ok());
  auto shard = openSafetensors(dir + "/step-0/rank-0.safetensors");
  ASSERT_TRUE(shard.ok());
  EXPECT_EQ(shard->tensors.at("w").dtype, planpb::F32);
}

TEST(TensorStore, EveryProblemIsReported) {
  Holder h(1, 1, 1);
  for (const char *name : {"absent", "nofile", "short", "fine", "nofile2"})
    h.add(name, {4}, {{4, {}}});
  h.plan.file.set_model_dir(temporaryFolder());
  const std::string dir = h.plan.file.model_dir();
  writeFile(dir + "/data", std::string(16, 'x'));
  auto source = [&](int tensor) {
    return h.plan.file.mutable_tensors(tensor)->mutable_source();
  };
  source(0)->set_kind(planpb::Source::ABSENT);
  for (int i : {1, 4}) {
    source(i)->set_kind(planpb::Source::FILE);
    source(i)->set_path("gone");
  }
  source(2)->set_kind(planpb::Source::FILE);
  source(2)->set_path("data");
  source(2)->set_offset(4);
  source(3)->set_kind(planpb::Source::FILE);
  source(3)->set_path(dir + "/data"); // absolute
  auto store = TensorStore::fromPlan(h.plan);
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.status().str(),
            "tensor \"absent\" has no values: the model came without them; "
            "give a checkpoint with --load\n"
            "tensor \"nofile\": \"" +
                dir +
                "/gone\": cannot open: No such file or directory\n"
                "tensor \"short\": bytes 4..20 are beyond the end of \"" +
                dir + "/data\" (16 bytes)");
  // With a checkpoint that has them, nothing is missing.
  TensorStore checkpoint;
  for (const char *name : {"absent", "nofile", "short", "nofile2"})
    checkpoint.add(name, {planpb::F32, {4}, {}});
  EXPECT_TRUE(TensorStore::fromPlan(h.plan, &checkpoint).ok());
}

} // namespace merak::runtime::test
