#include "compiler/Driver/Timing.h"

#include <algorithm>
#include <fmt/format.h>
#include <sys/resource.h>

using namespace merak;

planning::TimedWork &CompileTimes::phase(const std::string &name) {
  auto it = std::find_if(phases.begin(), phases.end(), [&](const auto &phase) {
    return phase.first == name;
  });
  if (it == phases.end())
    it = phases.insert(phases.end(), {name, {}});
  return it->second;
}

static std::string line(const std::string &name,
                        const planning::TimedWork &work) {
  return fmt::format("{:<26}{:>8}{:>10.2f}\n", name, work.count, work.seconds);
}

std::string CompileTimes::str() const {
  std::string text =
      fmt::format("{:<26}{:>8}{:>10}\n", "timing", "count", "seconds");
  for (const auto &[name, work] : phases) {
    text += line(name, work);
    if (name != "stage")
      continue;
    text += line(fmt::format("  shardings, {} by few", search.byFew),
                 search.shardings);
    text += line(fmt::format("  quick plans, of {}", search.considered),
                 search.quick);
    text += line("  full plans", search.full);
    text += line("  plain plans", search.plain);
    if (search.parts.count > 0)
      text += line("  plans with parts", search.parts);
  }
  text += line("confirmation", confirmation);
  text += line("all", all);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return text + fmt::format("peak memory {:.1f} MiB\n",
                            static_cast<double>(usage.ru_maxrss) / 1024);
}
