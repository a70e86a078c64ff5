// The page of a plan and the timeline of a run that goes into it.
#include "runtime/report/Html.h"
#include "runtime/report/Measured.h"
#include "test/unit/plan/PlanBuilder.h"
#include "test/unit/report/MachineCosts.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace merak::report {
namespace {

using Json = nlohmann::json;

Json dataOf(const std::string &page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

// A trace of the simulated plan with all times stretched, as a run would
// write it: every instruction of every rank.
std::string traceOf(const LoadedPlan &plan, double factor, int steps) {
  Json events = Json::array();
  CommunicationMap map(plan);
  const MachineCosts costs = MachineCosts::cpu();
  Execution execution(
      plan, map,
      [&](const ExecutionSite &site) {
        const planpb::Program &program =
            plan.programOf(map.representative(site.rankClass));
        const planpb::Instruction &inst =
            program.procedures(program.calls(site.call).procedure())
                .instructions(site.instruction);
        return inst.kind() == planpb::Instruction::LIBRARY
                   ? costs.computeSeconds(program, inst, 0)
                   : 1e-6;
      },
      [&](const ExecutionSpan &span) {
        for (int step = 1; step <= steps; ++step)
          for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
            if (map.classOf(rank) != span.rankClass)
              continue;
            const planpb::Call &call = plan.programOf(rank).calls(span.call);
            events.push_back(
                {{"ph", "X"},
                 {"name", "n"},
                 {"pid", rank},
                 {"tid", 0},
                 {"ts", 1e6 * (factor * step * span.begin + step)},
                 {"dur", 1e6 * factor * step * (span.end - span.begin)},
                 {"args",
                  {{"step", step},
                   {"action",
                    plan.programOf(rank).procedures(call.procedure()).name()},
                   {"microbatch", call.microbatch()},
                   {"instruction", span.instruction}}}});
          }
      });
  EXPECT_TRUE(execution.run());
  return Json{{"traceEvents", events}}.dump();
}

TEST(Html, HoldsEverythingAndFetchesNothing) {
  LoadedPlan plan = plantest::samplePlan();
  plan.file.set_model("models/<b>&c\"/model.onnx");
  Decisions decisions;
  decisions.candidates = {{.name = "</script><script>alert(1)", .pp = 2},
                          {.pp = 1, .seconds = 2, .chosen = true}};
  decisions.stages = {{.first = "a", .last = "b", .opsRecomputed = 3}};
  decisions.text = "line <1>\nline 2";
  *plan.file.mutable_decisions() = toProto(decisions);
  Result<Simulation> simulation = simulate(plan, MachineCosts::cpu());
  ASSERT_TRUE(simulation.ok());
  const std::string page = htmlReport(plan, *simulation);
  EXPECT_EQ(page.rfind("<!DOCTYPE html>", 0), 0u);
  EXPECT_NE(page.find("<title>&lt;b>&amp;c\": training step</title>"),
            std::string::npos);
  for (const char *mark :
       {"@TITLE@", "@STYLE@", "@SCRIPT@", "@DATA@", "src=", "@import", "url("})
    EXPECT_EQ(page.find(mark), std::string::npos) << mark;
  const Json data = dataOf(page);
  EXPECT_EQ(data["text"], decisions.text);
  EXPECT_EQ(data["candidates"][0]["name"], decisions.candidates[0].name);
  EXPECT_EQ(data["candidates"][1]["chosen"], true);
  EXPECT_EQ(data["stages"][0]["opsRecomputed"], 3);
  EXPECT_EQ(data["rows"].size(), 2u);
  ASSERT_EQ(data["timelines"].size(), 1u);
  EXPECT_EQ(data["timelines"][0]["spans"].size(),
            simulation->timeline.spans.size());
  EXPECT_EQ(data["memory"].size(), 2u);
  EXPECT_FALSE(data["traffic"].empty());
}

TEST(Decisions, SurviveThePlanFile) {
  Decisions decisions;
  decisions.candidates = {{.name = "n",
                           .pp = 2,
                           .dp = 3,
                           .tp = 4,
                           .microbatches = 5,
                           .microbatch = 6,
                           .schedule = "s",
                           .recompute = "r",
                           .tpOverlap = 7,
                           .seconds = 8,
                           .memoryBytes = 9,
                           .exposedSeconds = 10,
                           .bubbleSeconds = 11,
                           .chosen = true,
                           .feasible = false,
                           .why = "w"}};
  decisions.stages = {{.first = "f",
                       .last = "l",
                       .forwardSeconds = 1,
                       .backwardSeconds = 2,
                       .memoryBytes = 3,
                       .memoryLimit = 4,
                       .opsRecomputed = 5,
                       .ops = 6,
                       .recomputedBytes = 7,
                       .recomputeSeconds = 8,
                       .why = "y"}};
  decisions.text = "t";
  planpb::PlanFile file;
  *file.mutable_decisions() = toProto(decisions);
  planpb::PlanFile again;
  *again.mutable_decisions() = toProto(decisionsOf(file));
  EXPECT_EQ(again.SerializeAsString(), file.SerializeAsString());
  EXPECT_EQ(decisionsOf(again).candidates[0].tpOverlap, 7);
  EXPECT_FALSE(decisionsOf(again).candidates[0].feasible);
  EXPECT_EQ(decisionsOf(again).stages[0].recomputeSeconds, 8);
}

// Of three steps the first is dropped; of the others the shorter is the lower
// median, twice as long as the prediction.
TEST(Measured, TakesTheMedianStepOfTheSameRows) {
  for (const LoadedPlan &plan :
       {plantest::samplePlan(), plantest::replicatedPlan(2)}) {
    Result<Timeline> one = measuredTimeline(plan, traceOf(plan, 1, 1));
    Result<Timeline> three = measuredTimeline(plan, traceOf(plan, 1, 3));
    ASSERT_TRUE(one.ok() && three.ok()) << one.status().str();
    EXPECT_EQ(one->title, "measured, step 1");
    EXPECT_EQ(three->title, "measured, step 2");
    EXPECT_NEAR(three->end(), 2 * one->end(), 1e-9);
    EXPECT_EQ(one->rows, rowLabels(plan, CommunicationMap(plan)));
    std::vector<RowUse> use = rowUse(*three);
    for (const RowUse &row : use)
      EXPECT_GT(row.busy, 0);
    Result<Simulation> simulation = simulate(plan, MachineCosts::cpu());
    ASSERT_TRUE(simulation.ok());
    const Timeline both = overlay(simulation->timeline, *three);
    EXPECT_EQ(both.rows.size(), 2 * use.size());
    EXPECT_NEAR(rowUse(both)[1].busy, use[0].busy, 1e-12);
    EXPECT_NEAR(rowUse(both)[0].total(), simulation->timeline.end(), 1e-12);
    EXPECT_EQ(
        dataOf(htmlReport(plan, *simulation, &*three))["timelines"].size(), 2u);
  }
}

// A send waits for its receiver; what counts begins when both are there.
TEST(Measured, TransfersBeginWithTheLastPartner) {
  LoadedPlan plan = plantest::samplePlan();
  Json trace = Json::parse(traceOf(plan, 1, 1));
  double sends = 0, early = 0;
  for (Json &event : trace["traceEvents"]) {
    const planpb::Program &program = plan.programOf(event["pid"].get<int>());
    for (const planpb::Procedure &procedure : program.procedures())
      if (procedure.name() == event["args"]["action"] &&
          procedure.instructions(event["args"]["instruction"].get<int>())
                  .kind() == planpb::Instruction::SEND) {
        event["ts"] = event["ts"].get<double>() - 0.25;
        event["dur"] = event["dur"].get<double>() + 0.25;
        ++sends;
      }
  }
  Result<Timeline> timeline = measuredTimeline(plan, trace.dump());
  ASSERT_TRUE(timeline.ok()) << timeline.status().str();
  for (const Span &span : timeline->spans)
    early += span.kind == "send" && span.end - span.begin > 1.1e-6;
  EXPECT_GT(sends, 0);
  EXPECT_EQ(early, 0);
}

// What a killed run leaves: whole lines, then a part of one.
TEST(Measured, ACutLastLineIsLeftOut) {
  const LoadedPlan plan = plantest::samplePlan();
  const Json trace = Json::parse(traceOf(plan, 1, 3));
  std::string whole = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (const Json &event : trace["traceEvents"])
    whole += event.dump() + ",\n";
  const std::string end = whole.substr(0, whole.size() - 2) + "\n]}\n";
  Result<Timeline> expected = measuredTimeline(plan, end);
  ASSERT_TRUE(expected.ok()) << expected.status().str();
  const std::string last = trace["traceEvents"].back().dump();
  for (size_t kept = 0; kept < last.size(); ++kept) {
    Result<Timeline> found =
        measuredTimeline(plan, whole + last.substr(0, kept));
    ASSERT_TRUE(found.ok()) << kept << ": " << found.status().str();
    EXPECT_NEAR(found->end(), expected->end(), 1e-12);
  }
}

TEST(Measured, WrongTraces) {
  const LoadedPlan plan = plantest::samplePlan();
  EXPECT_EQ(measuredTimeline(plan, "nonsense").status().str(),
            "expected a trace in Chrome's format, as merak-run --trace writes "
            "it");
  EXPECT_EQ(measuredTimeline(plan, "{\"traceEvents\": []}").status().str(),
            "the trace has no events");
  const std::string good = traceOf(plan, 1, 1);
  for (auto [key, value] :
       {std::pair("pid", Json(7)), std::pair("pid", Json("x")),
        std::pair("ts", Json()), std::pair("dur", Json(-1))}) {
    Json trace = Json::parse(good);
    trace["traceEvents"][0][key] = value;
    EXPECT_EQ(measuredTimeline(plan, trace.dump()).status().str(),
              "event \"n\" is of another plan")
        << key;
  }
  for (auto [key, value] :
       {std::pair("action", Json("absent")), std::pair("action", Json(1)),
        std::pair("instruction", Json(1000)), std::pair("step", Json())}) {
    Json trace = Json::parse(good);
    trace["traceEvents"][0]["args"][key] = value;
    EXPECT_FALSE(measuredTimeline(plan, trace.dump()).ok()) << key;
  }
  EXPECT_EQ(readMeasured(plan, "/nowhere").status().str(),
            "/nowhere: cannot be read: no such file or directory");
}

} // namespace
} // namespace merak::report
