#include "runtime/launch/AgentLead.h"

#include "runtime/core/Output.h"
#include "runtime/core/SecondsSince.h"
#include "runtime/launch/LaunchIdentity.h"
#include "runtime/plan/Signature.h"
#include "runtime/trust/Hmac.h"
#include "runtime/trust/UserKey.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace merak::runtime {
namespace {

// Secrets are not sent: who stands by has them. The descriptor is a process's
// own.
const std::set<std::string> kNotSent{"MERAK_TOKEN", "MERAK_TOKEN_FILE",
                                     "MERAK_KEY", "MERAK_BEAT_FD"};

std::map<std::string, std::string> variablesToSend() {
  std::map<std::string, std::string> variables;
  for (char **entry = environ; *entry; ++entry) {
    const size_t length = std::strcspn(*entry, "=");
    const std::string name(*entry, length);
    if (name.starts_with("MERAK_") && (*entry)[length] && !kNotSent.count(name))
      variables[name] = *entry + length + 1;
  }
  return variables;
}

size_t countOf(const std::set<std::string> &granted,
               const std::set<std::string> &voters) {
  return size_t(
      std::count_if(voters.begin(), voters.end(), [&](const std::string &host) {
        return granted.count(host) > 0;
      }));
}

std::string hostsOf(const std::vector<AgentMember> &members) {
  std::set<std::string> hosts;
  for (const AgentMember &member : members)
    hosts.insert(member.host);
  return fmt::format("{}", fmt::join(hosts, ", "));
}

void note(const std::string &what) { complain("note: " + what); }

} // namespace

std::string thisProgram() {
  // By its name now: another file may have it when it is started again.
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "merak-run" : self.string();
}

Result<std::string> agentToken() {
  const char *token = std::getenv("MERAK_TOKEN");
  const char *file = std::getenv("MERAK_TOKEN_FILE");
  LaunchIdentity identity;
  identity.token = token ? token : "";
  identity.tokenFile = file ? file : "";
  if (!identity.token.empty() && !trust::isSecret(identity.token))
    return Status::error(
        fmt::format("MERAK_TOKEN: expected at least {} hexadecimal digits, "
                    "found something else",
                    trust::kLeastDigits));
  if (!identity.token.empty() && !identity.tokenFile.empty())
    return Status::error("MERAK_TOKEN and MERAK_TOKEN_FILE are both set");
  auto secret = runToken(identity);
  if (!secret)
    return secret.status();
  return trust::toHex(trust::view(trust::hmac(*secret, "merak agents")));
}

std::string saverOf(const std::string &folder) {
  if (folder.empty())
    return {};
  std::ifstream file(joinPath(folder, ".lock"));
  std::string line;
  std::getline(file, line);
  return line;
}

AgentLead::AgentLead(AgentTask task, std::unique_ptr<AgentHub> hub)
    : task_(std::move(task)), hub_(std::move(hub)) {}

Result<std::unique_ptr<AgentLead>> AgentLead::open(const AgentRun &run,
                                                   const AgentOptions &options,
                                                   const std::string &id) {
  auto token = agentToken();
  if (!token)
    return token.status();
  auto plan = loadPlanToRun(run.plan, run.trustPlan);
  if (!plan)
    return plan.status();
  auto listener = StoreListener::open(options.standbys);
  if (!listener)
    return listener.status();
  std::error_code error;
  AgentTask task{run, options, std::filesystem::current_path(error).string(),
                 variablesToSend(), digestOf(*plan)};
  auto lead = std::make_unique<AgentLead>(
      std::move(task),
      std::make_unique<AgentHub>(
          AgentHub::Options{std::move(*token), id, options.agentSeconds},
          std::move(*listener)));
  note(fmt::format("agents of other hosts stand by with merak-run "
                   "--standby={}:{}",
                   hostName(), lead->port()));
  return lead;
}

void AgentLead::publish(AgentSituation situation) {
  for (const std::string &line : hub_->news())
    note(line);
  situation.leader = hostName();
  hub_->publish(encodeState({task_, std::move(situation)}));
}

std::vector<std::string> AgentLead::voteCommand(const CopyRun &start) const {
  return {thisProgram(), grantArgument({start, hostName()})};
}

AgentLead::Names AgentLead::grants(const Names &hosts,
                                   const CopyRun &start) const {
  return HostLooks(task_.options.launcher, hosts, voteCommand(start)).wait();
}

std::string AgentLead::successor() const {
  const std::string host = hub_->successor();
  return host.empty()
             ? ""
             : fmt::format("the agent on host {} leads this run by now", host);
}

std::string AgentLead::judge(const Names &granted, const Names &voters,
                             const std::vector<AgentMember> &silent) {
  const size_t count = countOf(granted, voters);
  if (!mayLead(count, voters.size(), /*isFirstStandby=*/false))
    return fmt::format(
        "agents that stand by do not answer ({}), and {} of {} hosts "
        "grant{} this one to go on ({}): it may be the one that is cut off, "
        "and leaves the run to them",
        hostsOf(silent), count, voters.size(), count == 1 ? "s" : "",
        granted.empty() ? "none" : fmt::format("{}", fmt::join(granted, ", ")));
  note(fmt::format("{} of {} hosts grant this agent to go on; the agent on {} "
                   "stands by no more",
                   count, voters.size(), hostsOf(silent)));
  hub_->drop(silent);
  return {};
}

std::string AgentLead::refusal(const Names &granted, const Names &voters) {
  if (const std::string why = successor(); !why.empty())
    return why;
  looks_ = {};
  silent_.clear();
  // Where too few answer agents will be silent, too, if they are not yet.
  if (!mayLead(countOf(granted, voters), voters.size(), false) &&
      !hub_->members().empty())
    std::this_thread::sleep_for(
        std::chrono::duration<double>(task_.options.agentSeconds));
  const std::vector<AgentMember> silent = hub_->silent();
  return silent.empty() ? "" : judge(granted, voters, silent);
}

std::string AgentLead::look(const Names &voters,
                            const std::function<CopyRun()> &claim) {
  if (const std::string why = successor(); !why.empty())
    return why;
  if (silent_.empty()) {
    silent_ = hub_->silent();
    if (silent_.empty())
      return {};
    note(fmt::format("the agent on {} does not answer: hosts are asked whether "
                     "this one may go on",
                     hostsOf(silent_)));
    granted_.clear();
    asked_ = std::chrono::steady_clock::now();
    looks_ = HostLooks(task_.options.launcher, voters, voteCommand(claim()));
    return {};
  }
  granted_.merge(looks_.take());
  const bool isEnough =
      mayLead(countOf(granted_, voters), voters.size(), false);
  if (!isEnough && looks_.isWaiting() &&
      secondsSince(asked_) < task_.options.agentSeconds)
    return {};
  looks_ = {};
  return judge(granted_, voters, std::exchange(silent_, {}));
}

int runLead(const AgentRun &run, const AgentOptions &options,
            const PlanPrices &prices) {
  AgentSuccession succession;
  succession.id = newRun();
  auto lead = AgentLead::open(run, options, succession.id);
  if (!lead) {
    for (const std::string &message : lead.status().messages())
      complain("merak-run: error: " + message);
    return 1;
  }
  succession.lead = lead->get();
  return runAgent(run, options, prices, succession);
}

} // namespace merak::runtime
