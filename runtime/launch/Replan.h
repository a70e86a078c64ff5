// A run that takes another plan when its devices get slower or faster
// (docs/Elastic.md). Between two steps it looks at their rates; a situation
// that no plan was chosen for is thought about in a thread beside the training:
// plans are compiled, simulated, one is chosen, and its session made. At the
// end of a step the state then moves, and the run goes on with it.
//
// Ranks that are processes stay on their devices. With an agent that starts
// ranks on hosts (Places.h) a plan with ranks on other devices may be taken
// nevertheless: the run makes its state safe and ends, and the agent starts it
// again. That costs what a start costs.
#pragma once

#include "runtime/elastic/Choice.h"
#include "runtime/launch/PlanPool.h"
#include "runtime/launch/Session.h"

#include <nlohmann/json.hpp>

#include <deque>
#include <optional>
#include <thread>

namespace merak::runtime {

struct ReplanOptions {
  std::string mode = "off"; // "off", "suggest", "auto"
  std::string plans;        // a folder of plans to choose from
  std::string compiler;     // else of this merakc; "off": of none
  bool isOn() const { return mode != "off"; }
  // Devices that the agent may start ranks on, by number; 0: it starts none
  // elsewhere.
  size_t places = 0;
};

// What happened between two steps.
struct ReplanNews {
  std::vector<std::string> notes; // for people
  // For the log, an object each.
  std::vector<nlohmann::ordered_json> entries;
  // Goes on instead of the one that made the step, which is done.
  std::unique_ptr<Session> session;
};

class Replanner {
public:
  // Makes a session of a plan, with its data, that takes over the memory of
  // what is kept.
  using MakeSession = std::function<Result<std::unique_ptr<Session>>(
      LoadedPlan plan, Succession succession)>;

  // Without `make` ranks are processes, which stay on their devices, and make
  // their sessions themselves: `announced` says of which plan.
  Replanner(const ReplanOptions &options, PlanPool pool, MakeSession make);
  ~Replanner();
  Replanner(const Replanner &) = delete;

  // After a step, of which `session` is the one that made it. Errors: a switch
  // that failed, after which nobody has the state.
  Result<ReplanNews> after(const StepResult &step, int64_t stepsLeft,
                           Session &session);

  // What the start of the processes took, up to their first step.
  void startTook(double seconds) { startSeconds_ = seconds; }

  // The plan that all processes are to go on with now; empty: none. One of the
  // next two says how that went.
  std::string announced() const;
  // With this before the plan they are to end, to be started again with it.
  static constexpr const char *kRestart = "restart ";
  void restarts(const StepResult &step, ReplanNews &news);
  void switched(const StepResult &step, double stallSeconds, ReplanNews &news);
  void kept(const StepResult &step, const Status &why, ReplanNews &news);

private:
  // A plan on other devices.
  struct Away {
    const PooledPlan *to = nullptr;
    elastic::Choice choice;
  };
  // What the thread is asked and finds.
  struct Thought {
    elastic::Situation situation;
    elastic::Running running;
    const PooledPlan *from = nullptr, *to = nullptr;
    Status problems; // which left no or fewer plans
    elastic::Verdict verdict;
    elastic::Choice choice; // that is compared
    migration::Migration migration;
    std::unique_ptr<Session> session;
    std::optional<Away> away;
    bool restarts = false; // `to` is that one
    double seconds = 0;    // it took
  };
  void think(const Session &session);
  Status choose(const Session &session);
  void chooseAway(const Session &session, Status &problems);
  bool goesAway();
  void decide(const StepResult &step, int64_t stepsLeft, ReplanNews &news);
  Status switchPlans(const StepResult &step, Session &session,
                     ReplanNews &news);
  void tellMeasured(const StepResult &step, ReplanNews &news);
  double stepSeconds() const; // the median of the last ones
  void tell(const StepResult &step, const char *what, ReplanNews &news);

  ReplanOptions options_;
  PlanPool pool_;
  MakeSession make_;
  const PooledPlan *now_;
  elastic::Watch watch_;
  std::deque<double> seconds_; // of steps under this plan
  int64_t stepsSince_ = 0;     // under this plan
  double predicted_ = 0;       // of a step; 0: it is told already
  double startSeconds_ = 0;    // 0: not known
  std::vector<std::string> notes_;

  std::unique_ptr<Thought> thought_;
  std::thread thread_;
  std::atomic<bool> done_{false}, stop_{false};
};

} // namespace merak::runtime
