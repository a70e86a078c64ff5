#include "runtime/launch/CpuShare.h"

#include "runtime/comm/rendezvous/TcpStore.h"
#include "runtime/comm/rendezvous/Wire.h"

#include <algorithm>
#include <map>
#include <sched.h>

namespace merak::runtime {

int cpuShare(const std::vector<std::vector<int>> &cores, size_t me) {
  std::map<int, int> users;
  for (const std::vector<int> &of : cores)
    for (int core : of)
      ++users[core];
  double share = 0;
  for (int core : cores[me])
    share += 1.0 / users[core];
  return std::max(1, int(share + 1e-6));
}

Result<int> cpuShare(Store &store) {
  // The host's name, then the cores.
  std::vector<std::string> mine = {hostName()};
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &allowed))
        mine.push_back(std::to_string(core));
  auto all = store.gather("cores", packStrings(mine), kPatienceSeconds);
  if (!all.ok())
    return all.status();
  std::vector<std::vector<int>> cores;
  size_t me = 0;
  for (int rank = 0; rank < store.size(); ++rank) {
    const auto parts = unpackStrings((*all)[size_t(rank)]);
    if (parts.empty() || parts[0] != mine[0])
      continue;
    if (rank == store.rank())
      me = cores.size();
    std::vector<int> &list = cores.emplace_back();
    for (size_t i = 1; i < parts.size(); ++i)
      list.push_back(std::stoi(parts[i]));
  }
  return cpuShare(cores, me);
}

} // namespace merak::runtime
