#include "runtime/launch/AgentOptions.h"

#include "runtime/launch/Hosts.h"
#include "support/OptionChecks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace merak::runtime {

void addAgentOptions(CLI::App &app, AgentOptions &options) {
  app.add_option("--restarts", options.restarts,
                 "a run that is lost is started again, so often at most, from "
                 "the newest checkpoint of --save, or from --copies (default: "
                 "0, never)")
      ->check(isFrom(0));
  app.add_option("--launcher", options.launcher,
                 "with --restarts: how ranks are started as processes, e.g. "
                 "\"mpirun -np {ranks} --host {hosts}\"");
  app.add_option("--hosts", options.hosts,
                 "with --launcher: HOST:RANKS,...; those that do not answer "
                 "are left out, with a plan for fewer ranks that merakc makes, "
                 "or one of --plans");
  app.add_option("--standbys", options.standbys,
                 "with --elastic on several hosts: a port (0: any) where "
                 "agents of other hosts join, one of which goes on with the "
                 "run if this one is lost")
      ->check(isFrom(0, 65535));
  app.add_option("--standby", options.standby,
                 "stand by for the run whose agent is at HOST:PORT (--standbys "
                 "of it; several after commas are tried in turn), and go on "
                 "with it if that agent is lost; takes no other option");
  // An agent asks a host.
  app.add_option("--grant", options.grant)->group("");
  app.add_option("--probe", options.probe)->group("");
}

std::string usageProblem(const AgentOptions &options, const AgentRun &run) {
  if (options.standbys >= 0 && (options.restarts == 0 || options.hosts.empty()))
    return "--standbys is for runs on --hosts that are started again "
           "(--elastic, --restarts)";
  if (options.restarts == 0)
    return options.launcher.empty() && options.hosts.empty()
               ? ""
               : "--launcher and --hosts are for --restarts";
  if (run.save.empty() && !run.copies)
    return "--restarts goes on from checkpoints: give --save (and "
           "--save-every), or --copies";
  if (run.save.empty() && run.log.empty() && !options.launcher.empty())
    return "--copies without --save needs --log: it says how far a run came";
  if (options.launcher.empty() && !options.hosts.empty())
    return "--hosts is for --launcher";
  const bool names = options.launcher.find("{hosts}") != std::string::npos;
  if (!options.launcher.empty() && names == options.hosts.empty())
    return names ? "--launcher has {hosts}: give --hosts"
                 : "--hosts is for {hosts} in --launcher";
  return parseHosts(options.hosts).status().str();
}

std::vector<std::string> argumentsOfRuns(const CLI::App &app, bool withPlans) {
  static const std::set<std::string> own{
      "plan",       "--steps", "--load",    "--restarts", "--hosts",
      "--launcher", "--ranks", "--elastic", "--cluster",  "--standbys"};
  std::vector<std::string> arguments;
  for (const CLI::Option *option : app.parse_order()) {
    const std::string name = option->get_name();
    if (own.count(name) ||
        ((name == "--plans" || name == "--compiler") && !withPlans))
      continue;
    const std::string text =
        fmt::format("{}={}", name, option->results().back());
    if (std::find(arguments.begin(), arguments.end(), text) == arguments.end())
      arguments.push_back(text);
  }
  return arguments;
}

} // namespace merak::runtime
