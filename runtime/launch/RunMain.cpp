#include "runtime/launch/RunMain.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/core/HostMemory.h"
#include "runtime/core/Output.h"
#include "runtime/data/Npy.h"
#include "runtime/launch/AgentLead.h"
#include "runtime/launch/ChildProcess.h"
#include "runtime/launch/CpuShare.h"
#include "runtime/launch/ElasticChoice.h"
#include "runtime/launch/IdleProbe.h"
#include "runtime/launch/Resume.h"
#include "runtime/launch/RunCopies.h"
#include "runtime/launch/RunOptions.h"
#include "runtime/launch/RunStatus.h"
#include "runtime/launch/RunSteps.h"
#include "runtime/launch/Standby.h"
#include "runtime/plan/LossScaled.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"
#include "support/OptionErrors.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <unistd.h>

namespace merak::runtime {
namespace {

// Output that cannot be written is better known before the first step.
Status checkWritable(const std::string &path) {
  if (path.empty())
    return {};
  std::filesystem::path file(path);
  if (!file.has_filename()) // "out/"
    file = file.parent_path();
  std::filesystem::path folder = file.parent_path();
  if (folder.empty())
    folder = ".";
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    return Status::error(fmt::format("cannot write \"{}\": \"{}\" is no folder",
                                     path, folder.string()));
  if (access(folder.c_str(), W_OK) != 0)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", path, std::strerror(errno)));
  return {};
}

// Two outputs that --out would write to one file.
Status checkOutputNames(const LoadedPlan &plan) {
  std::map<std::string, std::set<std::string>> byFile;
  for (const planpb::Program &program : plan.programs)
    for (const planpb::Output &output : program.outputs())
      byFile[inputFileName(output.name())].insert(output.name());
  Status problems;
  for (const auto &[file, names] : byFile)
    if (names.size() > 1)
      problems.merge(Status::error(
          fmt::format("--out: outputs \"{}\" have one file, \"{}.npy\"",
                      fmt::join(names, "\" and \""), file)));
  return problems;
}

// What can be known before anything is made. Rank 0 writes all but shards of
// checkpoints.
Status checkOptions(const RunOptions &options, const LoadedPlan &plan,
                    const Costs &costs, bool leads) {
  Status problems;
  if (!plan.file.device().empty() && plan.file.device() != options.backend)
    problems.merge(Status::error(
        fmt::format("\"{}\" is a plan for {}, the backend is {}", options.plan,
                    plan.file.device(), options.backend)));
  const bool infer = plan.file.mode() == "infer";
  if (infer &&
      !(options.checkpoint.save.dir.empty() && options.saveGrads.empty()))
    problems.merge(Status::error(
        fmt::format("\"{}\" does not train: nothing to save", options.plan)));
  if (!infer && !options.out.empty())
    problems.merge(Status::error(
        fmt::format("\"{}\" trains: --out is for inference", options.plan)));
  if (!options.out.empty())
    problems.merge(checkOutputNames(plan));
  if (plan.file.inputs_size() > 0 && options.data.path.empty())
    problems.merge(Status::error("the plan has inputs: give --data"));
  if (options.replan.isOn() && !costs.prices.stepSeconds)
    problems.merge(Status::error("--replan: this program has no cost model"));
  if (infer && options.replan.isOn())
    problems.merge(Status::error(fmt::format(
        "\"{}\" does not train: --replan is for training", options.plan)));
  if (options.replan.mode == "auto" && options.session.separateArena)
    problems.merge(Status::error("--replan=auto needs --arena=packed"));
  problems.merge(checkAgainst(options.session, plan.file));
  if (!options.lossScale.empty() && !scalesLoss(plan))
    problems.merge(Status::error(
        fmt::format("--loss-scale: \"{}\" scales no loss; plans that are "
                    "compiled for training with --precision=fp16 do",
                    options.plan)));
  problems.merge(checkWritable(options.checkpoint.save.dir));
  if (leads)
    for (const std::string &path :
         {options.log, options.saveGrads, options.trace, options.out})
      problems.merge(checkWritable(path));
  return problems;
}

Result<LoadedPlan> openPlan(RunOptions &options,
                            const ClusterLinks &clusterLinks,
                            const Costs &costs, World *world) {
  auto plan = loadPlanToRun(options.plan, options.trustPlan);
  if (!plan)
    return plan.status();
  MERAK_RETURN_IF_ERROR(verifyPlan(*plan).withContext(options.plan));
  if (!options.modelDir.empty())
    plan->file.set_model_dir(options.modelDir);
  Status problems =
      checkOptions(options, *plan, costs, !world || world->leads());
  if (world && world->size() != plan->file.ranks_size())
    problems.merge(Status::error(
        fmt::format("\"{}\" is a plan for {} ranks, {} {} started",
                    options.plan, plan->file.ranks_size(), world->size(),
                    world->size() == 1 ? "was" : "were")));
  if (!options.links.empty()) {
    auto links = linksOf(options.links, plan->file.cluster(), clusterLinks);
    if (links)
      options.session.links = *links;
    problems.merge(links.status());
  }
  auto seed =
      seedToUse(options.checkpoint.load, options.checkpoint.seed,
                options.checkpoint.force || plan->file.mode() != "train");
  problems.merge(seed.status());
  if (seed)
    options.session.seed = options.data.seed = *seed;
  if (seed && options.shuffle == "true")
    options.data.shuffle = *seed;
  if (!problems.ok())
    return problems;
  return plan;
}

Status openRun(Session &session, const RunOptions &options, std::string &note) {
  if (!options.data.path.empty()) {
    auto data = openData(session.plan().file, options.data);
    if (!data)
      return data.status();
    session.setData(std::move(*data));
  }
  return session.loadWeights(options.checkpoint.load, &note,
                             options.checkpoint.force);
}

// Whether processes can send each other what `option` takes: those of GPUs
// communicate the memory of their devices, and that of hosts only by MPI.
Status checkHostMemory(World *world, const char *option, const char *without) {
  if (!world || !world->store())
    return {};
  HostMemory memory;
  const bool reached = world->communicator(world->ranks().front(), memory).ok();
  return agree(world->store(), "host memory",
               reached ? Status()
                       : Status::error(fmt::format(
                             "{} of GPUs' ranks that are processes needs MPI "
                             "for host memory: start them with mpirun, in a "
                             "build that has MPI, or give {}",
                             option, without)));
}

Status run(RunOptions &options, const BackendFactory &factory,
           const ClusterLinks &clusterLinks, const Costs &costs, World *world,
           RunEnd &end) {
  Store *store = world ? world->store() : nullptr;
  const bool leads = !world || world->leads();
  std::unique_ptr<RunCopies> copies;
  if (options.copies.copies.hosts > 0) {
    auto opened = RunCopies::open(options.copies, store,
                                  options.checkpoint.load, options.steps);
    MERAK_RETURN_IF_ERROR(agree(store, "copies", opened.status()));
    copies = std::move(*opened);
  }
  Status reached;
  if (copies && copies->areSent())
    reached = checkHostMemory(world, "--copies", "--copies=0");
  if (reached.ok() && options.replan.mode == "auto")
    reached = checkHostMemory(world, "--replan=auto", "--replan=suggest");
  if (!reached.ok()) {
    end.failureCode = 2;
    return reached;
  }
  auto plan = openPlan(options, clusterLinks, costs, world);
  MERAK_RETURN_IF_ERROR(agree(store, "plan", plan.status()));
  if (options.replan.isOn())
    MERAK_RETURN_IF_ERROR(makeHealthy(*plan, costs.prices));
  auto session =
      Session::create(std::move(*plan), factory, options.session, world);
  MERAK_RETURN_IF_ERROR(agree(store, "session", session.status()));
  if (copies)
    MERAK_RETURN_IF_ERROR(copies->fetch(**session, world));
  std::string note;
  MERAK_RETURN_IF_ERROR(
      agree(store, "weights", openRun(**session, options, note)));
  if (!options.checkpoint.load.empty())
    MERAK_RETURN_IF_ERROR(
        sameGeneration(store, options.checkpoint.load, (*session)->loaded()));
  tellNote(note, leads);
  if (copies) {
    for (const std::string &line : copies->notes((*session)->stepsDone()))
      tellNote(line, leads);
    bool tooLittle = false;
    const Status kept =
        copies->keep(**session, options.session, world, tooLittle);
    if (tooLittle)
      end.failureCode = 2;
    MERAK_RETURN_IF_ERROR(kept);
  }
  return runSteps(*session, options, costs, factory, world, copies.get(), end);
}

constexpr const char *kTool = "merak-run";

// With --elastic: the code to end with, if there is nothing to start.
std::optional<int> beginElastic(const CLI::App &app, const PlanPrices &prices,
                                RunOptions &options, ElasticChoice &choice) {
  const auto plan = loadPlanToRun(options.plan, options.trustPlan);
  if (!plan)
    return exitCode(kTool, plan.status());
  std::set<std::string> given;
  for (const CLI::Option *option : app.parse_order())
    given.insert(option->get_name());
  Status problems;
  if (const auto facts = elasticFacts(options, *plan, prices)) {
    auto chosen = chooseElastic(*facts, given, options);
    if (chosen)
      choice = std::move(*chosen);
    problems = chosen.status();
  } else {
    problems = facts.status();
  }
  if (problems.ok())
    return std::nullopt;
  (void)exitCode(kTool, problems);
  return 2;
}

AgentRun agentRun(const CLI::App &app, const RunOptions &options,
                  const ElasticChoice &elastic) {
  AgentRun run;
  run.arguments = argumentsOfRuns(app, /*withPlans=*/options.replan.isOn());
  run.arguments.insert(run.arguments.end(), elastic.arguments.begin(),
                       elastic.arguments.end());
  run.plan = options.plan;
  run.save = options.checkpoint.save.dir;
  run.load = options.checkpoint.load;
  run.log = options.log;
  run.source = sourceOfPlans(options.plan, options.replan.plans,
                             options.replan.compiler);
  run.source.cluster = options.elastic.cluster;
  run.steps = options.steps;
  run.replans = options.replan.isOn();
  run.copies = options.copies.copies.hosts > 0;
  run.copiesEvery = options.copies.stepsBetween();
  run.trustPlan = options.trustPlan;
  return run;
}

// What of it needs one process from the first step to the last.
std::string agentProblem(const RunOptions &options, const AgentRun &run) {
  if (options.agent.restarts > 0)
    for (const auto &[name, value] :
         {std::pair("--trace", options.trace),
          std::pair("--save-grads", options.saveGrads),
          std::pair("--out", options.out)})
      if (!value.empty())
        return fmt::format("{} is of one run, --{} of several", name,
                           options.elastic.on ? "elastic" : "restarts");
  if (options.agent.restarts > 0 && options.ranks == "env")
    return "--restarts starts ranks itself: give --launcher, not --ranks";
  return usageProblem(options.agent, run);
}

// An agent that goes on with a run whose agent is lost.
int standBy(const CLI::App &app, RunOptions &options,
            const PlanPrices &prices) {
  for (const CLI::Option *option : app.parse_order())
    if (option->get_name() != "--standby") {
      complain(fmt::format("merak-run: error: --standby takes all but that "
                           "from the agent that leads: {} is not for it",
                           option->get_name()));
      return 2;
    }
  if (Status status = readEnvironment(options.session, options.agent);
      !status.ok())
    return exitCode(kTool, status) == 0 ? 0 : 2;
  return runStandby(options.agent, prices);
}

// One rank of a run of several processes.
int runAsRank(RunOptions &options, const BackendFactory &factory,
              const ClusterLinks &clusterLinks, const Costs &costs,
              const WorldRegistry &worlds) {
  RunEnd end;
  const int code = asRank(
      kTool, options.backend, worlds,
      [&](World &world, std::string &early) -> Status {
        if (!options.session.threads) {
          auto share = cpuShare(*world.store());
          if (!share)
            return share.status();
          options.session.threads = *share;
        }
        Status status = run(options, factory, clusterLinks, costs, &world, end);
        early = end.early;
        return status;
      },
      end.failureCode,
      options.copies.copies.hosts > 0 || options.replan.mode == "auto",
      options.places);
  return code == 0 && end.again ? kStartAgain : code;
}

// One process of those that pass copies, in the order of their places.
int passAsRank(const RunOptions &options, const WorldRegistry &worlds) {
  const auto places = parsePlaces(options.placesText);
  if (!places)
    return exitCode(kTool, places.status());
  const auto pass = [&](World &world, std::string &) {
    return passCopies(options.copies, world);
  };
  return asRank(kTool, "cpu", worlds, pass, kFailed, /*hostMemory=*/true,
                *places);
}

// What a device that has no rank takes for a known computation (LeftOut.h).
int probe(RunOptions &options) {
  const auto request = parseProbe(options.agent.probe);
  Status status = request.status();
  status.merge(readEnvironment(options.session, options.agent));
  if (status.ok())
    status = printLine(probeLine(IdleProbe(options.session.slow)
                                     .seconds(request->device, request->step)));
  return exitCode(kTool, status);
}

} // namespace

int runMain(int argc, char **argv, const BackendRegistry &backends,
            const ClusterLinks &clusterLinks, const WorldRegistry &worlds,
            const std::function<std::string()> &versions,
            const ExpectedSeconds &expected, const PredictedSeconds &predicted,
            const PlanPrices &prices) {
  CLI::App app("Runs a plan: trains, or infers, on ranks of this machine.",
               "merak-run");
  RunOptions options;
  addRunOptions(app, options, backends);
  if (versions)
    app.set_version_flag("--version", versions,
                         "libraries that were built in, and those of them that "
                         "this machine has");
  tellErrorsAs(app, kTool);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!options.agent.grant.empty())
    return exitCode(kTool, grantStart(options.agent.grant));
  if (!options.agent.probe.empty())
    return probe(options);
  if (!options.agent.standby.empty())
    return standBy(app, options, prices);
  ElasticChoice elastic;
  if (options.elastic.on && !options.plan.empty())
    if (const auto code = beginElastic(app, prices, options, elastic))
      return *code;
  if (const std::string problem = usageProblem(options); !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  if (!options.copies.remove.empty())
    return exitCode(kTool, removeCopies(options.copies.remove));
  if (!options.copies.pass.empty())
    return passAsRank(options, worlds);
  if (!options.status.empty()) {
    auto text = statusOf(options.status);
    return exitCode(kTool, text.ok() ? printLine(*text) : text.status());
  }
  const AgentRun agent = agentRun(app, options, elastic);
  if (const std::string problem = agentProblem(options, agent);
      !problem.empty()) {
    complain(fmt::format("merak-run: error: {}", problem));
    return 2;
  }
  if (const Status read = readTexts(options); !read.ok()) {
    complain(fmt::format("merak-run: error: {}", read.str()));
    return 2;
  }
  const BackendFactory &factory = backends.at(options.backend);
  if (Status status = readEnvironment(options.session, options.agent);
      !status.ok())
    return exitCode(kTool, status);
  followDevices(options.session.slow, options.places);
  if (options.agent.restarts > 0) {
    if (const Status status = agent.copies ? checkCopiesBase() : Status();
        !status.ok()) {
      (void)exitCode(kTool, status);
      return 2;
    }
    tellNote(elastic.told, /*leads=*/true);
    return options.agent.standbys >= 0 ? runLead(agent, options.agent, prices)
                                       : runAgent(agent, options.agent, prices);
  }
  options.beat = beatDescriptor();
  options.session.predicted = predicted;
  if (options.replan.isOn()) {
    options.session.stateApart = options.replan.mode == "auto";
    if (options.session.rateEvery == 0)
      options.session.rateEvery = 1;
  }
  const Costs costs{expected, prices};
  if (options.ranks == "env")
    return runAsRank(options, factory, clusterLinks, costs, worlds);
  RunEnd end;
  Status status = run(options, factory, clusterLinks, costs, nullptr, end);
  if (!end.early.empty())
    status.merge(Status::error(end.early));
  return exitCode(kTool, status) == 0 ? 0 : end.failureCode;
}

} // namespace merak::runtime
