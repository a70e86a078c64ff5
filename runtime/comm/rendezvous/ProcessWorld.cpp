#include "runtime/comm/rendezvous/ProcessWorld.h"

#include "runtime/comm/rendezvous/TcpStore.h"
#include "runtime/comm/rendezvous/Wire.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace merak::runtime {

// The others learn where the rank runs.
void ProcessWorld::abort(const Status &reason) {
  Status located;
  const std::string me = fmt::format("rank {}", store_->rank());
  for (const std::string &message : reason.messages()) {
    const bool first = located.ok();
    if (first && message.rfind(me + " ", 0) == 0)
      located.merge(Status::error(fmt::format("{} on host {}{}", me, hostName(),
                                              message.substr(me.size()))));
    else if (first)
      located.merge(Status::error(
          fmt::format("{} on host {}: {}", me, hostName(), message)));
    else
      located.merge(Status::error(message));
  }
  store_->abort(located);
}

Status agree(Store *store, const std::string &what, const Status &mine) {
  if (!store)
    return mine;
  auto all =
      store->gather(what, packStrings(mine.messages()), kPatienceSeconds);
  if (!all.ok())
    return all.status();
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> ranks;
  for (int rank = 0; rank < store->size(); ++rank)
    for (const std::string &message : unpackStrings((*all)[size_t(rank)])) {
      std::vector<int> &who = ranks[message];
      if (who.empty())
        order.push_back(message);
      if (who.empty() || who.back() != rank)
        who.push_back(rank);
    }
  if (order.empty())
    return {};
  Status problems = Status::error("");
  if (store->rank() != 0)
    return problems;
  for (const std::string &message : order) {
    const std::vector<int> &who = ranks[message];
    if (int(who.size()) == store->size())
      problems.merge(Status::error(message));
    else
      problems.merge(
          Status::error(fmt::format("rank{} {}: {}", who.size() == 1 ? "" : "s",
                                    fmt::join(who, ","), message)));
  }
  return problems;
}

bool isAgreed(const Status &status) {
  return !status.ok() && status.messages().front().empty();
}

} // namespace merak::runtime
