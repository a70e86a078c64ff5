// merak-plan rates: what it prints and writes, judged by a checker that shares
// no code with the planner.
#include "test/unit/report/ToolTesting.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace fs = std::filesystem;

namespace merak {
namespace {

using nlohmann::json;

std::string contents(const fs::path &path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::vector<int> devicesOf(const std::string &text) {
  std::vector<int> devices;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const int first = std::stoi(part);
    const int last =
        dash == std::string::npos ? first : std::stoi(part.substr(dash + 1));
    for (int device = first; device <= last; ++device)
      devices.push_back(device);
  }
  return devices;
}

// A printed plan against the model and the rates of the golden file: steady
// and filled time, or what is wrong.
struct Judged {
  double steady = 0, filled = 0;
  std::string wrong;
};
class Judge {
public:
  Judge(const json &model, const json &rates) : model(model), rates(rates) {}

  Judged judge(const json &plan) {
    int microbatches = 0;
    for (const json &pipeline : plan["pipelines"]) {
      microbatches += pipeline["microbatches"].get<int>();
      judgePipeline(pipeline);
    }
    require(microbatches == model["microbatches"], "microbatches");
    return judged;
  }

private:
  void require(bool holds, const std::string &what) {
    if (!holds)
      judged.wrong += what + "; ";
  }

  void judgePipeline(const json &pipeline) {
    const json &stages = pipeline["stages"];
    const int m = pipeline["microbatches"];
    require(m >= int(stages.size()), "stages");
    require(stages.size() <= model["mu_from_end"].size(), "longest");
    double slowest = 0, all = 0;
    int layers = 0;
    for (size_t j = 0; j < stages.size(); ++j) {
      const double time = judgeStage(stages[j], stages.size() - 1 - j,
                                     j == 0 || j + 1 == stages.size());
      slowest = std::max(slowest, time);
      all += time;
      layers += stages[j]["layers"].get<int>();
    }
    require(layers == model["layers"], "layers");
    judged.steady = std::max(judged.steady, m * slowest);
    judged.filled = std::max(judged.filled, (m - 1) * slowest + all);
  }

  double judgeStage(const json &stage, size_t behind, bool isEdge) {
    const int layers = stage["layers"];
    const std::vector<int> devices =
        devicesOf(stage["devices"].get<std::string>());
    const int shrink = model["tp"].get<int>() / int(devices.size());
    const double k = std::log2(shrink);
    require(k == std::floor(k) && k >= 0 && layers > 0, "size");
    double slowest = 1;
    for (int device : devices) {
      require(used.insert(device).second, "twice");
      require(device / 8 == devices[0] / 8, "node");
      slowest = std::max(slowest, rates.value(std::to_string(device), 1.0));
    }
    const double memory = (model["mu_from_end"][behind].get<double>() * layers +
                           (isEdge ? model["emb"].get<double>() : 0)) *
                              shrink +
                          model["extra"].get<double>();
    require(memory <= model["bound"].get<double>() - model["gap"].get<double>(),
            "memory");
    const double y = model["rho"][size_t(k)].get<double>() * slowest;
    return layers * (y < 1.2 ? 1 : y);
  }

  const json &model, &rates;
  Judged judged;
  std::set<int> used;
};

class RatesTool : public test::PlanToolTest {
protected:
  void SetUp() override {
    PlanToolTest::SetUp();
    golden = json::parse(contents(fs::path(MERAK_SOURCE_DIR) /
                                  "test/data/golden/stragglers.json"));
  }

  int run(std::vector<std::string> arguments) {
    return runTool("rates", std::move(arguments));
  }

  // A model of the golden file as a description.
  std::string describe(const json &model, const json &rates) {
    json memory = {
        {"limit",
         (model["bound"].get<double>() - model["gap"].get<double>()) * 1e6},
        {"fixed", model["extra"].get<double>() * 1e6},
        {"edge", model["emb"].get<double>() * 1e6}};
    for (const json &mu : model["mu_from_end"])
      memory["layer"].push_back(mu.get<double>() * 1e6);
    json rho;
    for (size_t k = 0; k < model["rho"].size(); ++k)
      if (model["tp"].get<int>() >> k)
        rho.push_back(model["rho"][k]);
    return json{
        {"devices", model["gpus"]},
        {"devices_per_node", model["gpus_per_node"]},
        {"mesh",
         {{"pp", model["pp"]}, {"dp", model["dp"]}, {"tp", model["tp"]}}},
        {"layers", model["layers"]},
        {"microbatches", model["microbatches"]},
        {"rho", rho},
        {"memory", memory},
        {"stragglers", rates}}
        .dump();
  }

