#include "runtime/data/DataSource.h"

#include "runtime/data/Npy.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <algorithm>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

void addInput(planpb::PlanFile &plan, const std::string &name,
              planpb::DType dtype, std::vector<int64_t> shape,
              int64_t limit = 0, bool batched = true) {
  planpb::Input &input = *plan.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  for (int64_t size : shape)
    input.add_shape(size);
  input.set_batched(batched);
  input.set_limit(limit);
}

template <typename T>
void writeArray(const std::string &path, planpb::DType dtype,
                std::vector<int64_t> shape, const std::vector<T> &values) {
  ASSERT_TRUE(writeNpy(path, dtype, shape, values.data()).ok());
}

std::vector<int64_t> iota(int64_t count, int64_t first = 0) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(first + i);
  return values;
}

layout::Box whole(std::vector<int64_t> shape) {
  const std::vector<int64_t> zero(shape.size(), 0);
  return {zero, zero, shape};
}

} // namespace

TEST(NpyData, StepsFollowEachOtherAndWrap) {
  planpb::PlanFile plan;
  plan.set_global_batch(4);
  addInput(plan, "ids", planpb::I64, {4, 2});
  const std::string dir = temporaryFolder();
  writeArray(dir + "/ids.npy", planpb::I64, {6, 2}, iota(12));
  auto data = openData(plan, {dir});
  ASSERT_TRUE(data.ok()) << data.status().str();
  for (int64_t step = 0; step < 5; ++step) {
    std::vector<int64_t> batch(8);
    ASSERT_TRUE(
        (*data)->read("ids", step, {whole({4, 2})}, batch.data(), {4, 2}).ok());
    for (int64_t s = 0; s < 4; ++s)
      for (int64_t i = 0; i < 2; ++i)
        EXPECT_EQ(batch[s * 2 + i], (step * 4 + s) % 6 * 2 + i);
  }
  EXPECT_EQ((*data)->position(3), 12);
}

// A resumed run goes on where the samples ended, whatever its batch was.
TEST(NpyData, PositionIsRestored) {
  planpb::PlanFile plan;
  plan.set_global_batch(2);
  addInput(plan, "ids", planpb::I64, {2});
  const std::string dir = temporaryFolder();
  writeArray(dir + "/ids.npy", planpb::I64, {50}, iota(50));
  auto data = openData(plan, {dir});
  (*data)->setPosition(10, 37);
  std::vector<int64_t> batch(2);
  ASSERT_TRUE((*data)->read("ids", 11, {whole({2})}, batch.data(), {2}).ok());
  EXPECT_EQ(batch, (std::vector<int64_t>{39, 40}));
  EXPECT_EQ((*data)->position(12), 41);
}

// Boxes of a layout split over microbatches, replicas and columns.
TEST(NpyData, BoxesAreReadWhereTheyBelong) {
  planpb::PlanFile plan;
  plan.set_global_batch(8);
  addInput(plan, "x", planpb::I64, {8, 6});
  const std::string dir = temporaryFolder();
  writeArray(dir + "/x.npy", planpb::I64, {12, 6}, iota(72));
  auto data = openData(plan, {dir});
  ASSERT_TRUE(data.ok());
  const layout::Layout layout =
      fromProto(layoutOf({{8, {"mb", "dp"}}, {6, {"tp"}}}));
  const layout::AxisMap mesh = {{"mb", 2}, {"dp", 2}, {"tp", 3}};
  for (int64_t mb = 0; mb < 2; ++mb)
    for (int64_t dp = 0; dp < 2; ++dp)
      for (int64_t tp = 0; tp < 3; ++tp) {
        std::vector<int64_t> local(4);
        const auto boxes =
            layout::boxes(layout, mesh, {{"mb", mb}, {"dp", dp}, {"tp", tp}});
        ASSERT_TRUE((*data)->read("x", 1, boxes, local.data(), {2, 2}).ok());
        for (int64_t i = 0; i < 4; ++i)
          EXPECT_EQ(local[i],
                    (8 + mb * 4 + dp * 2 + i / 2) % 12 * 6 + tp * 2 + i % 2);
      }
}

