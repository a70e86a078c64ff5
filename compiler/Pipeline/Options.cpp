#include "compiler/Pipeline/Options.h"

#include "compiler/Pipeline/Techniques.h"
#include "passes/Resharding/Transfers.h"
#include "support/OptionChecks.h"
#include "support/OptionErrors.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace merak {

const std::vector<std::string> &phaseNames() {
  static const std::vector<std::string> names = {
      "import", "graph", "stage", "shard", "schedule", "memory", "plan"};
  return names;
}

static std::vector<std::string> split(const std::string &text, char by) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t end = std::min(text.find(by, begin), text.size());
    if (end > begin)
      parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <typename T> static bool parseNumber(const std::string &text, T &out) {
  const std::optional<T> number = numberOf<T>(text);
  out = number.value_or(out);
  return number.has_value();
}

Result<Optimizer> parseOptimizer(const std::string &text) {
  Optimizer options;
  Status status;
  size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  std::optional<OptimizerKind> kind = parseOptimizerKind(name);
  if (!kind)
    return Status::error(fmt::format(
        "--optimizer: expected sgd, adamw, adam or adagrad, found '{}'", name));
  options.kind = *kind;
  const bool isSgd = *kind == OptimizerKind::Sgd;
  const bool isAdagrad = *kind == OptimizerKind::Adagrad;
  const bool isAdam = options.isAdam();
  if (*kind != OptimizerKind::AdamW)
    options.weightDecay = 0;
  if (isSgd || isAdagrad)
    options.lr = 0.01;
  if (isAdagrad)
    options.eps = 1e-10;
  std::string rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  for (const std::string &part : split(rest, ',')) {
    size_t equal = part.find('=');
    std::string key = part.substr(0, equal);
    std::string value =
        equal == std::string::npos ? "" : part.substr(equal + 1);
    auto number = [&](double &out) {
      if (!parseNumber(value, out))
        status.merge(Status::error(fmt::format(
            "--optimizer: expected a number for {}, found '{}'", key, value)));
    };
    auto count = [&](int64_t &out) {
      if (!parseNumber(value, out) || out < 0)
        status.merge(Status::error(fmt::format(
            "--optimizer: expected a count for {}, found '{}'", key, value)));
    };
    if (key == "lr")
      number(options.lr);
    else if (key == "weight_decay")
      number(options.weightDecay);
    else if (key == "momentum" && isSgd)
      number(options.momentum);
    else if (key == "dampening" && isSgd)
      number(options.dampening);
    else if (key == "nesterov" && isSgd)
      options.nesterov = value.empty() || value == "1" || value == "true";
    else if (key == "lr_decay" && isAdagrad)
      number(options.lrDecay);
    else if (key == "eps" && !isSgd)
      number(options.eps);
    else if (key == "betas" && isAdam) {
      std::vector<std::string> betas = split(value, '/');
      if (betas.size() != 2 || !parseNumber(betas[0], options.beta1) ||
          !parseNumber(betas[1], options.beta2))
        status.merge(Status::error(fmt::format(
            "--optimizer: expected betas=B1/B2, found '{}'", value)));
    } else if (key == "schedule") {
      if (auto schedule = parseRateSchedule(value))
        options.schedule = *schedule;
      else
        status.merge(Status::error(fmt::format(
            "--optimizer: expected schedule constant, linear or cosine, "
            "found '{}'",
            value)));
    } else if (key == "warmup")
      count(options.warmup);
    else if (key == "total")
      count(options.total);
    else if (key == "min")
      number(options.minFactor);
    else
      status.merge(Status::error(
          fmt::format("--optimizer: {} has no option '{}'", name, key)));
  }
  if (options.schedule != RateSchedule::Constant &&
      options.total <= options.warmup)
    status.merge(Status::error(
        fmt::format("--optimizer: schedule {} needs total above warmup",
                    kRateSchedules[int(options.schedule)])));
  if (!status.ok())
    return status;
  return options;
}

// Above any cluster, and few enough to plan for (as ClusterReader.cpp has it).
static constexpr int64_t kMostDevices = 1 << 20;
// Slower is as good as gone.
static constexpr double kMostSlow = 1000;

