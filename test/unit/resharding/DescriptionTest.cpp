// Descriptions of boundaries, and what is printed of them.
#include "passes/Resharding/Description.h"

#include "passes/Resharding/Report.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>

namespace merak::resharding {
namespace {

std::string contents(const std::string &path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::string kSample =
    MERAK_SOURCE_DIR "/samples/resharding/nine-cases.json";

Description sample() {
  Result<Description> found =
      parseDescription(contents(kSample), kSample, "", nullptr);
  EXPECT_TRUE(found.ok()) << found.status().str();
  return *found;
}

// The sample is the nine cases of the golden file.
TEST(Description, SampleIsTheNineCases) {
  const nlohmann::json golden = nlohmann::json::parse(
      contents(MERAK_SOURCE_DIR "/test/data/golden/resharding.json"));
  const Description nine = sample();
  ASSERT_EQ(nine.boundaries.size(), 9u);
  EXPECT_EQ(nine.cluster.count, 20);
  for (size_t i = 0; i < 9; ++i) {
    const Boundary &b = nine.boundaries[i];
    const nlohmann::json &entry = golden["cases"][i];
    EXPECT_EQ(b.dtype, "i32");
    EXPECT_EQ(b.elementBytes, 4);
    const Result<Resharding> found =
        reshard(b.source, b.target, b.elementBytes, nine.cluster);
    EXPECT_EQ(b.source.layout.globalShape(),
              entry["shape"].get<std::vector<int64_t>>());
    EXPECT_DOUBLE_EQ(found->bound * 1.25e9, entry["lower_bound"].get<double>());
    EXPECT_EQ(unitTasks(b.source, b.target)->size(), entry["tasks"].size());
    EXPECT_LE(found->seconds, 1.02 * found->bound) << b.name;
  }
}

TEST(Description, SaysAllThatIsWrong) {
  const char *text = R"({
    "cluster": {"devices": 4, "device": {"kind": "cpu", "flops": 1e9,
      "memory_bandwidth": 1e9}, "links": {"intra": {"bandwidth": 1e9,
      "latency": 0}}},
    "boundaries": [
      {"name": "a", "dtype": "f31",
       "source": {"layout": "[8@x", "mesh": "x=2", "devices": "0-1"},
       "target": {"layout": "[8]", "mesh": "x", "devices": "3-2", "on": 1}},
      {"source": {"layout": "[8]", "devices": 4}, "to": {}}]})";
  EXPECT_EQ(parseDescription(text, "f.json", "", nullptr).status().str(),
            "f.json: boundaries[0].dtype: there is no type 'f31'\n"
            "f.json: boundaries[0].source.layout: layout '[8@x': expected ',' "
            "or ']' at character 5, found nothing\n"
            "f.json: boundaries[0].target: there is no field 'on'; known are "
            "layout, mesh, devices\n"
            "f.json: boundaries[1]: there is no field 'to'; known are name, "
            "dtype, source, target\n"
            "f.json: boundaries[1].source.devices: expected a string, found 4\n"
            "f.json: boundaries[1].target: expected an object with layout, "
            "mesh and devices");
  EXPECT_EQ(parseDescription("[]", "f.json", "", nullptr).status().str(),
            "f.json: expected a JSON object");
  EXPECT_EQ(parseDescription("{\"boundaries\": []}", "f.json", "", nullptr)
                .status()
                .str(),
            "f.json: cluster: expected a cluster or the name of its file\n"
            "f.json: boundaries: expected a list of at least one");
}

TEST(Description, MeshesAndDevices) {
  EXPECT_EQ(parseMesh("a=2,b=3")->size(), 2u);
  EXPECT_TRUE(parseMesh("")->empty());
  for (const char *bad : {"a", "a=", "=2", "a=0", "a=2,", "a=99999999"})
    EXPECT_FALSE(parseMesh(bad).ok()) << bad;
  EXPECT_EQ(*parseDevices("5,0-2"), (std::vector<int64_t>{5, 0, 1, 2}));
  EXPECT_EQ(deviceStr({5, 0, 1, 2}), "5,0-2");
  for (const char *bad : {"", "3-", "2-1", "a", "1,,2", "0-99999999"})
    EXPECT_FALSE(parseDevices(bad).ok()) << bad;
}

TEST(Report, TextJsonAndTimeline) {
  const Description nine = sample();
  const Boundary &b = nine.boundaries[2];
  const Resharding found =
      *reshard(b.source, b.target, b.elementBytes, nine.cluster);
  const std::string text = describe(b.name, found, nine.cluster);
  EXPECT_NE(text.find("case 3: predicted "), std::string::npos) << text;
  EXPECT_NE(text.find("4 unit tasks, order 'greedy', proved to be the best"),
            std::string::npos)
      << text;
  const nlohmann::json json =
      nlohmann::json::parse(toJson(b.name, found, nine.cluster));
  EXPECT_EQ(json["legs"][0]["tasks"].size(), 4u);
  EXPECT_EQ(json["legs"][0]["transfers"].size(),
            found.legs[0].transfers.size());
  EXPECT_DOUBLE_EQ(json["predicted_seconds"], found.seconds);
  const report::Timeline timeline = timelineOf(b.name, found, nine.cluster);
  EXPECT_LE(timeline.end(), found.seconds);
  EXPECT_NE(
      std::find(timeline.rows.begin(), timeline.rows.end(), "node 0, out"),
      timeline.rows.end());
  // A link carries one transfer after another.
  for (const report::Span &one : timeline.spans)
    for (const report::Span &other : timeline.spans)
      if (&one != &other && one.row == other.row) {
        EXPECT_TRUE(one.end <= other.begin + 1e-9 ||
                    other.end <= one.begin + 1e-9)
            << timeline.rows[one.row] << " " << one.begin << " " << other.begin;
      }
}

} // namespace
} // namespace merak::resharding
