// Descriptions of models and situations, and what is wrong with them.
#include "passes/Stragglers/Description.h"
#include "passes/Stragglers/Report.h"

#include "Situations.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

namespace merak::stragglers {
namespace {

std::string contents(const std::string &path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string errorsOf(const std::string &text) {
  return parseDescription(text, "f.json", "").status().str();
}

bool isEqual(const Problem &a, const Problem &b) {
  for (size_t i = 0; i < a.devices.size(); ++i)
    if (i >= b.devices.size() || a.devices[i].node != b.devices[i].node ||
        a.devices[i].rate != b.devices[i].rate)
      return false;
  return a.devices.size() == b.devices.size() && a.layers == b.layers &&
         a.microbatches == b.microbatches && a.dp == b.dp && a.tp == b.tp &&
         a.pp == b.pp && a.shrink == b.shrink && a.threshold == b.threshold &&
         a.memory.limit == b.memory.limit && a.memory.fixed == b.memory.fixed &&
         a.memory.edge == b.memory.edge && a.memory.layer == b.memory.layer;
}

// The samples are the situations on the models of the golden file.
TEST(Description, SamplesAreTheSituations) {
  for (auto [file, model] :
       {std::pair("32b", "32B"), {"70b", "70B"}, {"110b", "110B"}}) {
    const std::string path =
        std::string(MERAK_SOURCE_DIR "/samples/stragglers/") + file + ".json";
    const Result<Description> found =
        parseDescription(contents(path), path, "");
    ASSERT_TRUE(found.ok()) << found.status().str();
    ASSERT_EQ(found->situations.size(), size_t(kSituations));
    EXPECT_EQ(found->seconds, 0);
    EXPECT_FALSE(found->plan);
    for (int s = 1; s <= kSituations; ++s) {
      const Situation &situation = found->situations[size_t(s - 1)];
      EXPECT_EQ(situation.name, situationName(s).substr(0, 2));
      Problem expected = goldenModel(model);
      const Problem rates = situationProblem(s, 64);
      for (size_t i = 0; i < expected.devices.size(); ++i)
        expected.devices[i].rate = rates.devices[i].rate;
      EXPECT_TRUE(isEqual(situation.problem, expected)) << path << " " << s;
    }
  }
}

const std::string kGood = R"("devices": 8, "devices_per_node": 4, "layers": 8,
  "microbatches": 8, "mesh": {"pp": 2, "dp": 1, "tp": 4}, "rho": [1, 1.9])";

TEST(Description, WhatMayBeLeftOut) {
  const Result<Description> found = parseDescription(
      "{" + kGood +
          R"(, "seconds": 0.5, "stragglers": {"0,4-5": 2.5, "7": "gone"}})",
      "f.json", "");
  ASSERT_TRUE(found.ok()) << found.status().str();
  const Problem &problem = found->situations.at(0).problem;
  EXPECT_EQ(found->situations[0].name, "stragglers");
  EXPECT_EQ(found->seconds, 0.5);
  EXPECT_FALSE(problem.isLimited());
  EXPECT_EQ(problem.threshold, 12000);
  std::vector<int64_t> rates;
  for (const Device &device : problem.devices)
    rates.push_back(device.rate);
  EXPECT_EQ(rates, (std::vector<int64_t>{25000, kOne, kOne, kOne, 25000, 25000,
                                         kOne, kFailed}));
  EXPECT_EQ(problem.devices[4].node, 1);
}

// A cluster says how fast its devices are.
TEST(Description, RatesOfACluster) {
  const std::string folder = ::testing::TempDir();
  std::ofstream(folder + "/c.json")
      << R"({"devices": 4, "devices_per_node": 2, "device": {"kind": "cuda",
        "flops": 1e12, "memory_bandwidth": 1e12, "memory_bytes": 1e9,
        "launch_seconds": 0}, "links": {"intra": {"bandwidth": 1e11,
        "latency": 0}, "inter": {"bandwidth": 1e9, "latency": 0}},
        "rates": {"3": 0.4}})";
  const std::string text =
      R"({"cluster": "c.json", "layers": 8, "microbatches": 8, "rho": [1],
          "mesh": {"pp": 2, "dp": 1, "tp": 2}})";
  const Result<Description> found = parseDescription(text, "f.json", folder);
  ASSERT_TRUE(found.ok()) << found.status().str();
  const Problem &problem = found->situations.at(0).problem;
  ASSERT_EQ(problem.devices.size(), 4u);
  EXPECT_EQ(problem.devices[3].rate, 25000);
  EXPECT_EQ(problem.devices[2].node, 1);
  EXPECT_EQ(parseDescription(R"({"cluster": "c.json", "devices": 4, "layers": 8,
                                 "microbatches": 8, "rho": [1],
                                 "mesh": {"pp": 2, "dp": 1, "tp": 2}})",
                             "f.json", folder)
                .status()
                .str(),
            "f.json: cluster: says how many devices there are: devices and "
            "devices_per_node contradict it");
}

