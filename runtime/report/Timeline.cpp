#include "runtime/report/Timeline.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <map>
#include <nlohmann/json.hpp>

namespace merak::report {
namespace {

using Intervals = std::vector<std::pair<double, double>>;

// Sorts and joins intervals that touch.
Intervals merged(Intervals list) {
  std::sort(list.begin(), list.end());
  Intervals result;
  for (auto [begin, end] : list) {
    if (!result.empty() && begin <= result.back().second)
      result.back().second = std::max(result.back().second, end);
    else
      result.emplace_back(begin, end);
  }
  return result;
}

double length(const Intervals &list) {
  double sum = 0;
  for (auto [begin, end] : list)
    sum += end - begin;
  return sum;
}

// One letter per action, then the microbatch.
std::string label(const Span &span) {
  if (span.microbatch < 0)
    return span.kind;
  return fmt::format("{}{}", span.kind, span.microbatch);
}

char fill(const Span &span) {
  static const std::map<std::string, char> kFill{
      {"P", '+'}, {"F", '-'}, {"R", ':'}, {"B", '='}, {"W", '~'}, {"U", '*'}};
  auto it = kFill.find(span.kind);
  return it == kFill.end() ? '#' : it->second;
}

// Okabe and Ito's colours, which colour-blind readers can tell apart too.
const char *colour(const Span &span) {
  static const std::map<std::string, const char *> kColour{
      {"P", "#7a7a7a"}, {"F", "#0072b2"}, {"R", "#cc79a7"},
      {"B", "#e69f00"}, {"W", "#009e73"}, {"U", "#d55e00"}};
  auto it = kColour.find(span.kind);
  return it == kColour.end() ? "#56b4e9" : it->second;
}

const char *labelColour(const Span &span) {
  return span.kind == "B" || span.kind == "R" ? "black" : "white";
}

std::string escaped(const std::string &text) {
  std::string result;
  for (char c : text) {
    switch (c) {
    case '&':
      result += "&amp;";
      break;
    case '<':
      result += "&lt;";
      break;
    case '>':
      result += "&gt;";
      break;
    case '"':
      result += "&quot;";
      break;
    default:
      result += c;
    }
  }
  return result;
}

std::string percentages(const RowUse &use) {
  double total = use.total() > 0 ? use.total() : 1;
  return fmt::format("busy {:5.1f}%  exposed {:5.1f}%  bubble {:5.1f}%",
                     100 * use.busy / total, 100 * use.exposed / total,
                     100 * use.bubble / total);
}

// A round step (1, 2 or 5 times a power of ten) that gives about ten ticks.
double tickStep(double total) {
  double raw = total / 10, power = std::pow(10, std::floor(std::log10(raw)));
  for (double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power)
      return factor * power;
  return 10 * power;
}

} // namespace

double Timeline::begin() const {
  if (spans.empty())
    return 0;
  double first = spans.front().begin;
  for (const Span &span : spans)
    first = std::min(first, span.begin);
  return first;
}

double Timeline::end() const {
  double last = begin();
  for (const Span &span : spans)
    last = std::max(last, span.end);
  return last;
}

std::vector<RowUse> rowUse(const Timeline &timeline) {
  std::vector<Intervals> compute(timeline.rows.size());
  std::vector<Intervals> all(timeline.rows.size());
  for (const Span &span : timeline.spans) {
    all[span.row].emplace_back(span.begin, span.end);
    if (!span.communication)
      compute[span.row].emplace_back(span.begin, span.end);
  }
  double total = timeline.end() - timeline.begin();
  std::vector<RowUse> result(timeline.rows.size());
  for (size_t row = 0; row < result.size(); ++row) {
    double busy = length(merged(compute[row]));
    double active = length(merged(all[row]));
    double whole =
        timeline.rowSeconds.empty() ? total : timeline.rowSeconds[row];
    result[row] = {busy, active - busy, std::max(0.0, whole - active)};
  }
  return result;
}

Timeline overlay(const Timeline &predicted, const Timeline &measured) {
  Timeline result;
  result.title = fmt::format("{}, {}", predicted.title, measured.title);
  for (const std::string &row : predicted.rows) {
    result.rows.push_back(row);
    result.rows.push_back("  measured");
  }
  const Timeline *both[] = {&predicted, &measured};
  for (int which : {0, 1}) {
    const double start = both[which]->begin();
    for (Span span : both[which]->spans) {
      span.row = 2 * span.row + which;
      span.begin -= start;
      span.end -= start;
      result.spans.push_back(std::move(span));
    }
  }
  for (size_t row = 0; row < result.rows.size(); ++row)
    result.rowSeconds.push_back(both[row % 2]->end() - both[row % 2]->begin());
  return result;
}

std::string humanSeconds(double seconds) {
  if (seconds >= 1)
    return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3)
    return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.3f} us", seconds * 1e6);
}

