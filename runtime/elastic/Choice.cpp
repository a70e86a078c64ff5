#include "runtime/elastic/Choice.h"

#include <algorithm>
#include <fmt/format.h>

namespace merak::elastic {

// The trigger of Malleus; below it a step's own noise is as large.
constexpr double kLeastGain = 1.05;
// Steps that are as good as equal.
constexpr double kNear = 1.03;

// Nearly the fastest, and of these that which moves the least.
static int bestOf(const std::vector<Choice> &choices) {
  double fastest = 0;
  for (const Choice &choice : choices)
    if (choice.simulated > 0 && (fastest == 0 || choice.simulated < fastest))
      fastest = choice.simulated;
  int best = -1;
  auto before = [&](const Choice &a, const Choice &b) {
    return a.movedBytes != b.movedBytes ? a.movedBytes < b.movedBytes
                                        : a.simulated < b.simulated;
  };
  for (size_t c = 0; c < choices.size(); ++c)
    if (choices[c].simulated > 0 && choices[c].simulated <= kNear * fastest &&
        (best < 0 || before(choices[c], choices[size_t(best)])))
      best = int(c);
  return best;
}

Verdict judge(const Running &running, const std::vector<Choice> &choices) {
  Verdict verdict;
  verdict.best = bestOf(choices);
  if (verdict.best < 0 || !(running.simulated > 0)) {
    verdict.why = "there is no other plan";
    return verdict;
  }
  const Choice &best = choices[size_t(verdict.best)];
  verdict.stepSeconds = running.measured * best.simulated / running.simulated;
  verdict.gainedSeconds =
      double(running.stepsLeft) * (running.measured - verdict.stepSeconds);
  const std::string steps =
      fmt::format("a step takes {:.4g} ms, {:.4g} ms are predicted",
                  1e3 * running.measured, 1e3 * verdict.stepSeconds);
  if (running.simulated < kLeastGain * best.simulated)
    verdict.why = steps + fmt::format(", which is less than {:.0f} % better",
                                      100 * (kLeastGain - 1));
  else if (verdict.gainedSeconds <= best.stallSeconds)
    verdict.why = steps + fmt::format("; {} steps gain {:.3g} s, the switch "
                                      "costs {:.3g} s",
                                      running.stepsLeft, verdict.gainedSeconds,
                                      best.stallSeconds);
  else {
    verdict.choice = verdict.best;
    verdict.why = steps + fmt::format("; {} steps gain {:.3g} s for {:.3g} s "
                                      "of switching",
                                      running.stepsLeft, verdict.gainedSeconds,
                                      best.stallSeconds);
  }
  return verdict;
}

Verdict judgeRestart(const Running &running, const std::vector<Choice> &here,
                     const std::vector<Choice> &restarts) {
  Verdict verdict = judge(running, restarts);
  if (verdict.choice < 0)
    return verdict;
  const Verdict stay = judge(running, here);
  const Choice &best = restarts[size_t(verdict.choice)];
  double simulated = running.simulated, stall = 0;
  if (stay.choice >= 0) {
    simulated = here[size_t(stay.choice)].simulated;
    stall = here[size_t(stay.choice)].stallSeconds;
  }
  const double seconds = running.measured * simulated / running.simulated;
  const double gained =
      double(running.stepsLeft) * (seconds - verdict.stepSeconds);
  if (simulated >= kNear * best.simulated && gained > best.stallSeconds - stall)
    return verdict;
  verdict.choice = -1;
  verdict.why = fmt::format("a step takes {:.4g} ms, {:.4g} ms are predicted "
                            "after a restart of {:.3g} s, and {:.4g} ms "
                            "without one",
                            1e3 * running.measured, 1e3 * verdict.stepSeconds,
                            best.stallSeconds, 1e3 * seconds);
  return verdict;
}

} // namespace merak::elastic