TEST(NpyData, InputsThatAreNotBatchedStay) {
  planpb::PlanFile plan;
  plan.set_global_batch(4);
  addInput(plan, "scale", planpb::F32, {3}, 0, false);
  const std::string dir = temporaryFolder();
  writeArray(dir + "/scale.npy", planpb::F32, {3},
             std::vector<float>{1.5, 2.5, 3.5});
  auto data = openData(plan, {dir});
  ASSERT_TRUE(data.ok()) << data.status().str();
  std::vector<float> value(3);
  ASSERT_TRUE((*data)->read("scale", 7, {whole({3})}, value.data(), {3}).ok());
  EXPECT_EQ(value, (std::vector<float>{1.5, 2.5, 3.5}));
}

TEST(NpyData, EveryProblemIsReported) {
  planpb::PlanFile plan;
  plan.set_global_batch(4);
  addInput(plan, "absent", planpb::F32, {4, 2});
  addInput(plan, "broken", planpb::F32, {4, 2});
  addInput(plan, "shape", planpb::F32, {4, 2});
  addInput(plan, "type", planpb::I64, {4});
  addInput(plan, "empty", planpb::I64, {4});
  addInput(plan, "good", planpb::I64, {4});
  const std::string dir = temporaryFolder();
  writeFile(dir + "/broken.npy", "???");
  writeArray(dir + "/shape.npy", planpb::F32, {4, 3}, std::vector<float>(12));
  writeArray(dir + "/type.npy", planpb::I32, {4}, std::vector<int32_t>(4));
  writeArray(dir + "/empty.npy", planpb::I64, {0}, iota(0));
  writeArray(dir + "/good.npy", planpb::I64, {4}, iota(4));
  auto data = openData(plan, {dir});
  ASSERT_FALSE(data.ok());
  const std::string quote = "\"" + dir;
  EXPECT_EQ(
      data.status().str(),
      quote + "/absent.npy\": cannot open: No such file or directory\n" +
          quote + "/broken.npy\": not a .npy file\n" + quote +
          "/shape.npy\": expected samples of shape [2] for input \"shape\", "
          "found [3]\n" +
          quote + "/type.npy\": expected i64 for input \"type\", found i32\n" +
          quote + "/empty.npy\": no samples");
}

TEST(NpyData, InputsMustCountTheSameSamples) {
  planpb::PlanFile plan;
  plan.set_global_batch(2);
  addInput(plan, "a", planpb::I64, {2});
  addInput(plan, "b", planpb::I64, {2});
  const std::string dir = temporaryFolder();
  writeArray(dir + "/a.npy", planpb::I64, {8}, iota(8));
  writeArray(dir + "/b.npy", planpb::I64, {7}, iota(7));
  EXPECT_EQ(openData(plan, {dir}).status().str(),
            "\"" + dir + "/b.npy\": 7 samples, the inputs before have 8");
}

TEST(NpyData, IdsMustBeInRange) {
  planpb::PlanFile plan;
  plan.set_global_batch(4);
  addInput(plan, "ids", planpb::I64, {4, 3}, 10);
  plan.mutable_inputs(0)->set_has_allowed(true);
  plan.mutable_inputs(0)->set_allowed(-100);
  const std::string dir = temporaryFolder();
  std::vector<int64_t> ids(24, 9);
  ids[2] = -100;
  ids[19] = -1; // sample 6
  writeArray(dir + "/ids.npy", planpb::I64, {8, 3}, ids);
  auto data = openData(plan, {dir});
  ASSERT_TRUE(data.ok());
  std::vector<int64_t> batch(12);
  EXPECT_TRUE(
      (*data)->read("ids", 0, {whole({4, 3})}, batch.data(), {4, 3}).ok());
  EXPECT_EQ(
      (*data)->read("ids", 1, {whole({4, 3})}, batch.data(), {4, 3}).str(),
      "\"" + dir +
          "/ids.npy\" sample 6: value -1 of \"ids\" is not in [0, "
          "10) and not -100");
  // Another rank's box does not hold the sample.
  EXPECT_TRUE(
      (*data)
          ->read("ids", 1, {{{0, 0}, {0, 0}, {2, 3}}}, batch.data(), {2, 3})
          .ok());
}

