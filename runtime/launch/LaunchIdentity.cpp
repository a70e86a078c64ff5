#include "runtime/launch/LaunchIdentity.h"

#include "runtime/comm/rendezvous/TcpStore.h"
#include "runtime/trust/Hmac.h"
#include "runtime/trust/UserKey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

namespace merak::runtime {
namespace {

// Slurm names no port; jobs on one host get different ones from their ids.
constexpr int kFirstSlurmPort = 20000, kSlurmPorts = 12000;

// Reads variables and collects what is wrong with them.
class Reader {
public:
  explicit Reader(const EnvironmentReader &environment)
      : environment_(environment) {}

  bool has(const char *name) const { return text(name) != nullptr; }
  const char *text(const char *name) const {
    const char *value = environment_(name);
    return value && *value ? value : nullptr;
  }
  // The number, or nothing if the variable is not set; what is no number from
  // `low` to `high` is a problem.
  std::optional<int> number(const char *name, int low = 0, int high = 1 << 30) {
    const char *value = text(name);
    if (!value)
      return {};
    int result = 0;
    const char *end = value + std::strlen(value);
    const auto [stop, error] = std::from_chars(value, end, result);
    if (error == std::errc() && stop == end && result >= low && result <= high)
      return result;
    problem(fmt::format("{}: expected a number from {}{}, found \"{}\"", name,
                        low, high < 1 << 30 ? fmt::format(" to {}", high) : "",
                        value));
    return {};
  }
  // The first of several that is set.
  std::optional<int> firstNumber(const std::vector<const char *> &names,
                                 int low = 0) {
    for (const char *name : names)
      if (has(name))
        return number(name, low);
    return {};
  }
  void problem(std::string text) {
    problems.merge(Status::error(std::move(text)));
  }
  Status problems;

private:
  const EnvironmentReader &environment_;
};

// How a launcher names what every launcher tells.
struct Names {
  LaunchIdentity::Launcher launcher;
  std::vector<const char *> rank, size, localRank, localSize;
};
const Names kTorchrun{LaunchIdentity::Torchrun,
                      {"RANK"},
                      {"WORLD_SIZE"},
                      {"LOCAL_RANK"},
                      {"LOCAL_WORLD_SIZE"}};
const Names kMpirun{LaunchIdentity::Mpirun,
                    {"OMPI_COMM_WORLD_RANK", "PMI_RANK"},
                    {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}};
const Names kSlurm{LaunchIdentity::Slurm,
                   {"SLURM_PROCID"},
                   {"SLURM_NTASKS", "SLURM_NPROCS"},
                   {"SLURM_LOCALID"},
                   {"SLURM_NTASKS_PER_NODE"}};

bool anySet(const Reader &reader, const std::vector<const char *> &names) {
  for (const char *name : names)
    if (reader.has(name))
      return true;
  return false;
}

void readNumbers(Reader &reader, const Names &names, LaunchIdentity &identity) {
  identity.launcher = names.launcher;
  const auto rank = reader.firstNumber(names.rank);
  const auto size = reader.firstNumber(names.size, 1);
  identity.rank = rank.value_or(0);
  identity.size = size.value_or(1);
  identity.localRank = reader.firstNumber(names.localRank).value_or(0);
  identity.localSize = reader.firstNumber(names.localSize, 1).value_or(1);
  if (rank && size && *rank >= *size)
    reader.problem(fmt::format("{} is {}, expected less than {}, which is {}",
                               names.rank[0], *rank, names.size[0], *size));
}

// Variables of torchrun that are set beside those of mpirun must agree.
void compare(Reader &reader, const char *name, int expected,
             const std::vector<const char *> &theirs) {
  const auto value = reader.number(name);
  if (value && *value != expected)
    reader.problem(fmt::format("{} is {}, but {} is {}", name, *value,
                               theirs[reader.has(theirs[0]) ? 0 : 1],
                               expected));
}

void readMaster(Reader &reader, LaunchIdentity &identity) {
  if (const char *address = reader.text("MASTER_ADDR"))
    identity.masterAddress = address;
  identity.masterPort = reader.number("MASTER_PORT", 1, 65535).value_or(0);
  // torchrun's agent may itself listen on the port that it tells.
  const char *agent = reader.text("TORCHELASTIC_USE_AGENT_STORE");
  if (identity.masterPort > 0 && agent && std::strcmp(agent, "True") == 0)
    identity.masterPort = identity.masterPort % 65535 + 1;
  if (const char *run = reader.text("TORCHELASTIC_RUN_ID"))
    identity.run = run;
  else if (const char *job = reader.text("SLURM_JOB_ID"))
    identity.run = job;
}

void readPatience(Reader &reader, LaunchIdentity &identity) {
  if (const auto seconds = reader.number("MERAK_CONNECT_SECONDS"))
    identity.connectSeconds = *seconds;
  if (const auto seconds = reader.number("MERAK_SILENCE_SECONDS"))
    identity.silenceSeconds = *seconds;
}

void readToken(Reader &reader, LaunchIdentity &identity) {
  const char *token = reader.text("MERAK_TOKEN");
  const char *file = reader.text("MERAK_TOKEN_FILE");
  if (token && file)
    reader.problem("MERAK_TOKEN and MERAK_TOKEN_FILE are both set");
  // What is wrong with a secret is said without showing it.
  if (token && !trust::isSecret(token))
    reader.problem(fmt::format("MERAK_TOKEN: expected at least {} hexadecimal "
                               "digits, found something else",
                               trust::kLeastDigits));
  identity.token = token ? token : "";
  identity.tokenFile = file ? file : "";
}

void readSlurm(Reader &reader, LaunchIdentity &identity) {
  const char *step = reader.text("SLURM_STEP_NODELIST");
  const char *nodes = step ? step : reader.text("SLURM_NODELIST");
  if (!nodes)
    nodes = reader.text("SLURM_JOB_NODELIST");
  if (identity.masterAddress.empty() && nodes)
    identity.masterAddress = firstSlurmHost(nodes);
  if (identity.masterAddress.empty())
    reader.problem("neither MASTER_ADDR nor SLURM_NODELIST is set");
  const auto job = reader.number("SLURM_JOB_ID");
  if (!identity.masterPort && job)
    identity.masterPort = kFirstSlurmPort + *job % kSlurmPorts;
  if (!identity.masterPort)
    reader.problem("neither MASTER_PORT nor SLURM_JOB_ID is set");
}

// "A and B are not set", or nothing.
void requireSet(Reader &reader, const char *because,
                const std::vector<const char *> &names) {
  std::vector<std::string> missing;
  for (const char *name : names)
    if (!reader.has(name))
      missing.push_back(name);
  if (!missing.empty())
    reader.problem(fmt::format("{} is set, {} {} not", because,
                               fmt::join(missing, ", "),
                               missing.size() == 1 ? "is" : "are"));
}

} // namespace

std::string firstSlurmHost(const std::string &nodes) {
  const size_t bracket = nodes.find('['), comma = nodes.find(',');
  if (bracket == std::string::npos || comma < bracket)
    return nodes.substr(0, comma);
  const size_t end = nodes.find_first_of(",-]", bracket);
  const size_t close = nodes.find(']', bracket);
  std::string host = nodes.substr(0, bracket);
  if (end == std::string::npos || close == std::string::npos)
    return host;
  host += nodes.substr(bracket + 1, end - bracket - 1);
  return host + nodes.substr(close + 1, nodes.find(',', close) - close - 1);
}

Result<LaunchIdentity> launchIdentity(const EnvironmentReader &environment) {
  Reader reader(environment);
  LaunchIdentity identity;
  const bool torchrun =
      anySet(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (anySet(reader, kMpirun.rank)) {
    readNumbers(reader, kMpirun, identity);
    if (!anySet(reader, kMpirun.size))
      requireSet(reader, "the rank in an MPI job", {kMpirun.size[0]});
    compare(reader, "RANK", identity.rank, kMpirun.rank);
    compare(reader, "WORLD_SIZE", identity.size, kMpirun.size);
    readMaster(reader, identity);
  } else if (torchrun) {
    readNumbers(reader, kTorchrun, identity);
    const char *seen = "";
    for (const char *name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
      if (!*seen && reader.has(name))
        seen = name;
    requireSet(
        reader, seen,
        {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"});
    readMaster(reader, identity);
  } else if (reader.has("SLURM_PROCID")) {
    readNumbers(reader, kSlurm, identity);
    if (!anySet(reader, kSlurm.size))
      requireSet(reader, "SLURM_PROCID", {"SLURM_NTASKS"});
    readMaster(reader, identity);
    readSlurm(reader, identity);
  } else {
    reader.problem("--ranks=env: none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK "
                   "and SLURM_PROCID is set; start with mpirun, srun or "
                   "torchrun");
  }
  readPatience(reader, identity);
  readToken(reader, identity);
  if (!reader.problems.ok())
    return reader.problems;
  if (identity.localRank >= identity.localSize)
    identity.localSize = identity.localRank + 1;
  identity.localDevice = identity.localRank;
  return identity;
}

Result<std::string> runToken(const LaunchIdentity &identity) {
  if (!identity.token.empty())
    return identity.token;
  if (!identity.tokenFile.empty()) {
    auto text = trust::readSecret(identity.tokenFile);
    if (text.ok() && !trust::isSecret(*text))
      return Status::error(fmt::format(
          "{}: expected at least {} hexadecimal digits, found something else",
          identity.tokenFile, trust::kLeastDigits));
    return text;
  }
  auto key = trust::userKey();
  if (!key.ok())
    return Status::error(fmt::format("the run has no secret: set MERAK_TOKEN "
                                     "to the same {} random hexadecimal "
                                     "digits for all ranks ({})",
                                     trust::kLeastDigits, key.status().str()));
  return trust::toHex(trust::view(
      trust::hmac(*key, fmt::format("merak run\n{}\n{}", identity.masterPort,
                                    identity.run))));
}

Result<std::unique_ptr<Store>> openStore(const LaunchIdentity &identity) {
  auto token = runToken(identity);
  if (!token.ok())
    return token.status();
  TcpStoreOptions options;
  options.rank = identity.rank;
  options.size = identity.size;
  options.addresses = {identity.masterAddress};
  options.port = identity.masterPort;
  options.token = std::move(*token);
  options.connectSeconds = identity.connectSeconds;
  options.silenceSeconds = identity.silenceSeconds;
  return openTcpStore(options);
}

} // namespace merak::runtime