// DEVICE:RATE,...
static Status parseRates(const std::string &text,
                         std::map<int64_t, double> &rates) {
  Status status;
  for (const std::string &part : split(text, ',')) {
    const size_t colon = part.find(':');
    int64_t device = 0;
    double rate = 0;
    if (colon == std::string::npos ||
        !parseNumber(part.substr(0, colon), device) || device < 0 ||
        !parseNumber(part.substr(colon + 1), rate) || !(rate >= 1) ||
        rate > kMostSlow)
      status.merge(Status::error(
          fmt::format("--for-rates: expected a device and a rate from 1 to "
                      "{}, as 2:2.97, found '{}'",
                      kMostSlow, part)));
    else if (!rates.emplace(device, rate).second)
      status.merge(Status::error(
          fmt::format("--for-rates names device {} twice", device)));
  }
  return status;
}

static Status parseMesh(const std::string &text,
                        std::map<std::string, int64_t> &mesh) {
  Status status;
  for (const std::string &part : split(text, ',')) {
    size_t equal = part.find('=');
    std::string axis = part.substr(0, equal);
    int64_t degree = 0;
    if (axis != "pp" && axis != "dp" && axis != "tp")
      return Status::error(fmt::format(
          "--mesh: expected degrees of pp, dp and tp, as pp=2,dp=2,tp=2, found "
          "'{}'",
          text));
    else if (equal == std::string::npos ||
             !parseNumber(part.substr(equal + 1), degree) || degree < 1 ||
             degree > kMostDevices)
      status.merge(Status::error(
          fmt::format("--mesh: expected a degree from 1 to {}, found '{}'",
                      kMostDevices, part)));
    else
      mesh[axis] = degree;
  }
  return status;
}

static Status parseShapes(const std::vector<std::string> &texts,
                          std::map<std::string, std::vector<int64_t>> &out) {
  Status status;
  for (const std::string &text : texts)
    for (const std::string &part : split(text, ',')) {
      size_t equal = part.rfind('=');
      std::vector<int64_t> dims;
      bool good = equal != std::string::npos;
      if (good)
        for (const std::string &dim : split(part.substr(equal + 1), 'x')) {
          int64_t size = -1;
          good &= dim == "?" || (parseNumber(dim, size) && size >= 0);
          dims.push_back(size);
        }
      if (good)
        out[part.substr(0, equal)] = dims;
      else
        status.merge(Status::error(
            fmt::format("--shape: expected NAME=2x3x..., found '{}'", part)));
    }
  return status;
}

// --touched=wte=0.02,other=0.5
static Status parseTouched(const std::vector<std::string> &texts,
                           std::map<std::string, double> &out) {
  Status status;
  for (const std::string &text : texts)
    for (const std::string &part : split(text, ',')) {
      const size_t equal = part.rfind('=');
      double share = 0;
      if (equal != std::string::npos && equal > 0 &&
          parseNumber(part.substr(equal + 1), share) && share > 0 && share <= 1)
        out[part.substr(0, equal)] = share;
      else
        status.merge(Status::error(fmt::format(
            "--touched: expected NAME=SHARE with a share above 0 and up to 1, "
            "found '{}'",
            part)));
    }
  return status;
}

namespace {

// The command line by the groups of its help. Values that need a parser of
// their own are read as text first.
class CommandLine {
public:
  CommandLine() {
    app.name("merakc");
    app.add_option("model", o.input,
                   "the model (binary or text ONNX, or IR with --from)");
    addModel();
    addTraining();
    addMachine();
    addPlan();
    addQuestion();
    addOutput();
    app.get_option("--help")->group("Other");
    app.set_version_flag("--version", "merakc 0.1.0")->group("Other");
  }

  ParsedOptions parse(int argc, const char *const *argv);

private:
  void addModel();
  void addTraining();
  void addMachine();
  void addPlan();
  void addQuestion();
  void addOutput();
  Status readTexts();
  Status checkTogether() const;
  Status readBucket();
  Status readRates();
  Status readDevices();
  Status readQuestion();
  Status checkQuestion() const;
  std::vector<std::string> given() const;

