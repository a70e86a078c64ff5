#include "runtime/launch/PlanPool.h"

#include "runtime/launch/CompilerProcess.h"
#include "runtime/launch/Rates.h"
#include "runtime/plan/Signature.h"
#include "runtime/plan/Verify.h"

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace merak::runtime {
namespace {

// "--mesh" of "--mesh=pp=2".
std::string nameOf(const std::string &option) {
  return option.substr(0, option.find('='));
}

std::string valueOf(const std::string &option) {
  const size_t equal = option.find('=');
  return equal == std::string::npos ? "" : option.substr(equal + 1);
}

// What says how a model is trained, beside what the plan itself has: plans that
// differ in these compute something else.
const std::set<std::string> kTraining = {
    "--loss",    "--freeze",    "--trainable", "--keep-shared",
    "--dropout", "--precision", "--grad-clip", "--sparse"};

std::set<std::string> trainingOf(const planpb::PlanFile &plan) {
  std::set<std::string> found;
  for (const std::string &option : plan.options())
    if (kTraining.count(nameOf(option)))
      found.insert(option);
  return found;
}

// A plan comes from somewhere: what it says of its options decides what is
// compiled, not what is written where, read back or sent.
bool isOfCompiling(const std::string &option) {
  static const std::set<std::string> kOthers = {
      "--output",    "--report",        "--remarks",       "--save-ir",
      "--to",        "--from",          "--frontier",      "--pick",
      "--objective", "--emit-strategy", "--emit-schedule", "--emit-onnx",
      "--check",     "--operators",     "--help",          "--version"};
  return option.starts_with("--") && option.size() > 2 &&
         !kOthers.count(nameOf(option));
}

std::string degreesOf(const planpb::PlanFile &plan) {
  std::string text;
  for (const planpb::Axis &axis : plan.mesh())
    if (axis.name() == "pp" || axis.name() == "dp" || axis.name() == "tp")
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name(),
                          axis.size());
  return text;
}

std::string folderName(const elastic::Situation &situation, bool regroups) {
  std::string rates = elastic::str(situation);
  std::replace(rates.begin(), rates.end(), ':', 'x');
  std::replace(rates.begin(), rates.end(), ',', '-');
  return fmt::format("rates-{}-{}.plan", rates, regroups ? "groups" : "layers");
}

} // namespace

// As merakc has it.
constexpr size_t kMostDevices = 1 << 20;

size_t deviceCount(const planpb::PlanFile &plan) {
  const std::vector<int> devices = devicesOf(plan);
  size_t count = size_t(*std::max_element(devices.begin(), devices.end())) + 1;
  for (const std::string &option : plan.options())
    if (nameOf(option) == "--devices")
      count = std::max(count, size_t(std::atoll(valueOf(option).c_str())));
  return std::min(count, kMostDevices);
}

// Of an option that is there once; empty: it is not.
static std::string givenIn(const planpb::PlanFile &plan, const char *name) {
  for (const std::string &option : plan.options())
    if (nameOf(option) == name)
      return valueOf(option);
  return "";
}

std::string clusterFileOf(const planpb::PlanFile &plan) {
  return givenIn(plan, "--cluster");
}

Result<elastic::Situation> plannedFor(const planpb::PlanFile &plan,
                                      size_t devices) {
  return elastic::parseSituation(givenIn(plan, "--for-rates"), devices);
}

std::vector<double> ratesOfRanks(const planpb::PlanFile &plan,
                                 const elastic::Situation &situation) {
  std::vector<double> rates;
  for (int device : devicesOf(plan))
    rates.push_back(
        size_t(device) < situation.size() ? situation[size_t(device)] : 1);
  return rates;
}

Status makeHealthy(LoadedPlan &plan, const PlanPrices &prices) {
  auto planned = plannedFor(plan.file, deviceCount(plan.file));
  if (!planned)
    return planned.status();
  if (elastic::str(*planned) == "none")
    return {};
  auto cluster = prices.healthyCluster(plan, ratesOfRanks(plan.file, *planned));
  if (!cluster)
    return cluster.status();
  plan.file.set_cluster(*cluster);
  return {};
}

Result<LoadedPlan> loadNext(const std::string &path, bool trust,
                            const PlanPrices &prices) {
  auto plan = loadPlanToRun(path, trust);
  if (!plan)
    return plan.status();
  MERAK_RETURN_IF_ERROR(verifyPlan(*plan).withContext(path));
  MERAK_RETURN_IF_ERROR(makeHealthy(*plan, prices).withContext(path));
  return plan;
}

PlanSource sourceOfPlans(const std::string &plan, const std::string &plans,
                         const std::string &compiler) {
  PlanSource source;
  source.made = std::filesystem::path(plan + "/.")
                    .lexically_normal()
                    .parent_path()
                    .replace_extension(".plans");
  source.folder = plans.empty() ? source.made : plans;
  if (compiler != "off")
    source.compiler = compiler.empty() ? defaultCompiler() : compiler;
  return source;
}

