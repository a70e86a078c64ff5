#include "runtime/report/TouchedRows.h"

#include "runtime/data/Npy.h"

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>

namespace merak::report {
namespace {

namespace fs = std::filesystem;

class TouchedRows : public testing::Test {
protected:
  TouchedRows()
      : folder_(fs::path(testing::TempDir()) /
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::create_directories(folder_);
    inputs_.set_global_batch(2);
  }
  ~TouchedRows() override { fs::remove_all(folder_); }

  // An input of `width` ids a sample, and its file.
  template <typename T>
  void input(const std::string &name, int64_t width, std::vector<T> ids) {
    const planpb::DType dtype = sizeof(T) == 8 ? planpb::I64 : planpb::I32;
    planpb::Input *in = inputs_.add_inputs();
    in->set_name(name);
    in->set_dtype(dtype);
    in->add_shape(2);
    in->add_shape(width);
    in->set_batched(true);
    const Status written = runtime::writeNpy(
        (folder_ / (name + ".npy")).string(), dtype,
        {static_cast<int64_t>(ids.size()) / width, width}, ids.data());
    ASSERT_TRUE(written.ok()) << written.str();
  }
  Result<std::map<std::string, std::vector<TouchedCount>>>
  counts(const std::vector<TableIds> &tables) {
    return countTouched(inputs_, folder_.string(), tables);
  }
  // A table whose lookups' ids are inputs.
  static TableIds table(const std::string &name, int64_t rows,
                        const std::vector<std::string> &inputs) {
    return {name, rows, [inputs](const StepInputs &values) {
              IdsOfLookups ids;
              for (const std::string &input : inputs)
                ids.push_back(values.at(input));
              return ids;
            }};
  }

  fs::path folder_;
  planpb::PlanFile inputs_;
};

void expectCounts(const std::vector<TouchedCount> &found,
                  const std::vector<TouchedCount> &expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].samples, expected[i].samples) << i;
    EXPECT_EQ(found[i].ids, expected[i].ids) << i;
    EXPECT_DOUBLE_EQ(found[i].rows, expected[i].rows) << i;
  }
}

// Steps of two samples, of three tables: means of samples, of steps, and both
// steps together.
TEST_F(TouchedRows, CountsDifferentRowsOfStepsAndTheirParts) {
  input<int64_t>("a", 2, {1, 2, 3, 1, /**/ 1, 1, 1, 1});
  input<int32_t>("b", 1, {1, 4, /**/ 5, 5});
  auto found = counts({table("first", 8, {"a"}), table("second", 10, {"b"}),
                       table("both", 10, {"a", "b"})});
  ASSERT_TRUE(found.ok()) << found.status().str();
  expectCounts((*found)["first"],
               {{1, 2, (2 + 2 + 1 + 1) / 4.}, {2, 4, (3 + 1) / 2.}, {4, 8, 3}});
  expectCounts((*found)["second"],
               {{1, 1, 1}, {2, 2, (2 + 1) / 2.}, {4, 4, 3}});
  expectCounts(
      (*found)["both"],
      {{1, 3, (2 + 3 + 2 + 2) / 4.}, {2, 6, (4 + 2) / 2.}, {4, 12, 5}});
}

// Parts that are there as a whole count.
TEST_F(TouchedRows, OfThreeStepsTwoAreOneBehindTheOther) {
  input<int64_t>("a", 1, {1, 2, /**/ 2, 3, /**/ 4, 5});
  auto found = counts({table("table", 8, {"a"})});
  ASSERT_TRUE(found.ok()) << found.status().str();
  expectCounts((*found)["table"], {{1, 1, 1}, {2, 2, 2}, {4, 4, 3}});
}

TEST_F(TouchedRows, PaddingNamesNoRow) {
  input<int64_t>("a", 2, {0, 1, 0, 0});
  TableIds padded = table("table", 8, {"a"});
  padded.ids = [](const StepInputs &values) {
    std::vector<int64_t> ids = values.at("a");
    std::replace(ids.begin(), ids.end(), int64_t(0), kNoRow);
    return IdsOfLookups{ids};
  };
  auto found = counts({padded});
  ASSERT_TRUE(found.ok()) << found.status().str();
  expectCounts((*found)["table"], {{1, 2, 0.5}, {2, 4, 1}});
}

TEST_F(TouchedRows, WhatCannotBeComputedIsLeftOut) {
  input<int64_t>("a", 1, {0, 1});
  TableIds none = table("none", 8, {"a"});
  none.ids = [](const StepInputs &) { return IdsOfLookups(); };
  auto found = counts({none, table("table", 8, {"a"})});
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_FALSE(found->count("none"));
  EXPECT_TRUE(found->count("table"));
}

// -1 is the last row.
TEST_F(TouchedRows, NegativeIdsCountFromTheEnd) {
  input<int64_t>("a", 1, {-1, 7});
  auto found = counts({table("table", 8, {"a"})});
  ASSERT_TRUE(found.ok()) << found.status().str();
  expectCounts((*found)["table"], {{1, 1, 1}, {2, 2, 1}});
}

TEST_F(TouchedRows, IdsThatAreNoRowsAreNamed) {
  input<int64_t>("a", 1, {0, 8});
  input<int64_t>("b", 1, {0, -9});
  for (auto [input, id] : {std::pair("a", "8"), std::pair("b", "-9")}) {
    auto found = counts({table("table", 8, {input})});
    ASSERT_FALSE(found.ok());
    EXPECT_NE(found.status().str().find(
                  std::string("an id of the table 'table' is ") + id +
                  ", expected one of its 8 rows"),
              std::string::npos)
        << found.status().str();
  }
}

TEST_F(TouchedRows, AnInputThatIsNotThere) {
  input<int64_t>("a", 1, {0, 1});
  fs::remove(folder_ / "a.npy");
  auto found = counts({table("table", 8, {"a"})});
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().str().find("a.npy"), std::string::npos);
}

} // namespace
} // namespace merak::report
