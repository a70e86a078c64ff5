#include "test/unit/checkpoint/CheckpointTesting.h"

namespace merak::runtime::test {

TEST(Gradients, AreGatheredUnderTheirParametersNames) {
  Holder h(2, 2, 2);
  const planpb::Tensor::Role parameter = planpb::Tensor::PARAMETER;
  h.add("w", {6, 8}, {{6, {}}, {8, {}}});
  h.add("grad:w", {6, 8}, {{6, {"tp"}}, {8, {}}});
  h.add("b", {4}, {{4, {}}}, {1});
  // Not yet summed over replicas.
  planpb::Layout partial = layoutOf({{4, {"tp"}}});
  partial.add_partial("dp");
  h.add("grad:b", {4}, partial, {1}, parameter);
  h.start();
  h.fill(1);
  const std::string path = temporaryFolder() + "/grads.safetensors";
  const Status status = saveGradients(h.plan, h.ranks, path);
  ASSERT_TRUE(status.ok()) << status.str();
  auto file = openSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status().str();
  ASSERT_EQ(file->tensors.size(), 2u);
  const SafetensorsEntry &w = file->tensors.at("w"), &b = file->tensors.at("b");
  EXPECT_EQ(w.shape, (std::vector<int64_t>{6, 8}));
  for (int i = 0; i < 48; ++i) {
    float value;
    std::memcpy(&value, w.data + 4 * i, 4);
    EXPECT_EQ(value, float(1 + i)); // replicas hold the same: not added
  }
  for (int i = 0; i < 4; ++i) {
    float value;
    std::memcpy(&value, b.data + 4 * i, 4);
    EXPECT_EQ(value, float(2 * (1 + i))); // two summands
  }
}

TEST(Gradients, MissingOnesAreAllNamed) {
  Holder h(1, 1, 1);
  h.add("a", {2}, {{2, {}}});
  h.add("b", {2}, {{2, {}}});
  h.add("grad:b", {2}, {{2, {}}});
  h.add("c", {2}, {{2, {}}});
  h.start();
  EXPECT_EQ(saveGradients(h.plan, h.ranks, temporaryFolder() + "/g").str(),
            "no rank keeps the gradient of \"a\"\n"
            "no rank keeps the gradient of \"c\"");
}

} // namespace merak::runtime::test