Result<std::vector<std::string>> compileArguments(const planpb::PlanFile &plan,
                                                  const PlanWish &wish,
                                                  const std::string &output) {
  if (plan.options_size() == 0)
    return Status::error("the plan does not say how it was compiled: compile "
                         "it again");
  std::vector<std::string> arguments = {
      (std::filesystem::path(plan.model_dir()) /
       std::filesystem::path(plan.model()).filename())
          .string(),
      "-q", "-o", output};
  static const std::set<std::string> kReplaced = {"--for-rates", "--devices",
                                                  "--strategy"};
  static const std::set<std::string> kSearched = {"--mesh", "--microbatch",
                                                  "--parts"};
  bool hasMesh = wish.regroups;
  for (const std::string &option : plan.options()) {
    const std::string name = nameOf(option);
    if (!isOfCompiling(option))
      return Status::error(fmt::format(
          "the plan says that it was compiled with \"{}\", which is no option "
          "of what is compiled",
          option));
    if (kReplaced.count(name) || (wish.regroups && kSearched.count(name)) ||
        (!wish.cluster.empty() && name == "--cluster"))
      continue;
    hasMesh = hasMesh || name == "--mesh";
    arguments.push_back(option);
  }
  if (!hasMesh)
    arguments.push_back("--mesh=" + degreesOf(plan));
  if (!wish.cluster.empty())
    arguments.push_back("--cluster=" + wish.cluster);
  arguments.push_back(fmt::format("--devices={}", wish.devices.size()));
  if (const std::string rates = elastic::str(wish.devices); rates != "none")
    arguments.push_back("--for-rates=" + rates);
  return arguments;
}

PlanPool::PlanPool(std::string path, const LoadedPlan &first, PlanSource source,
                   bool trust, PlanPrices prices)
    : source_(std::move(source)), trust_(trust), prices_(std::move(prices)),
      devices_(deviceCount(first.file)) {
  auto planned = plannedFor(first.file, devices_);
  plans_.push_back({std::move(path), first,
                    planned ? *planned : elastic::Situation(devices_, 1)});
}

// The state is compared by who moves it.
Status PlanPool::checkSame(const LoadedPlan &plan) const {
  const planpb::PlanFile &a = plans_.front().plan.file, &b = plan.file;
  using google::protobuf::util::MessageDifferencer;
  Status problems;
  auto compare = [&](bool same, const char *what) {
    if (!same)
      problems.merge(
          Status::error(fmt::format("it has {} than the run's plan", what)));
  };
  compare(a.model_hash() == b.model_hash(), "another model");
  compare(a.mode() == b.mode() && a.global_batch() == b.global_batch(),
          "another global batch");
  compare(a.device() == b.device(), "another kind of device");
  compare(MessageDifferencer::Equals(a.optimizer(), b.optimizer()),
          "another optimizer");
  compare(trainingOf(a) == trainingOf(b), "other options of training");
  compare(deviceCount(b) <= devices_, "more devices");
  return problems;
}

bool PlanPool::has(const std::string &path) const {
  return std::any_of(plans_.begin(), plans_.end(),
                     [&](const PooledPlan &plan) { return plan.path == path; });
}

Status PlanPool::add(const std::string &path) {
  if (has(path))
    return {};
  auto plan = loadNext(path, trust_, prices_);
  if (!plan)
    return plan.status();
  MERAK_RETURN_IF_ERROR(checkSame(*plan).withContext(path));
  auto planned = plannedFor(plan->file, devices_);
  if (!planned)
    return Status(planned.status()).withContext(path);
  plan->file.set_model_dir(plans_.front().plan.file.model_dir());
  plans_.push_back({path, std::move(*plan), std::move(*planned)});
  return {};
}

std::vector<std::string> PlanPool::readFolder() {
  std::vector<std::string> paths, notes;
  std::error_code error;
  for (const auto &entry :
       std::filesystem::directory_iterator(source_.folder, error))
    if (entry.path().extension() == ".plan")
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  for (const std::string &path : paths)
    if (const Status status = add(path); !status.ok())
      notes.push_back(
          fmt::format("not considered: {}", status.messages().front()));
  return notes;
}

Status PlanPool::compile(const PlanWish &wish, const std::string &path,
                         const std::atomic<bool> &stop) const {
  auto arguments = compileArguments(plans_.front().plan.file, wish, path);
  if (!arguments)
    return arguments.status();
  const std::string folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return Status::error(
        fmt::format("cannot write \"{}\": {}", folder, error.message()));
  return runCompiler(source_.compiler, *arguments, stop);
}

Status PlanPool::provide(const elastic::Situation &situation,
                         const std::atomic<bool> &stop) {
  if (source_.compiler.empty())
    return {};
  for (const PooledPlan &known : plans_)
    if (!elastic::differ(known.planned, situation))
      return {};
  Status problems;
  for (bool regroups : {false, true}) {
    if (!regroups && plans_.front().plan.file.meshes_size() > 0)
      continue; // it has no degrees to keep
    const std::string path =
        source_.made + "/" + folderName(situation, regroups);
    Status made = compile({situation, regroups, ""}, path, stop);
    if (made.ok())
      made = add(path);
    problems.merge(made);
    if (stop)
      break;
  }
  return problems;
}

} // namespace merak::runtime
