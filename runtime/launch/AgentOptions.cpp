#include "runtime/launch/AgentOptions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace merak::runtime {

void addAgentOptions(CLI::App &app, AgentOptions &options) {
  app.add_option("--restarts", options.restarts,
                 "a run that is lost is started again, so often at most, from "
                 "the newest checkpoint of --save, or from --copies (default: "
                 "0, never)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--launcher", options.launcher,
                 "with --restarts: how ranks are started as processes, e.g. "
                 "\"mpirun -np {ranks} --host {hosts}\"");
  app.add_option("--hosts", options.hosts,
                 "with --launcher: HOST:RANKS,...; those that do not answer "
                 "are left out, with a plan of --plans for fewer ranks");
}

std::vector<std::string> argumentsOfRuns(const CLI::App &app, bool withPlans) {
  static const std::set<std::string> own{"plan",       "--steps", "--load",
                                         "--restarts", "--hosts", "--launcher",
                                         "--ranks"};
  std::vector<std::string> arguments;
  for (const CLI::Option *option : app.parse_order()) {
    const std::string name = option->get_name();
    if (own.count(name) || (name == "--plans" && !withPlans))
      continue;
    const std::string text =
        fmt::format("{}={}", name, option->results().back());
    if (std::find(arguments.begin(), arguments.end(), text) == arguments.end())
      arguments.push_back(text);
  }
  return arguments;
}

} // namespace merak::runtime
