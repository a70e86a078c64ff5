#include "compiler/Pipeline/Options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <fmt/format.h>

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
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Result<OptimizerOptions> parseOptimizer(const std::string &text) {
  OptimizerOptions options;
  Status status;
  size_t colon = text.find(':');
  options.kind = text.substr(0, colon);
  const bool isSgd = options.kind == "sgd";
  const bool isAdagrad = options.kind == "adagrad";
  const bool isAdam = options.kind == "adamw" || options.kind == "adam";
  if (!isSgd && !isAdagrad && !isAdam)
    return Status::error(fmt::format(
        "--optimizer: expected sgd, adamw, adam or adagrad, found '{}'",
        options.kind));
  if (options.kind != "adamw")
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
      options.schedule = value;
      if (value != "constant" && value != "linear" && value != "cosine")
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
      status.merge(Status::error(fmt::format(
          "--optimizer: {} has no option '{}'", options.kind, key)));
  }
  if (options.schedule != "constant" && options.total <= options.warmup)
    status.merge(Status::error(
        fmt::format("--optimizer: schedule {} needs total above warmup",
                    options.schedule)));
  if (!status.ok())
    return status;
  return options;
}

static Status parseMesh(const std::string &text,
                        std::map<std::string, int64_t> &mesh) {
  Status status;
  for (const std::string &part : split(text, ',')) {
    size_t equal = part.find('=');
    std::string axis = part.substr(0, equal);
    int64_t degree = 0;
    if (axis != "pp" && axis != "dp" && axis != "tp")
      status.merge(Status::error(fmt::format(
          "--mesh: expected the axes pp, dp, tp, found '{}'", axis)));
    else if (equal == std::string::npos ||
             !parseNumber(part.substr(equal + 1), degree) || degree < 1)
      status.merge(Status::error(
          fmt::format("--mesh: expected a positive degree, found '{}'", part)));
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

ParsedOptions parseOptions(int argc, const char *const *argv) {
  ParsedOptions parsed;
  CompilerOptions &o = parsed.options;
  CLI::App app{"compiles an ONNX model into one executable plan per rank"};
  app.name("merakc");
  std::string mesh, optimizer = "adamw", mode = "train", freeze, trainable,
                    memory;
  std::string dropout = "keep", gradOverlap = "on", gradBucket = "auto";
  std::vector<std::string> shapes;
  app.add_option("model", o.input,
                 "the model (binary or text ONNX, or IR with --from)");
  app.add_option(
      "-o,--output", o.output,
      "the plan's directory, or a file (- for the terminal) with --to");
  app.add_option("--cluster", o.cluster, "cluster.json to compile for");
  app.add_option("--devices", o.devices,
                 "ranks: of this machine's processor, or the first "
                 "devices of --cluster")
      ->check(CLI::PositiveNumber);
  app.add_option("--mesh", mesh, "pinned degrees, e.g. pp=2,dp=2,tp=2");
  app.add_option("--shape", shapes, "bind symbolic dimensions, e.g. ids=8x128");
  app.add_option("--global-batch", o.globalBatch,
                 "samples a step over all replicas")
      ->check(CLI::PositiveNumber);
  app.add_option("--microbatch", o.microbatch,
                 "samples a microbatch of one replica")
      ->check(CLI::PositiveNumber);
  app.add_option("--mode", mode, "train or infer")
      ->check(CLI::IsMember({"train", "infer"}));
  app.add_option("--loss", o.loss,
                 "the graph output that is the loss; goes before a training "
                 "algorithm that the model brings");
  app.add_option("--freeze", freeze,
                 "initializers that are not trained (names or globs)");
  app.add_option("--trainable", trainable,
                 "names or globs of all initializers that are trained");
  app.add_flag("--keep-shared", o.keepShared,
               "keep parameters that the exporter merged as one");
  app.add_option("--dropout", dropout,
                 "keep: as the model says; off: Dropout is the identity")
      ->check(CLI::IsMember({"keep", "off"}));
  CLI::Option *optimizerOption = app.add_option(
      "--optimizer", optimizer,
      "sgd:lr=..,momentum=.., adamw:lr=..,betas=../..,eps=..,weight_decay=.., "
      "adam:.. or adagrad:lr=..,lr_decay=..,eps=..; goes before a training "
      "algorithm that the model brings");
  app.add_option("--precision", o.precision,
                 "fp32, or bf16: activations and products in bf16; parameters, "
                 "sums, losses and the optimizer in f32")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--grad-clip", o.gradClip, "bound of the global gradient norm")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--schedule", o.schedule,
      "auto, gpipe, 1f1b, early, last, scp, eager, interleaved, zb, or "
      "FILE.json");
  app.add_option("--recompute", o.recompute,
                 "activations to compute again instead of keeping them: none, "
                 "full, auto, or the ratio of stage 0 from 0 to 1");
  app.add_option(
         "--tp-overlap", o.tpOverlap,
         "halves of a microbatch that hide each other's tensor-parallel "
         "collectives: 0 off, 1 to 3 inside a layer, a block, "
         "everywhere, or auto")
      ->check(CLI::IsMember({"0", "1", "2", "3", "auto"}));
  app.add_option("--grad-overlap", gradOverlap,
                 "on: each gradient is reduced over replicas as soon as it is "
                 "final; off: all of them in the update")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--grad-bucket", gradBucket,
                 "bytes of gradients that are reduced by one collective; 0: "
                 "each by itself; auto: as the links make it worth while");
  app.add_option("--strategy", o.strategy, "read pinned decisions");
  app.add_option("--emit-strategy", o.emitStrategy, "write all decisions");
  app.add_option("--emit-onnx", o.emitOnnx,
                 "write the model with all decisions as ONNX multi-device "
                 "metadata (IR 11)");
  app.add_option("--emit-schedule", o.emitSchedule,
                 "write the schedule as a file for --schedule");
  app.add_option("--to", o.toPhase, "stop after a phase and print the IR")
      ->check(CLI::IsMember(phaseNames()));
  app.add_option("--from", o.fromPhase, "the input is IR after this phase")
      ->check(CLI::IsMember(phaseNames()));
  app.add_option("--save-ir", o.saveIr,
                 "a snapshot of the IR after every phase");
  app.add_option("--memory-limit", o.memoryLimit,
                 "bytes a rank may use (default: the cluster's)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--report", o.report,
                 "HTML page about the plan: timeline, memory, decisions");
  app.add_option(
      "--target", o.target,
      "what generated kernels run on: native, x86-64-v4, x86-64-v3, x86-64; "
      "sm_80 with a cluster of GPUs");
  app.add_flag("--check", o.check,
               "write nothing: list all that stands in the way of compiling "
               "the model, and what its exporter changed");
  app.add_flag("--operators", o.operators,
               "print what is known of every operator, as JSON; no model");
  app.add_flag("-v,--verbose", o.verbose,
               "all decisions, not only what fits one screen");
  app.add_flag("-q,--quiet", o.quiet, "no report; warnings go to stderr");
  app.set_version_flag("--version", "merakc 0.1.0");
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
      parsed.text = fmt::format("merakc: {} (see --help)\n", error.what());
      parsed.exitCode = 2;
    }
    return parsed;
  }
  o.train = mode == "train";
  o.optimizerGiven = optimizerOption->count() > 0;
  o.dropout = dropout == "keep";
  o.gradOverlap = gradOverlap == "on";
  o.freeze = split(freeze, ',');
  o.trainable = split(trainable, ',');
  Status status;
  if (int64_t bytes = 0; gradBucket != "auto") {
    if (!parseNumber(gradBucket, bytes) || bytes < 0)
      status.merge(Status::error(fmt::format(
          "--grad-bucket: expected a number of bytes or auto, found '{}'",
          gradBucket)));
    o.gradBucket = bytes;
  }
  status.merge(parseMesh(mesh, o.mesh));
  status.merge(parseShapes(shapes, o.shapes));
  Result<OptimizerOptions> parsedOptimizer = parseOptimizer(optimizer);
  if (parsedOptimizer.ok())
    o.optimizer = *parsedOptimizer;
  else
    status.merge(parsedOptimizer.status());
  if (Status checked = planning::Strategy::checkRecompute(o.recompute);
      !checked.ok())
    status.merge(Status::error("--recompute: " + checked.messages().front()));
  if (!o.report.empty() && o.toPhase != "files")
    status.merge(Status::error("--report needs a whole plan, without --to"));
  if (o.check && !o.fromPhase.empty())
    status.merge(Status::error("--check reads a model, not IR with --from"));
  if (!o.emitOnnx.empty() && !o.fromPhase.empty())
    status.merge(
        Status::error("--emit-onnx annotates a model, not IR with --from"));
  if (o.input.empty() && !o.operators)
    status.merge(Status::error("model is required (see --help)"));
  if (o.output.empty() && !o.check && !o.operators)
    status.merge(Status::error("-o OUT.plan is required"));
  if (!status.ok()) {
    for (const std::string &message : status.messages())
      parsed.text += "merakc: " + message + "\n";
    parsed.exitCode = 2;
  }
  return parsed;
}

} // namespace merak