  template <typename Value>
  CLI::Option *add(const std::string &name, Value &value,
                   const std::string &text) {
    return app.add_option(name, value, text)->group(group);
  }
  // With a default that help shows.
  template <typename Value>
  CLI::Option *addDefault(const std::string &name, Value &value,
                          const std::string &text) {
    return add(name, value, text)->capture_default_str();
  }
  void addFlag(const std::string &name, bool &value, const std::string &text) {
    app.add_flag(name, value, text)->group(group);
  }

  CLI::App app{"compiles an ONNX model into one executable plan per rank"};
  std::string group;
  CompilerOptions o;
  CLI::Option *optimizerOption = nullptr;
  std::string mesh, optimizer = "adamw", mode = "train", freeze, trainable;
  std::string devices, objective = "time", allow, forbid;
  std::string dropout = "keep", gradOverlap = "on", gradBucket = "auto";
  std::string delayedRows = "off", delayedGradients = "off";
  std::vector<std::string> shapes, touched, forRates;
};

} // namespace

void CommandLine::addModel() {
  group = "Model";
  add("--shape", shapes, "bind symbolic dimensions, e.g. ids=8x128");
  add("--loss", o.loss,
      "the graph output that is the loss; goes before a training algorithm "
      "that the model brings (default: its only scalar)");
  add("--freeze", freeze, "initializers that are not trained (names or globs)");
  add("--trainable", trainable,
      "names or globs of all initializers that are trained (default: what the "
      "model's exporter says)");
  addFlag("--keep-shared", o.keepShared,
          "keep parameters that the exporter merged as one");
  addDefault("--dropout", dropout,
             "keep: as the model says; off: Dropout is the identity")
      ->check(CLI::IsMember({"keep", "off"}));
}

void CommandLine::addTraining() {
  group = "Training step";
  addDefault("--mode", mode, "train or infer")
      ->check(CLI::IsMember({"train", "infer"}));
  add("--global-batch", o.globalBatch,
      "samples a step over all replicas (default: the model's)")
      ->check(isFrom(1));
  optimizerOption = addDefault(
      "--optimizer", optimizer,
      "sgd:lr=..,momentum=.., adamw:lr=..,betas=../..,eps=..,weight_decay=.., "
      "adam:.. or adagrad:lr=..,lr_decay=..,eps=..; goes before a training "
      "algorithm that the model brings");
  addDefault("--precision", o.precision,
             "fp32; bf16 or fp16: activations and products in 16 bits; "
             "parameters, sums, losses and the optimizer in f32; with fp16 "
             "merak-run scales the loss (its --loss-scale); fp8: bf16, and "
             "products with weights take their operands in 8 bits")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "fp8"}));
  add("--grad-clip", o.gradClip,
      "bound of the global gradient norm (default: none)")
      ->check(isNoLess(0));
  addDefault(
      "--sparse", o.sparse,
      "gradients of tables that are only looked up are the rows that "
      "were looked up; lazy: the optimizer takes its step on these rows "
      "alone, as torch.optim.SparseAdam; exact: as with dense gradients, "
      "rows take the steps they were left out of before they are looked "
      "up again; off")
      ->check(CLI::IsMember({"off", "lazy", "exact"}));
  add("--touched", touched,
      "NAME=SHARE: the part of a table's rows that a step looks up; where ids "
      "repeat, replicas on hosts send each row once, as many as there are");
  addDefault("--delayed-rows", delayedRows,
             "on: rows of tables that no lookup of the next step needs are "
             "exchanged and updated beside that step, on hosts; off")
      ->check(CLI::IsMember({"on", "off"}));
  addDefault("--delayed-gradients", delayedGradients,
             "on: gradients whose sums over replicas the backward pass does "
             "not hide are summed beside the next step's forward pass, as far "
             "as that hides them; off")
      ->check(CLI::IsMember({"on", "off"}));
  add("--data", o.data,
      "training data, as of merak-run: what a step looks up is counted in it "
      "for tables without --touched");
}

