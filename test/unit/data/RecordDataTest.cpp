#include "runtime/data/DataSource.h"
#include "test/unit/core/TestPlan.h"

#include <gtest/gtest.h>

#include <cstring>

#ifdef MERAK_SQLITE
#include <sqlite3.h>

using namespace merak;
using namespace merak::runtime;
using namespace merak::runtime::test;

namespace {

void addInput(planpb::PlanFile &plan, const std::string &name,
              planpb::DType dtype, std::vector<int64_t> shape) {
  planpb::Input &input = *plan.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  for (int64_t size : shape)
    input.add_shape(size);
  input.set_batched(true);
}

// Ids of three and a label: what a user stores.
planpb::PlanFile plan() {
  planpb::PlanFile plan;
  plan.set_global_batch(2);
  addInput(plan, "a \"quoted\" name", planpb::I64, {2, 3});
  addInput(plan, "label", planpb::I32, {2});
  addInput(plan, "weight", planpb::F32, {2, 1});
  return plan;
}

std::string blob(std::vector<int64_t> values) {
  std::string text = "x'";
  for (int64_t value : values)
    for (int byte = 0; byte < 8; ++byte) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x",
                    static_cast<unsigned>(value >> (8 * byte) & 255));
      text += digits;
    }
  return text + "'";
}

std::string table(const std::string &statements) {
  const std::string path = temporaryFolder() + "/samples.sqlite";
  sqlite3 *database = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  char *why = nullptr;
  EXPECT_EQ(sqlite3_exec(database, statements.c_str(), nullptr, nullptr, &why),
            SQLITE_OK)
      << why;
  sqlite3_close(database);
  return path;
}

std::string rows(int count) {
  std::string text = "CREATE TABLE samples(\"a \"\"quoted\"\" name\" BLOB, "
                     "label INTEGER, weight REAL);";
  for (int i = 0; i < count; ++i)
    text += "INSERT INTO samples VALUES(" + blob({i, i + 10, -i}) + ", " +
            std::to_string(i * 2) + ", " + std::to_string(i) + ".5);";
  return text;
}

} // namespace

TEST(RecordData, RowsAreSamples) {
  const planpb::PlanFile file = plan();
  const std::string path = table(rows(5));
  auto data = openData(file, {path});
  ASSERT_TRUE(data.ok()) << data.status().str();
  EXPECT_EQ((*data)->samples(), 5);
  for (int64_t step = 0; step < 4; ++step) {
    int64_t ids[6];
    int32_t labels[2];
    float weights[2];
    ASSERT_TRUE((*data)
                    ->read("a \"quoted\" name", step,
                           {{{0, 0}, {0, 0}, {2, 3}}}, ids, {2, 3})
                    .ok());
    ASSERT_TRUE(
        (*data)->read("label", step, {{{0}, {0}, {2}}}, labels, {2}).ok());
    ASSERT_TRUE(
        (*data)
            ->read("weight", step, {{{0, 0}, {0, 0}, {2, 1}}}, weights, {2, 1})
            .ok());
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t sample = (step * 2 + i) % 5;
      EXPECT_EQ(ids[i * 3], sample);
      EXPECT_EQ(ids[i * 3 + 1], sample + 10);
      EXPECT_EQ(ids[i * 3 + 2], -sample);
      EXPECT_EQ(labels[i], sample * 2);
      EXPECT_EQ(weights[i], float(sample) + 0.5f);
    }
  }
  // A column of the layout.
  int64_t part[2];
  ASSERT_TRUE((*data)
                  ->read("a \"quoted\" name", 0, {{{0, 1}, {0, 0}, {2, 1}}},
                         part, {2, 1})
                  .ok());
  EXPECT_EQ(part[1], 11);
}

TEST(RecordData, ProblemsHaveTheirRow) {
  const planpb::PlanFile file = plan();
  const std::string path =
      table(rows(6) + "DELETE FROM samples WHERE rowid = 3;"
                      "UPDATE samples SET label = 5000000000 WHERE rowid = 1;"
                      "UPDATE samples SET label = 'x' WHERE rowid = 2;"
                      "UPDATE samples SET weight = x'00' WHERE rowid = 5;");
  auto data = openData(file, {path});
  ASSERT_TRUE(data.ok()) << data.status().str();
  int32_t label = 0;
  float weight = 0;
  auto label1 = [&](int64_t at) {
    return (*data)->read("label", 0, {{{at}, {0}, {1}}}, &label, {1}).str();
  };
  const std::string row = "\"" + path + "\" row ";
  EXPECT_EQ(label1(0), row + "1: expected i32 for input \"label\", found "
                             "5000000000");
  EXPECT_EQ(label1(1), row + "2: expected a BLOB for input \"label\"");
  EXPECT_EQ(label1(2), row + "3: is missing: rows must follow each other");
  EXPECT_EQ((*data)
                ->read("weight", 2, {{{0, 0}, {0, 0}, {1, 1}}}, &weight, {1, 1})
                .str(),
            row + "5: expected 4 bytes for input \"weight\" (f32 of [1,1]), "
                  "found 1");
}

TEST(RecordData, StrangeFilesAreRefused) {
  const planpb::PlanFile file = plan();
  const std::string noise = temporaryFolder() + "/noise.sqlite";
  writeFile(noise, std::string(5000, 'n'));
  EXPECT_EQ(openData(file, {noise}).status().str(),
            "\"" + noise + "\": file is not a database");
  const std::string other = table("CREATE TABLE things(x)");
  EXPECT_EQ(openData(file, {other}).status().str(),
            "\"" + other + "\": no such table: samples");
  const std::string empty = table("CREATE TABLE samples(x)");
  EXPECT_EQ(openData(file, {empty}).status().str(),
            "\"" + empty + "\": the table samples has no rows");
  const std::string columns =
      table("CREATE TABLE samples(label); INSERT INTO samples VALUES(1)");
  EXPECT_EQ(openData(file, {columns}).status().messages().size(), 2u);
  // A view may run anything, so it is none.
  const std::string view =
      table("CREATE TABLE t(x); INSERT INTO t VALUES(1);"
            "CREATE VIEW samples AS SELECT x AS rowid, x AS label FROM t");
  EXPECT_FALSE(openData(file, {view}).ok());
}

#endif
