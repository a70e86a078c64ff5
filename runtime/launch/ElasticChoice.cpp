#include "runtime/launch/ElasticChoice.h"

#include "runtime/launch/ChildProcess.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace merak::runtime {
namespace {

// Open MPI is to notice a host that does not answer before the ranks do
// (MERAK_SILENCE_SECONDS): what it sends to end them there would otherwise be
// repeated for minutes, and no probe tells it then.
constexpr const char *kMpirun =
    "mpirun -np {ranks} --host {hosts} --mca oob_tcp_keepalive_time 2 "
    "--mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3";

// That a shell takes as they are.
std::vector<std::string> variablesOfOurs() {
  std::vector<std::string> names;
  for (char **entry = environ; *entry; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (name.starts_with("MERAK_") &&
        name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") ==
            std::string::npos)
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Chooser {
public:
  Chooser(const ElasticFacts &facts, const std::set<std::string> &given,
          RunOptions &options)
      : facts_(facts), given_(given), options_(options) {}

  Result<ElasticChoice> choose() {
    if (!facts_.trains)
      problem(fmt::format("\"{}\" does not train: --elastic is for training",
                          options_.plan));
    if (options_.ranks == "env")
      problem("--elastic starts ranks itself: --ranks=env is for those that "
              "somebody else started");
    chooseRestarts();
    chooseHosts();
    chooseLauncher();
    chooseReplan();
    chooseCopies();
    chooseLog();
    if (!problems_.ok())
      return problems_;
    tellPlace();
    return ElasticChoice{std::move(arguments_), "--elastic: " + told_};
  }

private:
  bool isGiven(const char *name) const { return given_.count(name) > 0; }
  bool hasProcesses() const { return !options_.agent.launcher.empty(); }
  // Processes of CPUs have MPI, however they were started; those of GPUs, which
  // do without, if their launcher brings it.
  bool sendsHostMemory() const {
    const std::string &launcher = options_.agent.launcher;
    return !hasProcesses() || !facts_.onGpus ||
           launcher.find("mpirun") != std::string::npos ||
           launcher.find("mpiexec") != std::string::npos;
  }
  void problem(std::string text) {
    problems_.merge(Status::error(std::move(text)));
  }
  void tell(const std::string &what) {
    told_ += (told_.empty() ? "" : "; ") + what;
  }

  void chooseRestarts() {
    int64_t &restarts = options_.agent.restarts;
    if (!isGiven("--restarts"))
      restarts = kElasticRestarts;
    else if (restarts == 0)
      problem("--elastic starts a run again: --restarts=0 does not");
    tell(fmt::format("at most {} restart{}", restarts,
                     restarts == 1 ? "" : "s"));
  }

  // Those of the cluster's nodes, unless a launcher does not ask for any.
  void chooseHosts() {
    AgentOptions &agent = options_.agent;
    const bool asks = agent.launcher.find("{hosts}") != std::string::npos;
    if (!agent.hosts.empty() || facts_.nodes.empty() ||
        (facts_.nodes.size() == 1 && !asks) ||
        (!agent.launcher.empty() && !asks))
      return;
    for (const MachineNode &node : facts_.nodes) {
      if (node.host.empty())
        return problem(fmt::format(
            "\"{}\" has {} node{} and does not say on which hosts: give "
            "--hosts=HOST:RANKS,..., or \"host\" to each node",
            options_.elastic.cluster, facts_.nodes.size(),
            facts_.nodes.size() == 1 ? "" : "s"));
      agent.hosts += fmt::format("{}{}:{}", agent.hosts.empty() ? "" : ",",
                                 node.host, node.devices);
    }
  }

  void chooseLauncher() {
    std::string &launcher = options_.agent.launcher;
    if (!launcher.empty() || options_.agent.hosts.empty())
      return;
    if (!facts_.hasMpirun)
      return problem("--elastic starts ranks on several hosts by mpirun, which "
                     "is not there: install it, or give --launcher");
    launcher = kMpirun;
    for (const std::string &name : facts_.variables)
      launcher += " -x " + name;
  }

  void chooseReplan() {
    std::string &mode = options_.replan.mode, why;
    if (!isGiven("--replan")) {
      mode = "auto";
      if (!sendsHostMemory())
        why = " (GPUs' ranks that are processes move their state by MPI)";
      else if (options_.arena == "separate")
        why = " (auto needs --arena=packed)";
      if (!why.empty())
        mode = "suggest";
      arguments_.push_back("--replan=" + mode);
    }
    tell(fmt::format("--replan={}{}", mode, why));
  }

  void chooseCopies() {
    int &copies = options_.copies.copies.hosts;
    std::string why;
    const CheckpointOptions &checkpoint = options_.checkpoint;
    if (!isGiven("--copies")) {
      copies = hasProcesses() || checkpoint.saveEvery == 0 ? 1 : 0;
      if (!sendsHostMemory()) {
        copies = 0;
        why = " (GPUs' ranks that are processes send them by MPI)";
      } else if (copies > 0) {
        arguments_.push_back("--copies=1");
      }
    }
    if (copies == 0 && checkpoint.save.dir.empty())
      problem(fmt::format("--elastic goes on from copies in memory{}, or from "
                          "checkpoints: give --save and --save-every",
                          why));
    tell(fmt::format("--copies={}{}", copies, why));
  }

  // An agent of processes sees in it how far they are.
  void chooseLog() {
    if (!hasProcesses() || !options_.log.empty())
      return;
    options_.log = std::filesystem::path(options_.plan + "/.")
                       .lexically_normal()
                       .parent_path()
                       .replace_extension(".run.jsonl");
    arguments_.push_back("--log=" + options_.log);
    tell(fmt::format("log \"{}\"", options_.log));
  }

  void tellPlace() {
    const AgentOptions &agent = options_.agent;
    if (!hasProcesses())
      tell("ranks in one process");
    else
      tell(fmt::format("ranks {}by \"{}\"",
                       agent.hosts.empty() ? "" : "on " + agent.hosts + " ",
                       agent.launcher));
  }

  const ElasticFacts &facts_;
  const std::set<std::string> &given_;
  RunOptions &options_;
  Status problems_;
  std::vector<std::string> arguments_;
  std::string told_;
};

} // namespace

Result<ElasticFacts> elasticFacts(const RunOptions &options,
                                  const LoadedPlan &plan,
                                  const PlanPrices &prices) {
  ElasticFacts facts;
  facts.trains = plan.file.mode() == "train";
  facts.onGpus = plan.file.device() == "cuda";
  facts.hasMpirun = isOnPath("mpirun");
  facts.variables = variablesOfOurs();
  if (options.elastic.cluster.empty())
    return facts;
  if (!prices.nodesOf)
    return Status::error("--cluster: this program reads no cluster files");
  auto nodes = prices.nodesOf(plan, options.elastic.cluster);
  if (!nodes)
    return nodes.status();
  facts.nodes = std::move(*nodes);
  return facts;
}

Result<ElasticChoice> chooseElastic(const ElasticFacts &facts,
                                    const std::set<std::string> &given,
                                    RunOptions &options) {
  return Chooser(facts, given, options).choose();
}

} // namespace merak::runtime