std::string drawText(const Timeline &timeline, int columns) {
  double start = timeline.begin(), total = timeline.end() - start;
  std::string text =
      fmt::format("{}{}{}\n", timeline.title,
                  timeline.title.empty() ? "" : ", ", humanSeconds(total));
  size_t width = 0;
  for (const std::string &row : timeline.rows)
    width = std::max(width, row.size());
  std::vector<std::string> lines(timeline.rows.size(),
                                 std::string(columns, '.'));
  std::vector<const Span *> order;
  for (const Span &span : timeline.spans)
    order.push_back(&span);
  // Communication shows only where nothing is computed.
  std::stable_sort(order.begin(), order.end(),
                   [](const Span *a, const Span *b) {
                     return a->communication > b->communication;
                   });
  for (const Span *span : order) {
    if (total <= 0)
      break;
    auto column = [&](double time) {
      return static_cast<int>(std::lround((time - start) / total * columns));
    };
    int first = column(span->begin), last = column(span->end);
    if (span->communication) {
      for (int c = first; c < last; ++c)
        lines[span->row][c] = '>';
      continue;
    }
    // A block that rounds to nothing still leaves a mark.
    if (first == last)
      first = std::min(first, columns - 1), last = first + 1;
    std::string name = label(*span);
    for (int c = first; c < last; ++c) {
      size_t at = c - first;
      bool named = name.size() <= static_cast<size_t>(last - first);
      lines[span->row][c] = named && at < name.size() ? name[at] : fill(*span);
    }
  }
  std::vector<RowUse> use = rowUse(timeline);
  for (size_t row = 0; row < lines.size(); ++row)
    text += fmt::format("{:<{}} |{}| {}\n", timeline.rows[row], width,
                        lines[row], percentages(use[row]));
  return text;
}

std::string drawSvg(const Timeline &timeline) {
  constexpr int kLeft = 170, kWidth = 1000, kRight = 270, kTop = 56;
  constexpr int kBar = 26, kThin = 7, kGap = 10;
  double start = timeline.begin();
  double total = std::max(timeline.end() - start, 1e-12);
  auto x = [&](double time) { return kLeft + (time - start) / total * kWidth; };

  // Below each row's bar: a thin one for each of its communication streams.
  std::vector<std::map<std::string, int>> thin(timeline.rows.size());
  for (const Span &span : timeline.spans)
    if (span.communication)
      thin[span.row].emplace(span.stream, 0);
  std::vector<int> tops;
  int y = kTop;
  for (auto &streams : thin) {
    tops.push_back(y);
    int next = y + kBar + 1;
    for (auto &[name, at] : streams) {
      at = next;
      next += kThin;
    }
    y = next + kGap;
  }
  int height = y + 40;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" "
      "height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n<text x=\"12\" y=\"22\" font-size=\"15\">{2}, "
      "{3}</text>\n",
      kLeft + kWidth + kRight, height, escaped(timeline.title),
      humanSeconds(timeline.end() - start));
  std::vector<RowUse> use = rowUse(timeline);
  for (size_t row = 0; row < tops.size(); ++row) {
    svg += fmt::format("<text x=\"12\" y=\"{}\">{}</text>\n", tops[row] + 18,
                       escaped(timeline.rows[row]));
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
                       "fill=\"#f2f2f2\"/>\n",
                       kLeft, tops[row], kWidth, kBar);
    svg +=
        fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", kLeft + kWidth + 10,
                    tops[row] + 18, percentages(use[row]));
  }
  for (const Span &span : timeline.spans) {
    double left = x(span.begin), width = x(span.end) - left;
    int top = span.communication ? thin[span.row][span.stream] : tops[span.row];
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" "
        "fill=\"{}\"{}><title>{} {}: {} to {}</title></rect>\n",
        left, top, std::max(width, 0.3), span.communication ? kThin - 1 : kBar,
        colour(span),
        span.communication ? "" : " stroke=\"white\" stroke-width=\"0.5\"",
        escaped(label(span)), escaped(span.name),
        humanSeconds(span.begin - start), humanSeconds(span.end - start));
    std::string name = label(span);
    if (!span.communication && width > 8.0 * name.size())
      svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" "
                         "text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
                         left + width / 2, top + 17, labelColour(span),
                         escaped(name));
  }
  double step = tickStep(total);
  for (int i = 0; i * step <= total * (1 + 1e-9); ++i) {
    double at = x(start + i * step);
    svg +=
        fmt::format("<line x1=\"{0:.2f}\" y1=\"{1}\" x2=\"{0:.2f}\" "
                    "y2=\"{2}\" stroke=\"#cccccc\" stroke-width=\"0.5\"/>\n"
                    "<text x=\"{0:.2f}\" y=\"{3}\" text-anchor=\"middle\" "
                    "font-size=\"10\">{4}</text>\n",
                    at, kTop - 6, y - kGap, kTop - 10, humanSeconds(i * step));
  }
  int legend = kLeft;
  for (auto [kind, what] :
       {std::pair("P", "prologue"), std::pair("F", "forward"),
        std::pair("R", "recompute"), std::pair("B", "backward"),
        std::pair("W", "weight gradient"), std::pair("U", "update"),
        std::pair("communication", "communication")}) {
    Span sample;
    sample.kind = kind;
    svg +=
        fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" "
                    "fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
                    legend, y + 8, colour(sample), legend + 16, y + 18, what);
    legend += 130;
  }
  return svg + "</svg>\n";
}

std::string chromeTrace(const Timeline &timeline) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  std::vector<std::map<std::string, int>> threads(timeline.rows.size());
  for (size_t row = 0; row < timeline.rows.size(); ++row)
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", row},
                      {"args", {{"name", timeline.rows[row]}}}});
  for (const Span &span : timeline.spans) {
    std::map<std::string, int> &streams = threads[span.row];
    auto [it, fresh] =
        streams.emplace(span.stream, static_cast<int>(streams.size()));
    if (fresh)
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", span.row},
                        {"tid", it->second},
                        {"args", {{"name", span.stream}}}});
    events.push_back({{"ph", "X"},
                      {"name", label(span) + " " + span.name},
                      {"cat", span.kind},
                      {"pid", span.row},
                      {"tid", it->second},
                      {"ts", span.begin * 1e6},
                      {"dur", (span.end - span.begin) * 1e6}});
    if (span.bytes > 0)
      events.back()["args"] = {{"bytes", span.bytes}};
  }
  return nlohmann::ordered_json{{"traceEvents", events}}.dump(1) + "\n";
}

} // namespace merak::report
