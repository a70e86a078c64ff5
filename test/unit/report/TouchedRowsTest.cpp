#include "runtime/report/TouchedRows.h"

#include "runtime/data/Npy.h"

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
  Result<std::map<std::string, double>>
  shares(const std::vector<TableIds> &tables) {
    return touchedShares(inputs_, folder_.string(), tables);
  }

  fs::path folder_;
  planpb::PlanFile inputs_;
};

// Steps of two samples: {1, 2, 3}, {1}, and of three tables.
TEST_F(TouchedRows, CountsDifferentRowsOfSteps) {
  input<int64_t>("a", 2, {1, 2, 3, 1, /**/ 1, 1, 1, 1});
  input<int32_t>("b", 1, {1, 4, /**/ 5, 5});
  auto found = shares(
      {{"first", 8, {"a"}}, {"second", 10, {"b"}}, {"both", 10, {"a", "b"}}});
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_DOUBLE_EQ((*found)["first"], (3 + 1) / 2. / 8);
  EXPECT_DOUBLE_EQ((*found)["second"], (2 + 1) / 2. / 10);
  EXPECT_DOUBLE_EQ((*found)["both"], (4 + 2) / 2. / 10);
}

// -1 is the last row.
TEST_F(TouchedRows, NegativeIdsCountFromTheEnd) {
  input<int64_t>("a", 1, {-1, 7});
  auto found = shares({{"table", 8, {"a"}}});
  ASSERT_TRUE(found.ok()) << found.status().str();
  EXPECT_DOUBLE_EQ((*found)["table"], 1. / 8);
}

TEST_F(TouchedRows, IdsThatAreNoRowsAreNamed) {
  input<int64_t>("a", 1, {0, 8});
  input<int64_t>("b", 1, {0, -9});
  for (auto [input, id] : {std::pair("a", "8"), std::pair("b", "-9")}) {
    auto found = shares({{"table", 8, {input}}});
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
  auto found = shares({{"table", 8, {"a"}}});
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().str().find("a.npy"), std::string::npos);
}

} // namespace
} // namespace merak::report
