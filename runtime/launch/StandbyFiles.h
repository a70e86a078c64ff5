// What an agent that stands by must have on its own host to go on with a run:
// looked at when it comes, not when it is needed.
#pragma once

#include "runtime/launch/AgentState.h"

namespace merak::runtime {

// Goes to the run's folder and takes its variables of the environment: both
// count for the files. Errors: the folder is not here.
Status enterTask(const AgentTask &task);
// All that is missing, or is something else than what the leader has.
Status checkTask(const AgentTask &task);
// What the run can do without, for the user.
std::vector<std::string> notesOfTask(const AgentTask &task);

// The newest checkpoint in a folder; nothing: there is none.
std::optional<AgentPosition> newestIn(const std::string &folder);
// Waits until no process writes checkpoints there any more.
Status awaitSaver(const std::string &folder, double seconds);

} // namespace merak::runtime