  json golden;
};

TEST_F(RatesTool, PrintedPlansAreJudged) {
  int compared = 0;
  for (const json &entry : golden["cases"])
    for (const char *objective : {"steady", "filled"}) {
      SCOPED_TRACE(entry["name"].get<std::string>() + ", " + objective);
      const json &model = golden["models"][entry["model"].get<std::string>()];
      ASSERT_EQ(run({describe(model, entry["rates"]), "--json",
                     std::string("--objective=") + objective}),
                0)
          << err;
      const json report = json::parse(out)[0];
      const Judged judged = Judge(model, entry["rates"]).judge(report["plan"]);
      EXPECT_EQ(judged.wrong, "");
      const json &chosen =
          report["reached"][report["chosen"].get<std::string>()]["score"];
      EXPECT_NEAR(judged.steady, chosen["steady"].get<double>(), 1e-3);
      EXPECT_NEAR(judged.filled, chosen["filled"].get<double>(), 1e-3);
      EXPECT_NEAR(report["theory"].get<double>(), entry["theory"].get<double>(),
                  1e-3);
      EXPECT_NEAR(report["of_theory"].get<double>(),
                  judged.steady / entry["theory"].get<double>(), 1e-5);
      const json &rebalance = entry["rebalance_only"];
      if (std::string(objective) == "steady") {
        EXPECT_LE(judged.steady,
                  1.02 * entry["best"]["objective"].get<double>());
        EXPECT_LE(judged.steady, rebalance["objective"].get<double>() + 1e-6);
      } else {
        EXPECT_LE(judged.filled,
                  rebalance["with_fill_and_drain"].get<double>() + 1e-2);
        EXPECT_LE(judged.filled,
                  1.01 * entry["best"]["with_fill_and_drain"].get<double>());
      }
      ++compared;
    }
  EXPECT_EQ(compared, 22);
}

TEST_F(RatesTool, PrintsReactionsAndPlan) {
  const std::string text =
      R"({"devices": 8, "devices_per_node": 4, "layers": 8, "microbatches": 8,
          "mesh": {"pp": 1, "dp": 2, "tp": 4}, "rho": [1, 1.9],
          "stragglers": {"0": 3}})";
  ASSERT_EQ(run({text, "--reaction=microbatches"}), 0) << err;
  EXPECT_EQ(
      out,
      "stragglers: 8 devices on 2 nodes, 1 slow, 0 gone; 8 layers, 8 "
      "microbatches\n"
      "  layer times       steady    filled of theory  of bound\n"
      "  as it is            96.0      96.0     2.750     2.553\n"
      "  restart             64.0      64.0     1.833     1.702\n"
      "  microbatches        48.0      48.0     1.375     1.276  0.0 layers "
      "move\n"
      "  theory 34.9: 32.0 of normal devices * 8 / 7.333\n"
      "  bound 37.6 of these groups\n"
      "  chosen: microbatches\n"
      "  pipeline 0: 2 microbatches of 24.0\n"
      "    stage 0: layers 0-7 on 0-3, rate 3\n"
      "  pipeline 1: 6 microbatches of 8.0\n"
      "    stage 0: layers 0-7 on 4-7, rate 1\n");
  // In seconds: half of one each.
  std::string inSeconds = text;
  inSeconds.insert(1, "\"seconds\": 0.5, ");
  ASSERT_EQ(run({inSeconds, "--reaction=microbatches"}), 0) << err;
  EXPECT_NE(out.find("  as it is         48.0000   48.0000     2.750"),
            std::string::npos)
      << out;
  ASSERT_EQ(run({text, "--rates=0=1,5=gone", "--reaction=layers"}), 0) << err;
  EXPECT_NE(out.find("1 node"), 0u);
  EXPECT_NE(out.find("devices that are gone have work"), std::string::npos);
  EXPECT_NE(out.find("\n  standby: 4,6-7\n  gone: 5\n"), std::string::npos)
      << out;
}