TEST(Description, SaysAllThatIsWrong) {
  EXPECT_EQ(errorsOf("[]"), "f.json: expected a JSON object");
  EXPECT_EQ(errorsOf("{"),
            "f.json:1:2: expected a JSON object, found a syntax error");
  EXPECT_EQ(errorsOf(R"({"layers": 1, "layers": 2})"),
            "f.json: layers: appears twice in one object");
  EXPECT_EQ(
      errorsOf(R"({"devices": 4, "layers": 1.5, "microbatches": -1, "rho": [],
                   "mesh": {"pp": 1, "tp": "x", "cp": 2}, "memory": {},
                   "seconds": 0, "speed": 1,
                   "stragglers": {"4": 2, "1-x": 2, "2": -1, "3": "slow"},
                   "plan": {"pipelines": [{"microbatches": 1, "stages": [
                     {"devices": 3, "layers": "x"}]}, 7, {"stages": []}]}})"),
      "f.json: there is no field 'speed'; known are notes, cluster, devices, "
      "devices_per_node, mesh, layers, microbatches, rho, threshold, memory, "
      "seconds, stragglers, situations, plan\n"
      "f.json: layers: expected a whole number, found 1.5\n"
      "f.json: microbatches: expected a whole number, found -1\n"
      "f.json: rho: expected a list of numbers\n"
      "f.json: mesh: there is no field 'cp'; known are pp, dp, tp\n"
      "f.json: mesh.dp: expected a whole number, found nothing\n"
      "f.json: mesh.tp: expected a whole number, found \"x\"\n"
      "f.json: memory.limit: expected a number, found nothing\n"
      "f.json: memory.layer: expected a list of numbers\n"
      "f.json: stragglers.4: expected devices between 0 and 3, found 4\n"
      "f.json: stragglers.1-x: expected devices as in '0-3,7', found '1-x'\n"
      "f.json: stragglers.2: expected how many times longer than a normal "
      "device it takes, up to 10000, or \"gone\", found -1\n"
      "f.json: stragglers.3: expected how many times longer than a normal "
      "device it takes, up to 10000, or \"gone\", found \"slow\"\n"
      "f.json: seconds: expected a positive number, found 0\n"
      "f.json: plan.pipelines[0].stages[0].layers: expected a whole number, "
      "found \"x\"\n"
      "f.json: plan.pipelines[0].stages[0].devices: expected a string, found "
      "3\n"
      "f.json: plan.pipelines[1]: expected an object with microbatches, "
      "stages\n"
      "f.json: plan.pipelines[2].microbatches: expected a whole number, found "
      "nothing\n"
      "f.json: plan.pipelines[2].stages: expected a list of at least one");
  EXPECT_EQ(errorsOf("{" + kGood + R"(, "situations": {}, "stragglers": {}})"),
            "f.json: stragglers: stand in each of the situations\n"
            "f.json: situations: expected an object of at least one");
  EXPECT_EQ(errorsOf("{" + kGood + R"(, "threshold": 0.5})"),
            "f.json: threshold: expected a number from 1 to 10000, found 0.5");
  EXPECT_EQ(errorsOf(R"({"devices": 1e9, "layers": 1, "microbatches": 1,
                         "rho": [1], "mesh": {"pp": 1, "dp": 1, "tp": 1}})")
                .substr(0, 47),
            "f.json: devices: at most 65536, found 100000000");
}

TEST(Description, RatesAsText) {
  Problem problem = goldenModel("32B");
  EXPECT_EQ(setRates(problem, "0,2=2.57,8-9=6.87,20=gone").str(), "");
  EXPECT_EQ(problem.devices[0].rate, 25700);
  EXPECT_EQ(problem.devices[1].rate, kOne);
  EXPECT_EQ(problem.devices[2].rate, 25700);
  EXPECT_EQ(problem.devices[9].rate, 68700);
  EXPECT_EQ(problem.devices[20].rate, kFailed);
  EXPECT_EQ(setRates(problem, "").str(), "");
  for (const char *text : {"0", "0=", "0=x", "0=-2", "0=2,3", "=", "0=1e9"})
    EXPECT_EQ(setRates(problem, text).messages().size(), 1u) << text;
  EXPECT_EQ(setRates(problem, "40=2").str(),
            "expected devices between 0 and 31, found 40");
}

TEST(Description, PlansComeBack) {
  for (int s = 1; s <= kSituations; ++s) {
    const Problem problem = situationProblem(s, 64);
    const Result<Replanning> found = replan(problem, uniformPlan(problem));
    ASSERT_TRUE(found.ok());
    const Plan &plan = found->best().plan;
    const Result<Plan> back = parsePlan(toJson(plan), "p.json");
    ASSERT_TRUE(back.ok()) << back.status().str();
    EXPECT_EQ(*back, plan);
  }
  EXPECT_EQ(parsePlan("{\"plan\": 3}", "p.json").status().str(),
            "p.json: plan: expected an object with pipelines");
}

} // namespace
} // namespace merak::stragglers
