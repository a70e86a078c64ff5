// What a run tells while it trains: a line a step for people, one JSON object a
// step for programs.
#pragma once

#include "runtime/launch/Session.h"

#include <nlohmann/json.hpp>

#include <cstdio>

namespace merak::runtime {

class RunLog {
public:
  // `path` empty: no file. `lastStep`: number of the last step, for "3/10".
  // `stepsBefore`: of the run that goes on; what a log holds of these stays,
  // and later lines, of steps that are done again, go.
  static Result<RunLog> open(const std::string &path,
                             const planpb::PlanFile &plan, int64_t lastStep,
                             int64_t stepsBefore = 0);
  // `copies`: what is new of them (RunCopies.h); null: nothing.
  Status add(const StepResult &step,
             const nlohmann::ordered_json &copies = nullptr);
  // An object that is no step's: what happened after the one that it names.
  Status tell(const std::string &object);
  // The median of the steps after the first, which also touches memory, and
  // how many steps were skipped.
  std::string summary() const;

private:
  struct Close {
    void operator()(std::FILE *file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t lastStep_ = 0, tokens_ = 0, samples_ = 0;
  int64_t skipped_ = 0;
  std::vector<double> seconds_;
};

// How much of a log, from its beginning, tells of steps up to `stepsBefore`; a
// last line that was cut off does not count. Refuses what is no log of a run.
Result<size_t> keptOfLog(const std::string &text, int64_t stepsBefore);

// How far a run came, and how fast it is.
struct LogEnd {
  int64_t step = 0; // of the last whole line
  // Since it was started the last time.
  nlohmann::ordered_json restart; // null: the first time
  // The plan that it asks to be started again with (Replan.h); null: none.
  nlohmann::ordered_json asked;
  double seconds = 0;       // of all steps
  std::vector<double> last; // of the last ones, under one plan
  // By device, as measured the last time: 1 for normal ones, else how many
  // times as long it takes; empty: not measured.
  std::vector<double> rates;
  bool isOf(const nlohmann::ordered_json &restart) const;
  // The median of the last five; 0: there are fewer.
  double stepSeconds() const;
};
// Nothing where there is no log.
std::optional<LogEnd> endOfLog(const std::string &path);

// The line for people.
std::string progressLine(const StepResult &step, int64_t lastStep,
                         int64_t tokens, int64_t samples);
// The object for programs; values that are not finite are null.
std::string logLine(const StepResult &step, int64_t tokens,
                    const nlohmann::ordered_json &copies = nullptr);

} // namespace merak::runtime
