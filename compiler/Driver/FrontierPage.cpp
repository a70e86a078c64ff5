#include "compiler/Driver/FrontierPage.h"

#include "runtime/report/Page.h"
#include "runtime/report/Timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace merak {
namespace {

constexpr double kWidth = 920, kHeight = 440;
constexpr double kLeft = 92, kRight = 130, kTop = 18, kBottom = 46;
constexpr double kMiB = 1 << 20;
constexpr std::array<const char *, 6> kColors = {"F", "B", "W",
                                                 "U", "R", "comm"};
const char *const kDataBegin =
    "<script type=\"application/json\" id=\"frontier\">";
const char *const kDataEnd = "</script>";

std::string escaped(const std::string &text) {
  std::string out;
  for (char c : text)
    out += c == '<'   ? std::string("&lt;")
           : c == '>' ? std::string("&gt;")
           : c == '&' ? std::string("&amp;")
           : c == '"' ? std::string("&quot;")
                      : std::string(1, c);
  return out;
}

std::string bytesStr(double bytes) {
  const double mebi = bytes / kMiB;
  return mebi >= 1024  ? fmt::format("{:.4g} GiB", mebi / 1024)
         : mebi >= 0.1 ? fmt::format("{:.4g} MiB", mebi)
                       : fmt::format("{:.4g} KiB", mebi * 1024);
}

// A logarithmic axis: curves of 4 and of 32 devices are equally readable.
struct Axis {
  double least = 0, most = 0; // of the values
  double from = 0, to = 0;    // on the page

  void take(double value) {
    least = most == 0 ? value : std::min(least, value);
    most = std::max(most, value);
  }
  // A little room, and a span where there is one value.
  void widen() {
    least /= 1.08;
    most *= 1.08;
  }
  double at(double value) const {
    return from +
           (to - from) * std::log(value / least) / std::log(most / least);
  }
  // 1, 2, 5 times powers of ten of `unit`; 1.5 and so on for a short axis.
  std::vector<double> ticks(double unit) const {
    std::vector<double> all;
    const bool isShort = most / least < 8;
    const std::vector<double> steps =
        isShort ? std::vector<double>{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9}
                : std::vector<double>{1, 2, 5};
    for (double power = std::pow(10, std::floor(std::log10(least / unit)));
         power * unit <= most; power *= 10)
      for (double step : steps)
        if (double value = step * power * unit; value >= least && value <= most)
          all.push_back(value);
    return all;
  }
};

class Drawing {
public:
  explicit Drawing(const planning::PlanFrontier &frontier)
      : frontier(frontier) {
    for (const planning::FrontierCurve &curve : frontier.curves)
      for (const planning::FrontierPoint &point : curve.points) {
        memory.take(double(point.bytes));
        time.take(point.seconds);
      }
    memory.widen();
    time.widen();
    memory.from = kLeft;
    memory.to = kWidth - kRight;
    time.from = kHeight - kBottom;
    time.to = kTop;
  }

  std::string str() const {
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
        "role=\"img\" aria-label=\"step time over memory of the fullest "
        "rank\">\n",
        kWidth, kHeight);
    drawAxes(svg);
    for (size_t i = 0; i < frontier.curves.size(); ++i)
      drawCurve(svg, frontier.curves[i], kColors[i % kColors.size()], i);
    return svg + "</svg>\n";
  }

private:
  void drawAxes(std::string &svg) const {
    for (double bytes : memory.ticks(kMiB)) {
      svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" "
                         "y1=\"{1}\" y2=\"{2}\"/>\n",
                         memory.at(bytes), kTop, kHeight - kBottom);
      svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{}\" "
                         "text-anchor=\"middle\">{}</text>\n",
                         memory.at(bytes), kHeight - kBottom + 18,
                         bytesStr(bytes));
    }
    for (double seconds : time.ticks(1)) {
      svg += fmt::format("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" "
                         "y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>\n",
                         kLeft, kWidth - kRight, time.at(seconds));
      svg += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{:.1f}\" "
                         "text-anchor=\"end\">{}</text>\n",
                         kLeft - 8, time.at(seconds) + 4,
                         report::humanSeconds(seconds));
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">memory "
                       "of the fullest rank</text>\n",
                       (kLeft + kWidth - kRight) / 2, kHeight - 8);
    svg += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" "
                       "text-anchor=\"middle\">step</text>\n",
                       (kTop + kHeight - kBottom) / 2);
  }

  // Between two points nothing is better than the one with less memory.
  void drawCurve(std::string &svg, const planning::FrontierCurve &curve,
                 const char *color, size_t index) const {
    if (curve.points.empty())
      return;
    std::string path;
    for (const planning::FrontierPoint &point : curve.points) {
      const double x = memory.at(double(point.bytes)),
                   y = time.at(point.seconds);
      path += path.empty() ? fmt::format("M{:.1f} {:.1f}", x, y)
                           : fmt::format(" H{:.1f} V{:.1f}", x, y);
    }
    path += fmt::format(" H{:.1f}", memory.to);
    svg += fmt::format("<path class=\"curve\" d=\"{}\" fill=\"none\" "
                       "stroke=\"var(--{})\" stroke-width=\"2\"/>\n",
                       path, color);
    double lastX = 0, lastY = 0;
    for (const planning::FrontierPoint &point : curve.points) {
      const double x = memory.at(double(point.bytes)),
                   y = time.at(point.seconds);
      svg += fmt::format(
          "<circle class=\"point\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\" "
          "fill=\"var(--{})\"><title>{}: {}, {}; {}</title></circle>\n",
          x, y, color, point.number, bytesStr(double(point.bytes)),
          report::humanSeconds(point.seconds),
          escaped(fmt::format("{}", fmt::join(point.decisions, "; "))));
      // No number upon another; the table has all.
      if (std::hypot(x - lastX, y - lastY) < 14)
        continue;
      svg += fmt::format("<text class=\"soft\" x=\"{:.1f}\" y=\"{:.1f}\">{}"
                         "</text>\n",
                         x + 6, y - 6, point.number);
      lastX = x;
      lastY = y;
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"var(--{})\" "
                       "style=\"fill: var(--{})\">{} devices</text>\n",
                       kWidth - kRight + 10, kTop + 14 + 20 * double(index),
                       color, color, curve.devices);
  }

  const planning::PlanFrontier &frontier;
  Axis memory, time;
};