void CommandLine::addMachine() {
  group = "Machine";
  add("--cluster", o.cluster,
      "cluster.json to compile for (default: ranks of this machine's "
      "processor)");
  add("--devices", devices,
      "ranks: of this machine's processor, or the first devices of --cluster "
      "(default: as many as --mesh has, or all of the cluster); several, as "
      "4,8,16, for --frontier");
  add("--for-rates", forRates,
      "devices that take so many times as long as others of their kind, as "
      "merak-run --status says it: 2:2.97,5:1.4; their stages get less to do; "
      "several times, also with none: -o is a folder that gets a plan for "
      "each");
  add("--memory-limit", o.memoryLimit,
      "bytes a rank may use, as 40GB or 37.5GiB (default: the cluster's)")
      ->transform(inBytes());
  add("--target", o.target,
      "what generated kernels run on: native, x86-64-v4, x86-64-v3, x86-64; "
      "sm_80 with a cluster of GPUs (default: the device's)");
}

void CommandLine::addPlan() {
  group = "Plan (what is not given is searched)";
  add("--mesh", mesh, "pinned degrees, e.g. pp=2,dp=2,tp=2");
  add("--microbatch", o.microbatch, "samples a microbatch of one replica")
      ->check(isFrom(1));
  addDefault("--schedule", o.schedule,
             fmt::format("auto, {}, or FILE.json",
                         fmt::join(planning::scheduleNames(), ", ")));
  addDefault("--recompute", o.recompute,
             "activations to compute again instead of keeping them: none, "
             "full, auto, or the ratio of stage 0 from 0 to 1");
  add("--tp-overlap", o.tpOverlap,
      "submicrobatches (two of a microbatch) that hide each other's "
      "tensor-parallel "
      "collectives: 0 off, 1 to 3 inside a layer, a block, everywhere, or auto "
      "(default: auto with --cluster, else 0)")
      ->check(CLI::IsMember({"0", "1", "2", "3", "auto"}));
  add("--cast-weights", o.castWeights,
      "parameters that are read in another type, as under --precision=bf16, "
      "fp16 or fp8: "
      "step keeps them so beside themselves, written by the optimizer, use "
      "converts at each use, auto keeps them if a plan that does so fits "
      "(default: auto)")
      ->check(CLI::IsMember({"step", "use", "auto"}));
  add("--zero", o.zero,
      "parameters stored in parts over the replicas: 1 gathers them once a "
      "step "
      "and divides the optimizer's state, 2 divides gradients as well, 3 "
      "gathers at each use, or auto (default: 0)")
      ->check(CLI::IsMember({"0", "1", "2", "3", "auto"}));
  add("--sequence-parallel", o.sequence,
      "on: tokens are split over tp where nothing else is, and each all-reduce "
      "becomes a reduce-scatter and an all-gather; off, or auto (default: off)")
      ->check(CLI::IsMember({"on", "off", "auto"}));
  add("--context-parallel", o.context,
      "on: tokens are split over tp everywhere, weights are whole, and "
      "attention gathers keys and values; off, or auto (default: off)")
      ->check(CLI::IsMember({"on", "off", "auto"}));
  add("--mixed-layouts", o.mixed,
      "auto: layouts that differ between parts of the model are searched "
      "(columns of tables and experts over dp, wide layers by width beside "
      "others by samples, tokens over tp in some); off (default: auto with "
      "--sparse, whose exchanges these layouts are, else off)")
      ->check(CLI::IsMember({"off", "auto"}));
  add("--parts", o.parts,
      "auto: stages with devices and degrees of their own are searched beside "
      "one mesh for all; off: one mesh, also for replicas with slow devices, "
      "which else may share microbatches (default: auto where nothing about "
      "degrees is given and the devices differ or their number is no power "
      "of two)")
      ->check(CLI::IsMember({"off", "auto"}));
  add("--reshard", o.reshard,
      fmt::format("how every value goes from a stage to one on another mesh "
                  "(default: the fastest way of each): {}",
                  fmt::join(resharding::strategyNames(), ", ")))
      ->check(CLI::IsMember(resharding::strategyNames()));
  addDefault("--sends", o.sends,
             "early: what another stage reads goes there as soon as it is "
             "made; late: when the whole forward or backward of the "
             "microbatch is done; blocking: so, and the stage computes nothing "
             "until it has left; these two to compare with, schedules are "
             "searched as for early")
      ->check(CLI::IsMember({"early", "late", "blocking"}));
  addDefault("--grad-overlap", gradOverlap,
             "on: each gradient is reduced over replicas as soon as it is "
             "final, and stored parameters are gathered ahead of their uses; "
             "off: all where they are needed")
      ->check(CLI::IsMember({"on", "off"}));
  addDefault("--grad-bucket", gradBucket,
             "bytes of gradients that are reduced by one collective, and of "
             "stored parameters that are gathered by one; 0: each by itself; "
             "auto: as the links make it worth while");
  add("--strategy", o.strategy, "read pinned decisions");
}

