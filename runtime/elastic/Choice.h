// Which of several plans a run goes on with, if another one than it has.
//
// Steps are simulated at the rates of now, for the plan that runs too: what the
// simulator is wrong about is much the same for both, so a step of the other
// plan is predicted as what a step takes now times the quotient. Of plans whose
// steps are nearly equal the one is taken that moves the least state: cuts
// before groups. It must be worth it: faster by some percent, and over the
// steps that are left by more than the switch costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace merak::elastic {

// The running plan, at the rates of now.
struct Running {
  double measured = 0;  // seconds of a step
  double simulated = 0; // the same
  int64_t stepsLeft = 0;
};

struct Choice {
  double simulated = 0; // seconds of a step
  int64_t movedBytes = 0;
  double stallSeconds = 0; // of the switch, as predicted
};

struct Verdict {
  int choice = -1;          // -1: the plan that runs stays
  int best = -1;            // that was compared with it; -1: there was none
  double stepSeconds = 0;   // predicted of `best`
  double gainedSeconds = 0; // by all steps that are left
  std::string why;          // a sentence without a full stop
};

Verdict judge(const Running &running, const std::vector<Choice> &choices);

// Of plans that take a restart of all processes: the same, and the one that is
// taken must be better by some percent than the best of those that need none
// (`here`, and the one that runs), and gain more over it than it costs more.
Verdict judgeRestart(const Running &running, const std::vector<Choice> &here,
                     const std::vector<Choice> &restarts);

} // namespace merak::elastic
