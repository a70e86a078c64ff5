// What signals ask of a run.
//
//   SIGINT, SIGTERM, SIGHUP   end after this step, and save; the second kills
//   SIGUSR1                   save, and go on
#pragma once

#include <cstdint>
#include <string>

namespace merak::runtime {

// What someone wants of all processes of a run.
struct Wish {
  bool save = false;
  std::string stop; // why, e.g. "SIGTERM"; empty: go on
  int64_t look = 0; // at what went wrong in this step (from 1); 0: at none
  bool any() const { return save || !stop.empty() || look > 0; }
  void merge(const Wish &other);
};

// From now on. SIGHUP stays ignored where it was (nohup).
void listenToSignals();
// What came since the last call.
Wish takeSignals();

} // namespace merak::runtime
