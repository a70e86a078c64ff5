#include "runtime/launch/RunOptions.h"
#include "support/OptionChecks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

namespace merak::runtime {

void addRunOptions(CLI::App &app, RunOptions &options,
                   const BackendRegistry &backends) {
  std::vector<std::string> names;
  for (const auto &[name, factory] : backends)
    names.push_back(name);
  auto *status = app.add_option(
      "--status", options.status,
      "print what the log of a run (--log, --rates) says of it by now, and no "
      "more");
  app.add_option("plan", options.plan, "plan directory, made by merakc")
      ->excludes(status);
  app.add_flag("--trust-plan", options.trustPlan,
               "run the plan's kernels, which are machine code, although this "
               "user's merakc did not make them");
  app.add_option("--data", options.data.path,
                 "DIR with one <input>.npy for each input, tokens.bin, "
                 "FILE.sqlite with the table samples, DIR of such shards, or "
                 "\"synthetic\"");
  app.add_flag("--shuffle", options.shuffle,
               "each epoch in an order of its own, made of this seed "
               "(default: --seed); without it samples come as they are stored");
  app.add_option("--model-dir", options.modelDir,
                 "where the model's files lie, if not where they were when "
                 "the plan was made");
  app.add_option("--verify", options.verify,
                 "sampled: refuse a model that has changed since the plan was "
                 "made, as far as the hash in the plan tells; full: by all of "
                 "its bytes (merakc --hash=full); off: take what is there")
      ->check(CLI::IsMember({"off", "sampled", "full"}));
  app.add_option("--steps", options.steps, "steps to run")->check(isFrom(1));
  app.add_option("--ranks", options.ranks,
                 "inproc: ranks are threads; env: this process is one rank, "
                 "started by mpirun, srun or torchrun")
      ->check(CLI::IsMember({"inproc", "env"}));
  app.add_option("--links", options.links,
                 "communicate as slowly as these links: LATENCY/BANDWIDTH "
                 "(5us/200MB/s), cluster.json, or \"plan\"");
  app.add_option("--backend", options.backend, "device that computes")
      ->check(CLI::IsMember(names));
  app.add_option("--graphs", options.graphs,
                 "auto: a device launches steps after the first as one graph "
                 "where it can; off: one instruction after the other")
      ->check(CLI::IsMember({"auto", "off"}));
  app.add_option(
         "--arena", options.arena,
         "packed: buffers lie where the plan says; separate: each in an "
         "allocation of its own, and an instruction that writes beyond "
         "one is named (slow)")
      ->check(CLI::IsMember({"packed", "separate"}));
  app.add_option("--log", options.log, "one JSON object a step");
  app.add_option("--rates", options.session.rateEvery,
                 "every so many steps: how many times as long as it should "
                 "each rank takes, in the log, and who is slow (0: never)")
      ->check(isFrom(0));
  app.add_option("--replan", options.replan.mode,
                 "when devices get slower or faster: suggest a plan that is "
                 "faster then, or auto: go on with it between two steps; off")
      ->check(CLI::IsMember({"off", "suggest", "auto"}))
      ->capture_default_str();
  app.add_option("--plans", options.replan.plans,
                 "with --replan and --hosts: DIR of plans to choose from, with "
                 "--hosts for fewer ranks (default: merakc makes them, in "
                 "PLAN's name with the ending .plans)");
  app.add_option("--compiler", options.replan.compiler,
                 "with --replan and --hosts: the merakc that makes plans, or "
                 "off: none are made (default: the one beside this program)");
  app.add_option("--places", options.placesText)->group(""); // of an agent
  addElasticOptions(app, options.elastic);
  addAgentOptions(app, options.agent);
  addCopyOptions(app, options.copies);
  addCheckpointOptions(app, options.checkpoint, options.session);
  app.add_option("--save-grads", options.saveGrads,
                 "gradients of the step as .safetensors (with --steps=1)");
  app.add_option("--trace", options.trace, "timeline in Chrome's format");
  app.add_option("--out", options.out, "infer: folder for <output>.npy");
  app.add_option("--loss-scale", options.lossScale,
                 "of plans compiled with --precision=fp16: a factor, or auto "
                 "(default), which halves it after gradients that are not "
                 "finite and doubles it after 2000 steps; "
                 "auto:start=65536,every=2000,least=1,most=16777216");
  app.add_flag("--check-numerics", options.session.checkNumerics,
               "stop at the first value that is nan or inf and name it");
  app.add_option("--threads", options.session.threads,
                 "threads of each rank (default: the cores, shared)")
      ->check(isFrom(1, 4096));
  app.add_option("--seed", options.checkpoint.seed,
                 "of synthetic data and random operations (default: 0, or that "
                 "of --load)");
  app.add_option("--token-dtype", options.tokenType, "of tokens.bin")
      ->check(CLI::IsMember({"u16", "u32"}));
  app.add_option("--label-shift", options.data.labelShift,
                 "tokens.bin: labels are the tokens shifted by N; 0 for models "
                 "that shift them themselves")
      ->check(isFrom(0));
}

std::string usageProblem(const RunOptions &options) {
  if (const std::string problem = usageProblem(options.elastic);
      !problem.empty())
    return problem;
  if (const std::string problem = usageProblem(options.checkpoint);
      !problem.empty())
    return problem;
  if (const std::string problem =
          usageProblem(options.copies, options.agent.restarts);
      !problem.empty())
    return problem;
  if (!options.saveGrads.empty() && options.steps != 1)
    return "--save-grads needs --steps=1";
  if (!options.links.empty() && options.ranks != "inproc")
    return "--links needs --ranks=inproc";
  const ReplanOptions &replan = options.replan;
  const bool forHosts = !options.agent.hosts.empty();
  if (!replan.isOn() && !forHosts && !replan.compiler.empty())
    return "--compiler is for --replan and --hosts";
  if (!replan.isOn() && !forHosts && !replan.plans.empty())
    return "--plans is for --replan and --hosts";
  if ((replan.isOn() || !forHosts) && !replan.plans.empty() &&
      !replan.compiler.empty())
    return "--plans chooses from plans that are there, --compiler makes them";
  if (options.plan.empty() && options.status.empty() &&
      options.copies.remove.empty() && options.copies.pass.empty())
    return "a plan is required";
  return {};
}

namespace {

Status readLossScale(RunOptions &options) {
  if (options.lossScale.empty())
    return {};
  auto scale = LossScaleOptions::parse(options.lossScale);
  if (!scale)
    return scale.status();
  options.session.lossScale = *scale;
  return {};
}

// --shuffle[=SEED]
Status readShuffle(RunOptions &options) {
  if (options.shuffle.empty() || options.shuffle == "false")
    return {};
  if (options.shuffle == "true")
    return {};
  uint64_t seed = 0;
  const char *end = options.shuffle.data() + options.shuffle.size();
  const auto read = std::from_chars(options.shuffle.data(), end, seed);
  if (read.ec != std::errc() || read.ptr != end)
    return Status::error(
        fmt::format("--shuffle: expected a number of 64 bits, found \"{}\"",
                    options.shuffle));
  options.data.shuffle = seed;
  return {};
}

SourceCheck sourceCheck(const std::string &name) {
  return name == "off"    ? SourceCheck::Off
         : name == "full" ? SourceCheck::Full
                          : SourceCheck::Sampled;
}

} // namespace

static Status readPlaces(RunOptions &options) {
  auto places = parsePlaces(options.placesText);
  if (!places)
    return places.status();
  options.places = std::move(*places);
  if (options.replan.mode == "auto" && !options.log.empty())
    options.replan.places = options.places.size();
  return {};
}

Status readTexts(RunOptions &options) {
  Status status = readShuffle(options);
  status.merge(readPlaces(options));
  status.merge(readLossScale(options));
  options.data.tokenBytes = options.tokenType == "u32" ? 4 : 2;
  options.session.trace = !options.trace.empty();
  options.session.graphs = options.graphs == "auto";
  options.session.separateArena = options.arena == "separate";
  options.session.verify = sourceCheck(options.verify);
  return status;
}

void followDevices(std::vector<SlowRequest> &slow,
                   const std::vector<Place> &places) {
  for (SlowRequest &request : slow) {
    const auto place =
        std::find_if(places.begin(), places.end(), [&](const Place &one) {
          return one.number == request.device;
        });
    if (!places.empty())
      request.device = place == places.end() ? -1 : int(place - places.begin());
  }
}

static Status readSeconds(const char *name, double &seconds) {
  const char *text = std::getenv(name);
  if (!text)
    return {};
  char *end = nullptr;
  seconds = std::strtod(text, &end);
  if (end == text || *end || seconds < 0)
    return Status::error(
        fmt::format("{}: expected a number, found \"{}\"", name, text));
  return {};
}

Status readEnvironment(SessionOptions &session, AgentOptions &agent) {
  MERAK_RETURN_IF_ERROR(
      readSeconds("MERAK_WATCHDOG_SECONDS", session.watchdogSeconds));
  MERAK_RETURN_IF_ERROR(readSeconds("MERAK_LOOK_SECONDS", agent.lookSeconds));
  MERAK_RETURN_IF_ERROR(readSeconds("MERAK_AGENT_SECONDS", agent.agentSeconds));
  if (agent.agentSeconds < kLeastAgentSeconds)
    return Status::error(
        fmt::format("MERAK_AGENT_SECONDS: expected at least {:g}, since agents "
                    "give a sign each second, found {:g}",
                    kLeastAgentSeconds, agent.agentSeconds));
  agent.silenceSeconds = session.watchdogSeconds;
#ifdef MERAK_TEST_FAULTS
  if (const char *text = std::getenv("MERAK_FAULT")) {
    long long rank = 0, step = 0;
    char kind[8] = {};
    if (std::sscanf(text, "%lld:%lld:%7s", &rank, &step, kind) != 3 ||
        (std::strcmp(kind, "fail") && std::strcmp(kind, "hang") &&
         std::strcmp(kind, "kill")))
      return Status::error(fmt::format(
          "MERAK_FAULT: expected RANK:STEP:fail, hang or kill, found \"{}\"",
          text));
    session.fault = {static_cast<int>(rank), step - 1,
                     std::strcmp(kind, "hang") == 0,
                     std::strcmp(kind, "kill") == 0};
  }
  // MERAK_PACE=FACTOR
  if (const char *text = std::getenv("MERAK_PACE")) {
    char *end = nullptr;
    session.pace = std::strtod(text, &end);
    if (*end || !(session.pace > 0))
      return Status::error(fmt::format(
          "MERAK_PACE: expected a number above 0, found \"{}\"", text));
  }
  // MERAK_SLOW=DEVICE:FACTOR:FROM:TO[,...]
  if (const char *text = std::getenv("MERAK_SLOW")) {
    long long device = 0, from = 0, to = 0;
    double factor = 1;
    int length = 0;
    for (const char *at = text; *at; at += length + (at[length] == ',')) {
      if (std::sscanf(at, "%lld:%lf:%lld:%lld%n", &device, &factor, &from, &to,
                      &length) != 4 ||
          (at[length] && at[length] != ','))
        return Status::error(fmt::format(
            "MERAK_SLOW: expected DEVICE:FACTOR:FROM:TO, found \"{}\"", at));
      session.slow.push_back({int(device), factor, from - 1, to});
    }
  }
#endif
  return {};
}

} // namespace merak::runtime