TEST_F(RatesTool, TheSameTextWithAnyThreads) {
  const std::string file = MERAK_SOURCE_DIR "/samples/stragglers/110b.json";
  ASSERT_EQ(run({file, "--threads=1"}), 0) << err;
  const std::string one = out;
  for (const char *threads : {"--threads=2", "--threads=7", "--threads=0"}) {
    ASSERT_EQ(run({file, threads}), 0);
    EXPECT_EQ(out, one) << threads;
  }
}

// A report holds the plan from which the next one starts.
TEST_F(RatesTool, GoesOnFromAPlan) {
  const std::string file = MERAK_SOURCE_DIR "/samples/stragglers/70b.json";
  const std::string saved = (root / "plan.json").string();
  ASSERT_EQ(run({file, "--situation=S2", "-o", saved}), 0) << err;
  const json report = json::parse(contents(saved));
  EXPECT_GT(report["reached"]["grouping"]["moved_layers"], 0);
  // The same situation again: the plan stays.
  ASSERT_EQ(run({file, "--situation=S2", "--from=" + saved, "--json"}), 0)
      << err;
  const json again = json::parse(out)[0];
  EXPECT_EQ(again["chosen"], "none");
  EXPECT_EQ(again["plan"], report["plan"]);
  // All devices are normal again.
  ASSERT_EQ(
      run({file, "--situation=S2", "--rates=0=1", "--from=" + saved, "--json"}),
      0);
  EXPECT_EQ(json::parse(out)[0]["reached"]["grouping"]["score"]["steady"],
            640.0);
}

TEST_F(RatesTool, Compares) {
  const std::string file = MERAK_SOURCE_DIR "/samples/stragglers/70b.json";
  ASSERT_EQ(run({file, "--compare"}), 0) << err;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 7);
  EXPECT_NE(
      out.find("\nS4               8019.2     1024.0     1200.0     1000.0"
               "      667.0 "),
      std::string::npos)
      << out;
}

TEST_F(RatesTool, SaysWhatIsWrong) {
  const std::string file = MERAK_SOURCE_DIR "/samples/stragglers/70b.json";
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({file, "--objective=x"}), 2);
  EXPECT_EQ(run({file, "--json", "--compare"}), 2);
  EXPECT_EQ(run({file, "--threads=-1"}), 2);
  EXPECT_EQ(run({file, "--situation=S7"}), 1);
  EXPECT_EQ(err, "error: --situation=S7: there is none; known are S1; S2; S3; "
                 "S4; S5; S6\n");
  EXPECT_EQ(run({file, "-o", (root / "x.json").string()}), 1);
  EXPECT_EQ(err, "error: --output takes one situation: choose it with "
                 "--situation=NAME\n");
  EXPECT_EQ(run({file, "--rates=99=2"}), 1);
  EXPECT_EQ(err.substr(0, 60),
            "error: --rates: expected devices between 0 and 63, found 99\n");
  EXPECT_EQ(run({(root / "absent.json").string()}), 1);
  EXPECT_EQ(err, "error: " + (root / "absent.json").string() +
                     ": no such file or directory\n");
  std::ofstream(root / "plan.json") << R"({"pipelines": [{"microbatches": 64,
    "stages": [{"devices": "0-7", "layers": 80}]}]})";
  EXPECT_EQ(
      run({file, "--situation=S1", "--from=" + (root / "plan.json").string()}),
      1);
  EXPECT_EQ(err, "error: S1: the plan that runs: pipeline 0, stage 0: needs "
                 "137060000000 bytes, a device has 77156000000\n");
  EXPECT_EQ(run({file, "--rates=0-63=gone", "--situation=S1"}), 1);
  EXPECT_EQ(err, "error: S1: devices: 0 groups are left for 2 pipelines\n"
                 "error: S1: memory: 2 pipelines have 160 layers, the devices "
                 "that are left hold at most 0\n");
}

} // namespace
} // namespace merak
