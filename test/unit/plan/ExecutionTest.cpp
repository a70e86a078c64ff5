// The order of communications that ranks share.
#include "runtime/plan/Execution.h"
#include "test/unit/plan/PlanBuilder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

using namespace merak::planpb;

namespace merak {
namespace {

// What meets where: the name of the place, and how many come to it.
using Meeting = std::pair<std::string, size_t>;

// The communications of a rank by stream, in the order of its calls.
std::map<uint32_t, std::vector<Meeting>> communications(const LoadedPlan &plan,
                                                        int rank) {
  const RankMap map(plan.file);
  const Program &program = plan.programOf(rank);
  std::map<uint32_t, std::vector<Meeting>> found;
  for (const Call &call : program.calls())
    for (const Instruction &one :
         program.procedures(int(call.procedure())).instructions()) {
      if (one.kind() == Instruction::COLLECTIVE) {
        const std::vector<int> members =
            map.members(rank, program.groups(int(one.group())).axes());
        found[one.stream()].emplace_back(
            fmt::format("{} {}", fmt::join(members, ","),
                        program.streams(int(one.stream())).name()),
            members.size());
      } else if (one.kind() == Instruction::SEND ||
                 one.kind() == Instruction::RECV) {
        const int peer = map.neighbour(rank, one.peer());
        const bool sends = one.kind() == Instruction::SEND;
        found[one.stream()].emplace_back(
            fmt::format("{}>{} {}", sends ? rank : peer, sends ? peer : rank,
                        one.channel()),
            2);
      }
    }
  return found;
}

// Whether ranks that issue in these orders, each from one thread that waits in
// each communication for the other members, come to their ends.
bool ends(const LoadedPlan &plan,
          const std::vector<std::vector<uint32_t>> &orders) {
  std::vector<std::map<uint32_t, std::vector<Meeting>>> all;
  for (size_t rank = 0; rank < orders.size(); ++rank)
    all.push_back(communications(plan, int(rank)));
  std::vector<size_t> next(orders.size());
  std::vector<std::map<uint32_t, size_t>> passed(orders.size());
  for (bool moved = true; moved;) {
    moved = false;
    std::map<Meeting, std::vector<size_t>> waiting;
    for (size_t rank = 0; rank < orders.size(); ++rank)
      if (next[rank] < orders[rank].size()) {
        const uint32_t stream = orders[rank][next[rank]];
        waiting[all[rank][stream].at(passed[rank][stream])].push_back(rank);
      }
    for (const auto &[meeting, ranks] : waiting)
      if (ranks.size() == meeting.second)
        for (size_t rank : ranks) {
          ++passed[rank][orders[rank][next[rank]++]];
          moved = true;
        }
  }
  for (size_t rank = 0; rank < orders.size(); ++rank)
    if (next[rank] < orders[rank].size())
      return false;
  return true;
}

TEST(CommunicationOrder, RanksThatIssueInItComeToTheEnd) {
  for (const LoadedPlan &plan :
       {plantest::samplePlan(), plantest::replicatedPlan(3)}) {
    std::vector<std::vector<uint32_t>> orders, others;
    for (int rank = 0; rank < plan.file.ranks_size(); ++rank) {
      std::vector<uint32_t> all;
      for (const auto &[stream, meetings] : communications(plan, rank))
        all.insert(all.end(), meetings.size(), stream);
      others.push_back(all); // one stream after the other
      if (rank % 2)
        std::reverse(others.back().begin(), others.back().end());
      orders.push_back(communicationOrder(plan, rank));
      std::vector<uint32_t> sorted = orders.back();
      std::sort(sorted.begin(), sorted.end());
      EXPECT_EQ(sorted, all) << "rank " << rank; // each of them once
    }
    EXPECT_TRUE(ends(plan, orders));
    EXPECT_FALSE(ends(plan, others));
  }
}

} // namespace
} // namespace merak
