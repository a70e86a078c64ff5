// Timelines of a step, predicted or measured, and how they are drawn: as text
// for a terminal, as SVG, as a Chrome trace. The same drawing for both, so that
// a prediction and a run can be laid side by side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace merak::report {

struct Span {
  int row = 0; // index into Timeline.rows
  bool communication = false;
  std::string stream;      // "compute", "comm", ...
  std::string name;        // for tooltips and traces
  std::string kind;        // action "F", "B", ... or "send", "all_reduce", ...
  int64_t microbatch = -1; // -1: none
  double begin = 0, end = 0; // seconds
  double bytes = 0;          // that it moves; 0: not known
};

struct Timeline {
  std::string title;
  std::vector<std::string> rows; // "stage 0, ranks 0-3"
  std::vector<Span> spans;
  // Only if rows are of different timelines (see `overlay`): their lengths.
  std::vector<double> rowSeconds;

  double begin() const; // earliest begin; 0 without spans
  double end() const;
};

// How a row spends the step. The three parts add up to the whole.
struct RowUse {
  double busy = 0;    // computes
  double exposed = 0; // only communicates
  double bubble = 0;  // does neither
  double total() const { return busy + exposed + bubble; }
};
std::vector<RowUse> rowUse(const Timeline &timeline);

// Each row of `predicted` with the row of `measured` below it. Both have the
// same rows.
Timeline overlay(const Timeline &predicted, const Timeline &measured);

// One line a row, `columns` characters of time, percentages behind. A block
// shows its action and microbatch where it is wide enough:
//   stage 0 |F0-F1-........B0====B1====| busy 60.0%  exposed 0.0%  bubble 40.0%
std::string drawText(const Timeline &timeline, int columns = 100);
std::string drawSvg(const Timeline &timeline);
// Trace event format, as Perfetto and chrome://tracing read it.
std::string chromeTrace(const Timeline &timeline);

// "1.25 ms".
std::string humanSeconds(double seconds);

} // namespace merak::report
