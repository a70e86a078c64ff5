// Use of time per row, and the three drawings of a timeline.
#include "runtime/report/Timeline.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace merak::report {
namespace {

Span compute(int row, const char *kind, int64_t microbatch, double begin,
             double end) {
  return {row, false, "compute", "body", kind, microbatch, begin, end};
}
Span transfer(int row, double begin, double end) {
  return {row, true, "comm", "h < \"4\"", "send", 0, begin, end};
}

// Two stages, two microbatches, F = 1 s, B = 2 s, as GPipe would.
Timeline gpipe() {
  return {"gpipe",
          {"stage 0", "stage 1"},
          {compute(0, "F", 0, 0, 1), compute(0, "F", 1, 1, 2),
           compute(1, "F", 0, 1, 2), compute(1, "F", 1, 2, 3),
           compute(1, "B", 0, 3, 5), compute(1, "B", 1, 5, 7),
           compute(0, "B", 0, 5, 7), compute(0, "B", 1, 7, 9)}};
}

TEST(RowUse, AddsUpToTheStep) {
  Timeline timeline = gpipe();
  // Half hidden behind F1, half exposed.
  timeline.spans.push_back(transfer(0, 1.5, 2.5));
  timeline.spans.push_back(transfer(0, 2.25, 2.75));
  std::vector<RowUse> use = rowUse(timeline);
  ASSERT_EQ(use.size(), 2u);
  EXPECT_DOUBLE_EQ(use[0].busy, 6);
  EXPECT_DOUBLE_EQ(use[0].exposed, 0.75);
  EXPECT_DOUBLE_EQ(use[0].bubble, 2.25);
  EXPECT_DOUBLE_EQ(use[1].busy, 6);
  EXPECT_DOUBLE_EQ(use[1].exposed, 0);
  EXPECT_DOUBLE_EQ(use[1].bubble, 3);
  EXPECT_DOUBLE_EQ(use[0].total(), 9);
}

TEST(DrawText, ShowsActionsAndPercentages) {
  EXPECT_EQ(drawText(gpipe(), 36),
            "gpipe, 9.000 s\n"
            "stage 0 |F0--F1--............B0======B1======| "
            "busy  66.7%  exposed   0.0%  bubble  33.3%\n"
            "stage 1 |....F0--F1--B0======B1======........| "
            "busy  66.7%  exposed   0.0%  bubble  33.3%\n");
}

TEST(DrawText, CommunicationShowsWhereNothingIsComputed) {
  Timeline timeline = gpipe();
  timeline.spans.push_back(transfer(0, 1, 4));
  std::string text = drawText(timeline, 18);
  EXPECT_NE(text.find("stage 0 |F0F1>>>>..B0==B1==|"), std::string::npos)
      << text;
}

TEST(DrawText, TooNarrowForLabels) {
  std::string text = drawText(gpipe(), 9);
  EXPECT_NE(text.find("stage 0 |--...B0B1|"), std::string::npos) << text;
}

TEST(DrawText, EmptyTimeline) {
  EXPECT_EQ(drawText({"nothing", {"stage 0"}, {}}, 10),
            "nothing, 0.000 us\nstage 0 |..........| busy   0.0%  exposed   "
            "0.0%  bubble   0.0%\n");
}

int count(const std::string &text, const std::string &part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++n;
  return n;
}

TEST(DrawSvg, HasABlockPerSpanAndEscapesNames) {
  Timeline timeline = gpipe();
  timeline.spans.push_back(transfer(0, 1, 4));
  std::string svg = drawSvg(timeline);
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  EXPECT_EQ(count(svg, "<title>"), 9);
  EXPECT_EQ(count(svg, ">B1<"), 2);
  EXPECT_NE(svg.find("h &lt; &quot;4&quot;"), std::string::npos);
  EXPECT_EQ(svg.find("h < "), std::string::npos);
  // F1 of stage 0: one ninth of 1000 pixels, one ninth in.
  EXPECT_NE(svg.find("<rect x=\"281.11\" y=\"56\" width=\"111.11\""),
            std::string::npos)
      << svg;
}

TEST(ChromeTrace, IsJsonWithMicroseconds) {
  Timeline timeline = gpipe();
  timeline.spans.push_back(transfer(1, 1, 4));
  nlohmann::json trace = nlohmann::json::parse(chromeTrace(timeline));
  int spans = 0;
  for (const nlohmann::json &event : trace["traceEvents"]) {
    if (event["ph"] != "X")
      continue;
    ++spans;
    if (event["cat"] == "send") {
      EXPECT_EQ(event["pid"], 1);
      EXPECT_EQ(event["tid"], 1); // not the compute thread
      EXPECT_DOUBLE_EQ(event["dur"], 3e6);
    }
  }
  EXPECT_EQ(spans, 9);
}

} // namespace
} // namespace merak::report