void CommandLine::addQuestion() {
  group = "Question (what the search is for)";
  addDefault("--objective", objective,
             "time: the fastest plan that fits; memory: the one of least "
             "memory, the fastest of these; devices: the fewest devices that "
             "it fits, and least time there")
      ->check(CLI::IsMember({"time", "memory", "devices"}));
  add("--frontier", o.frontier,
      "write all plans of which none needs more memory and more time than "
      "another, one curve for each number of --devices, to FILE.json or a page "
      "FILE.html that draws them");
  add("--pick", o.pick,
      "compile a point of --frontier: its number, or fastest or smallest, of "
      "one curve with @DEVICES");
  add("--allow", allow, "use them if they are best, " + describeTechniques());
  add("--forbid", forbid, "plan without these techniques");
}

void CommandLine::addOutput() {
  group = "Output";
  add("-o,--output", o.output,
      "the plan's directory, or a file (- for the terminal) with --to");
  add("--emit-strategy", o.emitStrategy, "write all decisions");
  add("--emit-schedule", o.emitSchedule,
      "write the schedule as a file for --schedule");
  add("--emit-onnx", o.emitOnnx,
      "write the model with all decisions as ONNX multi-device metadata (IR "
      "11)");
  addDefault("--hash", o.hash,
             "what the plan remembers of the model's files, to refuse others: "
             "sampled, a hash of samples of large ones; full, of all bytes")
      ->check(CLI::IsMember({"sampled", "full"}));
  add("--report", o.report,
      "HTML page about the plan: timeline, memory, decisions");
  add("--remarks", o.remarks,
      "print decisions as remarks at what they are about, to stderr: "
      "categories "
      "by a regular expression (mesh, layout, stage, recompute, schedule, "
      "overlap, bucket, memory; .* for all)");
  addFlag("-v,--verbose", o.verbose,
          "all decisions, not only what fits one screen");
  addFlag("-q,--quiet", o.quiet, "no report; warnings go to stderr");
  addFlag("--timing", o.timing,
          "where the time of the compilation went and the most memory it had, "
          "to stderr");
  addFlag("--check", o.check,
          "write nothing: list all that stands in the way of compiling the "
          "model, and what its exporter changed");
  addFlag("--operators", o.operators,
          "print what is known of every operator, as JSON; no model");
  group = "Phases";
  add("--to", o.toPhase, "stop after a phase and print the IR")
      ->check(CLI::IsMember(phaseNames()));
  add("--from", o.fromPhase, "the input is IR after this phase")
      ->check(CLI::IsMember(phaseNames()));
  add("--save-ir", o.saveIr, "a snapshot of the IR after every phase");
}

Status CommandLine::readBucket() {
  if (gradBucket == "auto")
    return {};
  o.gradBucket = bytesOf(gradBucket);
  return o.gradBucket
             ? Status()
             : Status::error(fmt::format("--grad-bucket: expected bytes, as "
                                         "25MB, or auto, found '{}'",
                                         gradBucket));
}

Status CommandLine::readRates() {
  Status status;
  for (const std::string &text : forRates)
    status.merge(
        parseRates(text == "none" ? "" : text, o.family.emplace_back()));
  if (o.family.size() == 1)
    o.forRates = std::move(o.family.front());
  if (o.family.size() < 2)
    o.family.clear();
  return status;
}