std::string row(const planning::FrontierPoint &point, int64_t devices) {
  return fmt::format(
      "<tr><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
      "class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{:+.1f} %</td>"
      "<td class=\"n\">{:+.1f} %</td><td class=\"name\">{}<br/><span "
      "class=\"soft\">{}</span></td></tr>\n",
      point.number, devices, bytesStr(double(point.bytes)),
      report::humanSeconds(point.seconds),
      100 * planning::errorOf(point.expectedBytes, double(point.bytes)),
      100 * planning::errorOf(point.expectedSeconds, point.seconds),
      escaped(fmt::format("{}", fmt::join(point.decisions, "; "))),
      escaped(fmt::format("{}", fmt::join(point.places, "; "))));
}

std::string table(const planning::PlanFrontier &frontier) {
  std::string text =
      "<div class=\"scroll\"><table>\n<thead><tr><th class=\"n\">point</th><th "
      "class=\"n\">devices</th><th class=\"n\">memory</th><th "
      "class=\"n\">step</th><th class=\"n\">memory expected</th><th "
      "class=\"n\">step expected</th><th>decisions</th></tr></thead>\n<tbody>"
      "\n";
  for (const planning::FrontierCurve &curve : frontier.curves) {
    for (const planning::FrontierPoint &point : curve.points)
      text += row(point, curve.devices);
    if (!curve.problem.empty())
      text += fmt::format(
          "<tr><td></td><td class=\"n\">{}</td><td "
          "class=\"name\" colspan=\"5\">{}</td></tr>\n",
          curve.devices,
          escaped(curve.problem.substr(0, curve.problem.find('\n'))));
  }
  return text + "</tbody>\n</table></div>\n";
}

} // namespace

std::string frontierPage(const planning::PlanFrontier &frontier) {
  const std::string title = escaped(frontier.model + ": memory and time");
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" "
      "xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta "
      "charset=\"utf-8\"/>\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/>\n<meta "
      "name=\"color-scheme\" content=\"light dark\"/>\n<meta "
      "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; img-src data:\"/>\n<link rel=\"icon\" "
      "href=\"data:,\"/>\n<title>{}</title>\n<style>\n{}\n</style>\n</head>\n"
      "<body>\n<header><h1>{}</h1>\n",
      title, report::page::kStyle, title);
  text += fmt::format("<div class=\"soft\">{} · global batch {}",
                      escaped(frontier.machine), frontier.globalBatch);
  if (frontier.memoryBytes > 0)
    text +=
        fmt::format(" · {} a device", bytesStr(double(frontier.memoryBytes)));
  text +=
      "</div></header>\n<main>\n<section id=\"curve\">\n<p "
      "class=\"soft\">Every plan that none beats in memory and in time. Each "
      "was laid out and simulated; merakc --pick=POINT compiles one.</p>\n"
      "<div class=\"plot\">\n" +
      Drawing(frontier).str() +
      "</div>\n</section>\n<section id=\"points\">"
      "\n<h2>Points</h2>\n<p class=\"soft\">What the search expected stands "
      "beside what laying out and simulating found.</p>\n" +
      table(frontier) + "</section>\n";
  if (!frontier.leftOut.empty()) {
    text += "<section id=\"left-out\">\n<h2>Left out</h2>\n<ul>\n";
    for (const planning::LeftOut &one : frontier.leftOut)
      text += fmt::format("<li>{}: {}</li>\n", escaped(one.name),
                          escaped(one.reason));
    text += "</ul>\n</section>\n";
  }
  // Nothing in the data can end the element that holds it.
  std::string data;
  for (char c : frontier.toJson())
    data += c == '<'   ? std::string("\\u003c")
            : c == '&' ? std::string("\\u0026")
                       : std::string(1, c);
  return text + "</main>\n" + kDataBegin + data + kDataEnd +
         "\n</body>\n</html>\n";
}

std::string unpackPage(const std::string &text) {
  const std::string mark = kDataBegin;
  const size_t begin = text.find(mark);
  if (begin == std::string::npos)
    return text;
  const size_t from = begin + mark.size();
  return text.substr(from, text.find(kDataEnd, from) - from);
}

} // namespace merak
