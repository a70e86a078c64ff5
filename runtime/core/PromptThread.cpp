#include "runtime/core/PromptThread.h"

#include <cstdint>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace merak::runtime {
namespace {

thread_local bool brief = false;

// The kernel's struct sched_attr, which older C libraries do not declare.
struct SchedulingAttributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime; // nanoseconds of a turn
  uint64_t deadline;
  uint64_t period;
};

constexpr uint64_t kTurn = 100'000; // nanoseconds, the shortest there is

} // namespace

void wakePromptly() {
  brief = true;
#ifdef SYS_sched_setattr
  SchedulingAttributes attributes{};
  attributes.size = sizeof(attributes);
  attributes.policy = SCHED_OTHER;
  attributes.nice = getpriority(PRIO_PROCESS, 0);
  attributes.runtime = kTurn;
  // Refused by older systems: everything works without, later.
  (void)syscall(SYS_sched_setattr, 0, &attributes, 0);
#endif
}

bool wakesPromptly() { return brief; }

void stepBehind() { (void)setpriority(PRIO_PROCESS, 0, 10); }

} // namespace merak::runtime
