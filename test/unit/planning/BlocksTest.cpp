// Blocks of a model.
#include "passes/Planning/Blocks.h"
#include "ModelGraphs.h"

#include <gtest/gtest.h>

namespace merak::planning {
namespace {

using namespace test;

struct Found {
  std::vector<int> ops;
  std::vector<Block> blocks;
};

Found blocksOf(const TrainGraph &g) {
  Found found;
  std::vector<char> embedding(g.graph.ops.size(), 0);
  for (size_t i = 0; i < g.graph.ops.size(); ++i) {
    if (g.graph.ops[i].phase != Phase::Forward)
      continue;
    found.ops.push_back(int(i));
    const std::string &name = g.graph.ops[i].name;
    embedding[i] = name == "wte" || name.find(".embed") != std::string::npos;
  }
  found.blocks = findBlocks(g.graph, found.ops, embedding);
  return found;
}

TEST(Blocks, AttentionAndMlpOfEachLayer) {
  for (int layers : {1, 3, 6}) {
    GptOptions options;
    options.layers = layers;
    TrainGraph g = makeGpt(options);
    std::vector<Block> blocks = blocksOf(g).blocks;
    // Embedding, two a layer, head with the loss; the last norm joins the
    // last layer.
    ASSERT_EQ(blocks.size(), size_t(2 * layers + 2));
    EXPECT_TRUE(blocks[0].embedding);
    for (int i = 0; i < layers; ++i)
      for (int half : {0, 1}) {
        const Block &block = blocks[1 + 2 * i + half];
        EXPECT_FALSE(block.embedding);
        EXPECT_TRUE(block.parameters);
        std::string residual =
            "h." + std::to_string(i) + "/residual" + std::to_string(half + 1);
        bool last = i == layers - 1 && half == 1;
        EXPECT_EQ(g.graph.ops[block.ops.back()].name, last ? "ln_f" : residual);
      }
  }
}

TEST(Blocks, HoldEveryOpOnceInOrder) {
  GptOptions flat;
  flat.flat = true;
  for (const TrainGraph &g : {makeGpt({}), makeGpt(flat), makeT5(4, 8, 16, 2),
                              makeConvNet(4), makeMlp(4, {8, 16, 16, 8})}) {
    Found found = blocksOf(g);
    std::vector<int> all;
    for (const Block &block : found.blocks)
      all.insert(all.end(), block.ops.begin(), block.ops.end());
    EXPECT_EQ(all, found.ops);
    for (size_t i = 1; i < found.blocks.size(); ++i)
      EXPECT_TRUE(found.blocks[i].parameters);
    EXPECT_GT(found.blocks.size(), 2u);
  }
}

TEST(Blocks, NothingGivesNothing) {
  EXPECT_TRUE(findBlocks(Graph(), {}, {}).empty());
}

} // namespace
} // namespace merak::planning