CompilerOptions memberOf(const CompilerOptions &options, size_t member) {
  CompilerOptions one = options;
  one.family.clear();
  one.forRates = options.family[member];
  std::string rates, name;
  for (const auto &[device, rate] : one.forRates) {
    rates += fmt::format("{}{}:{:g}", rates.empty() ? "" : ",", device, rate);
    name += fmt::format("-{}x{:g}", device, rate);
  }
  std::erase_if(one.given, [](const std::string &option) {
    return option.starts_with("--for-rates=");
  });
  if (!rates.empty())
    one.given.push_back("--for-rates=" + rates);
  one.output += name.empty() ? "/healthy.plan" : "/rates" + name + ".plan";
  return one;
}

Status CommandLine::readDevices() {
  std::vector<int64_t> counts;
  for (const std::string &text : split(devices, ',')) {
    int64_t count = 0;
    if (!parseNumber(text, count) || count < 1 || count > kMostDevices)
      return Status::error(
          fmt::format("--devices: expected a number from 1 to {}, found '{}'",
                      kMostDevices, text));
    counts.push_back(count);
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  if (counts.size() == 1)
    o.devices = counts.front();
  else
    o.deviceCounts = counts;
  return {};
}

Status CommandLine::readQuestion() {
  o.objective = objective == "memory"    ? Objective::Memory
                : objective == "devices" ? Objective::Devices
                                         : Objective::Time;
  Status status = readDevices();
  status.merge(applyTechniques(split(allow, ','), split(forbid, ','), o));
  return status;
}

Status CommandLine::readTexts() {
  o.train = mode == "train";
  o.optimizerGiven = optimizerOption->count() > 0;
  o.dropout = dropout == "keep";
  o.gradOverlap = gradOverlap == "on";
  o.delayedRows = delayedRows == "on";
  o.delayedGradients = delayedGradients == "on";
  o.freeze = split(freeze, ',');
  o.trainable = split(trainable, ',');
  Status status = readBucket();
  status.merge(parseMesh(mesh, o.mesh));
  status.merge(readRates());
  status.merge(parseShapes(shapes, o.shapes));
  status.merge(parseTouched(touched, o.touched));
  Result<Optimizer> parsed = parseOptimizer(optimizer);
  if (parsed.ok())
    o.optimizer = *parsed;
  else
    status.merge(parsed.status());
  if (Status checked = planning::Strategy::checkRecompute(o.recompute);
      !checked.ok())
    status.merge(Status::error("--recompute: " + checked.messages().front()));
  status.merge(readQuestion());
  return status;
}

// Questions that are asked of whole plans, and of one another.
Status CommandLine::checkQuestion() const {
  Status status;
  auto refuse = [&](bool wrong, const char *message) {
    if (wrong)
      status.merge(Status::error(message));
  };
  const bool asks = !o.frontier.empty() || o.objective != Objective::Time;
  refuse(!o.frontier.empty() && !o.frontier.ends_with(".json") &&
             !o.frontier.ends_with(".html"),
         "--frontier: expected FILE.json or FILE.html");
  refuse(!o.frontier.empty() && o.objective != Objective::Time,
         "--frontier answers for every objective: --pick=smallest is the one "
         "of least memory");
  refuse(!o.pick.empty() && o.frontier.empty(),
         "--pick needs the --frontier that the point stands in");
  refuse(!o.frontier.empty() && o.pick.empty() && !o.output.empty(),
         "--frontier writes no plan: --pick=POINT says which one -o is for");
  refuse(o.deviceCounts.size() > 1 && o.frontier.empty(),
         "several --devices are for --frontier");
  refuse(asks && (o.toPhase != "files" || !o.fromPhase.empty()),
         "--frontier and --objective compare whole plans, without --to and "
         "--from");
  refuse(asks && o.check, "--check plans nothing");
  refuse(!o.family.empty() &&
             (asks || o.toPhase != "files" || !o.fromPhase.empty() ||
              !o.report.empty() || !o.emitStrategy.empty() ||
              !o.emitSchedule.empty() || !o.emitOnnx.empty()),
         "several --for-rates make a folder of plans, without --frontier, "
         "--objective, --to, --from, --report and --emit-...");
  return status;
}

Status CommandLine::checkTogether() const {
  Status status;
  auto refuse = [&](bool wrong, const char *message) {
    if (wrong)
      status.merge(Status::error(message));
  };
  refuse(!o.report.empty() && o.toPhase != "files",
         "--report needs a whole plan, without --to");
  refuse(o.delayedRows && o.sparse == "off",
         "--delayed-rows are of tables with --sparse");
  refuse(o.delayedRows && o.gradClip > 0,
         "--delayed-rows: the norm of --grad-clip needs the sums of all rows "
         "before any is updated");
  refuse(o.delayedGradients && o.gradClip > 0,
         "--delayed-gradients: the norm of --grad-clip needs all gradients "
         "summed over replicas before any is taken a step by");
  refuse(o.delayedGradients && !o.train,
         "--delayed-gradients are of --mode=train");
  refuse(o.check && !o.fromPhase.empty(),
         "--check reads a model, not IR with --from");
  refuse(!o.emitOnnx.empty() && !o.fromPhase.empty(),
         "--emit-onnx annotates a model, not IR with --from");
  refuse(o.input.empty() && !o.operators, "model is required (see --help)");
  refuse(o.output.empty() && !o.check && !o.operators &&
             (o.frontier.empty() || !o.pick.empty()),
         "-o OUT.plan is required");
  status.merge(checkQuestion());
  return status;
}

// Of plans that were picked from many, and of text in the middle, there is no
// command that compiles them again.
std::vector<std::string> CommandLine::given() const {
  static const std::set<std::string> kFiles = {"cluster", "strategy", "data"};
  static const std::set<std::string> kTechniques = {"allow", "forbid"};
  static const std::set<std::string> kGroups = {"Model", "Training step",
                                                "Machine"};
  std::vector<std::string> texts;
  if (!o.fromPhase.empty() || !o.frontier.empty())
    return texts;
  for (const CLI::Option *option : app.get_options()) {
    const std::string &chapter = option->get_group();
    if (option->count() == 0 || option->get_lnames().empty() ||
        !(kGroups.count(chapter) || chapter.starts_with("Plan") ||
          kTechniques.count(option->get_lnames().front())))
      continue;
    const std::string &name = option->get_lnames().front();
    if (option->get_items_expected_max() == 0) {
      texts.push_back("--" + name);
      continue;
    }
    for (std::string value : option->results()) {
      std::error_code none;
      if ((kFiles.count(name) || value.ends_with(".json")) &&
          std::filesystem::exists(value, none))
        value = std::filesystem::absolute(value, none).lexically_normal();
      texts.push_back("--" + name + "=" + value);
    }
  }
  return texts;
}

ParsedOptions CommandLine::parse(int argc, const char *const *argv) {
  ParsedOptions parsed;
  try {
    // CLI11 would take the next argument for the value of "--option=".
    for (int i = 1; i < argc; ++i)
      if (std::string_view arg = argv[i];
          arg.starts_with("--") && arg.ends_with("="))
        throw CLI::ArgumentMismatch(fmt::format("{} has an empty value",
                                                arg.substr(0, arg.size() - 1)));
    app.parse(argc, argv);
  } catch (const CLI::ParseError &error) {
    if (error.get_exit_code() == 0) {
      parsed.text =
          error.get_name() == "CallForHelp" ? app.help() : "merakc 0.1.0\n";
      parsed.exitCode = 0;
    } else {
      parsed.text =
          fmt::format("merakc: {} (see --help)\n", sentenceOf(app, error));
      parsed.exitCode = 2;
    }
    return parsed;
  }
  Status status = readTexts();
  status.merge(checkTogether());
  for (const std::string &message : status.messages())
    parsed.text += "merakc: " + message + "\n";
  if (!status.ok())
    parsed.exitCode = 2;
  o.given = given();
  parsed.options = std::move(o);
  return parsed;
}

ParsedOptions parseOptions(int argc, const char *const *argv) {
  return CommandLine().parse(argc, argv);
}

} // namespace merak