TEST(TokenData, WindowsAndShiftedLabels) {
  planpb::PlanFile plan;
  plan.set_global_batch(2);
  addInput(plan, "targets", planpb::I32, {2, 4});
  addInput(plan, "tokens", planpb::I64, {2, 4});
  for (int bytes : {2, 4}) {
    const std::string path = temporaryFolder() + "/tokens.bin";
    std::string file;
    for (int token = 0; token < 14; ++token) {
      file += char(token);
      file += std::string(size_t(bytes - 1), '\0');
    }
    writeFile(path, file);
    auto data = openData(plan, {path, bytes});
    ASSERT_TRUE(data.ok()) << data.status().str();
    // 14 tokens are three samples of four, each with the token after it.
    for (int64_t step = 0; step < 4; ++step) {
      std::vector<int64_t> tokens(8);
      std::vector<int32_t> targets(8);
      ASSERT_TRUE(
          (*data)
              ->read("tokens", step, {whole({2, 4})}, tokens.data(), {2, 4})
              .ok());
      ASSERT_TRUE(
          (*data)
              ->read("targets", step, {whole({2, 4})}, targets.data(), {2, 4})
              .ok());
      for (int64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(tokens[i], (step * 2 + i / 4) % 3 * 4 + i % 4);
        EXPECT_EQ(targets[i], tokens[i] + 1);
      }
    }
  }
}

// A checkpoint may hold any position; nothing overflows before it is refused.
TEST(TokenData, PositionsThatNoFileHas) {
  planpb::PlanFile plan;
  plan.set_global_batch(2);
  addInput(plan, "tokens", planpb::I64, {2, 4});
  const std::string path = temporaryFolder() + "/tokens.bin";
  writeFile(path, std::string(28, '\1'));
  auto data = openData(plan, {path, 2});
  ASSERT_TRUE(data.ok()) << data.status().str();
  std::vector<int64_t> tokens(8);
  auto read = [&](int64_t first, int64_t step) {
    (*data)->setPosition(0, first);
    return (*data)
        ->read("tokens", step, {whole({2, 4})}, tokens.data(), {2, 4})
        .str();
  };
  EXPECT_EQ(read(int64_t{1} << 53, 0), "");
  for (auto [first, step] : {std::pair(INT64_MAX - 1, int64_t{0}),
                             {INT64_MAX, 1},
                             {0, INT64_MAX},
                             {INT64_MAX, INT64_MAX}})
    EXPECT_NE(read(first, step).find("no sample has the number "),
              std::string::npos);
}

TEST(TokenData, LabelsNeedNotBeShifted) {
  planpb::PlanFile plan;
  plan.set_global_batch(1);
  addInput(plan, "input_ids", planpb::I64, {1, 2});
  addInput(plan, "labels", planpb::I64, {1, 2});
  const std::string path = temporaryFolder() + "/tokens.bin";
  writeFile(path, std::string("\5\0\6\0", 4));
  DataOptions options{path};
  EXPECT_EQ(openData(plan, options).status().str(),
            "\"" + path + "\": 2 tokens, expected at least 3");
  options.labelShift = 0;
  auto data = openData(plan, options);
  ASSERT_TRUE(data.ok()) << data.status().str();
  std::vector<int64_t> labels(2);
  ASSERT_TRUE(
      (*data)->read("labels", 0, {whole({1, 2})}, labels.data(), {1, 2}).ok());
  EXPECT_EQ(labels, (std::vector<int64_t>{5, 6}));
}

TEST(TokenData, EveryProblemIsReported) {
  planpb::PlanFile plan;
  plan.set_global_batch(1);
  addInput(plan, "a", planpb::I64, {1, 4});
  addInput(plan, "mask", planpb::F32, {1, 4});
  addInput(plan, "b", planpb::I64, {1, 5});
  addInput(plan, "c", planpb::I64, {1, 5});
  const std::string path = temporaryFolder() + "/tokens.bin";
  writeFile(path, "odd");
  const std::string at = "\"" + path + "\": ";
  EXPECT_EQ(openData(plan, {path}).status().str(),
            at +
                "a file of tokens has nothing for input \"mask\" (give a "
                "folder of .npy files)\n" +
                at + "input \"b\" has 5 tokens, expected 4\n" + at +
                "a file of tokens has two inputs, \"c\" is one more\n" + at +
                "3 bytes are not a multiple of 2");
}

TEST(TokenData, TokensMustBeInRange) {
  planpb::PlanFile plan;
  plan.set_global_batch(1);
  addInput(plan, "ids", planpb::I64, {1, 2}, 100);
  const std::string path = temporaryFolder() + "/tokens.bin";
  writeFile(path, std::string("\1\0\2\0\3\0\x64\0\5\0", 10));
  auto data = openData(plan, {path});
  ASSERT_TRUE(data.ok()) << data.status().str();
  std::vector<int64_t> ids(2);
  EXPECT_EQ(
      (*data)->read("ids", 1, {whole({1, 2})}, ids.data(), {1, 2}).str(),
      "\"" + path +
          "\" sample 1 (tokens 2..3): value 100 of \"ids\" is not in [0, 100)");
}

// The values of a sample do not depend on how the batch is cut.
TEST(SyntheticData, DependsOnSeedInputAndSampleOnly) {
  planpb::PlanFile plan;
  plan.set_global_batch(4);
  addInput(plan, "ids", planpb::I64, {4, 5}, 7);
  addInput(plan, "x", planpb::F32, {4, 5});
  DataOptions options{"synthetic"};
  auto data = openData(plan, options);
  std::vector<int64_t> all(20), part(4);
  ASSERT_TRUE(
      (*data)->read("ids", 1, {whole({4, 5})}, all.data(), {4, 5}).ok());
  for (int64_t id : all)
    EXPECT_TRUE(id >= 0 && id < 7);
  ASSERT_TRUE(
      (*data)
          ->read("ids", 1, {{{2, 3}, {0, 0}, {2, 2}}}, part.data(), {2, 2})
          .ok());
  EXPECT_EQ(part, (std::vector<int64_t>{all[13], all[14], all[18], all[19]}));
  // Half the batch, twice the step.
  planpb::PlanFile half = plan;
  half.set_global_batch(2);
  half.mutable_inputs(0)->set_shape(0, 2);
  auto again = openData(half, options);
  std::vector<int64_t> second(10);
  ASSERT_TRUE(
      (*again)->read("ids", 3, {whole({2, 5})}, second.data(), {2, 5}).ok());
  EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + 10));
  // Another seed gives other values; floats spread over [-1, 1).
  options.seed = 1;
  auto other = openData(plan, options);
  std::vector<float> a(20), b(20);
  ASSERT_TRUE((*data)->read("x", 0, {whole({4, 5})}, a.data(), {4, 5}).ok());
  ASSERT_TRUE((*other)->read("x", 0, {whole({4, 5})}, b.data(), {4, 5}).ok());
  EXPECT_NE(a, b);
  EXPECT_LT(*std::min_element(a.begin(), a.end()), -0.3f);
  EXPECT_GT(*std::max_element(a.begin(), a.end()), 0.3f);
}

TEST(DataSource, UnknownPathsAndInputs) {
  planpb::PlanFile plan;
  EXPECT_EQ(openData(plan, {"/nowhere"}).status().str(),
            "\"/nowhere\": no such file or folder (give a folder of .npy "
            "files, tokens.bin, FILE.sqlite, a folder of such shards or "
            "\"synthetic\")");
  auto data = openData(plan, {"synthetic"});
  EXPECT_EQ((*data)->read("x", 0, {}, nullptr, {}).str(),
            "the plan has no input \"x\"");
}
