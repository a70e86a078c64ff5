// Reshardings as the messages of a plan, executed element by element: every
// pair of layouts on small meshes with every strategy, by devices that block
// until both ends of a message are there.
#include "Execution.h"
#include "Golden.h"

#include "passes/Resharding/Messages.h"
#include "runtime/layout/LayoutText.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <numeric>

namespace merak::resharding {
namespace {

using layout::Layout;

costmodel::Cluster cluster() {
  return hostCluster(4, 3, 1e9, 1e-5, 1e10, 1e-6);
}

std::vector<Layout> allLayouts(const Layout &shape,
                               const std::vector<MeshAxis> &axes) {
  std::vector<Layout> result{shape};
  for (const MeshAxis &axis : axes) {
    std::vector<Layout> next = result;
    for (const Layout &known : result)
      for (size_t d = 0; d < known.dims.size(); ++d)
        for (size_t f = 0; f < known.dims[d].factors.size(); ++f) {
          next.push_back(known);
          next.back().dims[d].factors[f].axes.push_back(axis.name);
        }
    result = std::move(next);
  }
  return result;
}

// Executes a list of messages as ranks of a plan do: each sends in its order
// and receives in its order, at the same time; a box that is passed on leaves
// after the last message that brings some of it.
class Ranks {
public:
  Ranks(const Placement &source, const Placement &target,
        const std::vector<BoxMessage> &messages)
      : messages(messages), values(reference(source)) {
    for (size_t i = 0; i < target.devices.size(); ++i) {
      shapes[target.devices[i]] = target.localShape(i);
      int64_t size = 1;
      for (int64_t extent : target.localShape(i))
        size *= extent;
      values[target.devices[i]].assign(size_t(size), -1);
    }
    for (size_t i = 0; i < source.devices.size(); ++i)
      shapes[source.devices[i]] = source.localShape(i);
  }

  // Returns how many messages could not be sent.
  int run() {
    std::map<int64_t, std::vector<size_t>> out, in;
    for (size_t m = 0; m < messages.size(); ++m) {
      out[messages[m].from].push_back(m);
      in[messages[m].to].push_back(m);
    }
    std::map<int64_t, size_t> sent, received;
    size_t done = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (auto &[device, list] : out)
        while (sent[device] < list.size()) {
          const size_t m = list[sent[device]];
          std::vector<size_t> &others = in[messages[m].to];
          size_t &at = received[messages[m].to];
          if (others[at] != m || !isThere(messages[m]))
            break;
          copy(messages[m]);
          ++sent[device];
          ++at;
          ++done;
          moved = true;
        }
    }
    return int(messages.size() - done);
  }

  const std::vector<BoxMessage> &messages;
  Locals values;
  int64_t elements = 0; // that were sent
  bool twice = false;   // some element came again

private:
  template <typename Visit>
  void each(const BoxMessage &message, Visit visit) const {
    int64_t count = 1;
    for (int64_t extent : message.extent)
      count *= extent;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, from = 0, to = 0, strideFrom = 1, strideTo = 1;
      for (size_t d = message.extent.size(); d-- > 0;) {
        const int64_t index = rest % message.extent[d];
        rest /= message.extent[d];
        from += (message.source[d] + index) * strideFrom;
        to += (message.target[d] + index) * strideTo;
        strideFrom *= shapes.at(message.from)[d];
        strideTo *= shapes.at(message.to)[d];
      }
      visit(size_t(from), size_t(to));
    }
  }
  bool isThere(const BoxMessage &message) const {
    bool all = true;
    each(message, [&](size_t from, size_t) {
      all &= values.at(message.from).at(from) >= 0;
    });
    return all;
  }
  void copy(const BoxMessage &message) {
    each(message, [&](size_t from, size_t to) {
      int64_t &into = values.at(message.to).at(to);
      twice |= into >= 0;
      into = values.at(message.from).at(from);
      ++elements;
    });
  }

  std::map<int64_t, std::vector<int64_t>> shapes;
};

// What the transfers say that goes from device to device.
int64_t plannedElements(const Resharding &resharding) {
  int64_t sum = 0;
  for (const Leg &leg : resharding.legs)
    for (const Transfer &transfer : leg.transfers)
      sum += (transfer.end - transfer.begin) *
             (int64_t(transfer.participants.size()) - 1);
  return sum;
}

void expectExact(const Placement &source, const Placement &target,
                 const ReshardOptions &options) {
  const Resharding found = *reshard(source, target, 4, cluster(), options);
  Result<std::vector<BoxMessage>> messages = messagesOf(found);
  ASSERT_TRUE(messages.ok()) << messages.status().str();
  Ranks ranks(source, target, *messages);
  const int left = ranks.run();
  const bool right = [&] {
    const Locals wanted = reference(target);
    for (int64_t device : target.devices)
      if (ranks.values.at(device) != wanted.at(device))
        return false;
    return true;
  }();
  EXPECT_EQ(left, 0);
  EXPECT_FALSE(ranks.twice);
  EXPECT_TRUE(right);
  EXPECT_EQ(ranks.elements, plannedElements(found));
  if (left || ranks.twice || !right)
    FAIL() << source.str() << " to " << target.str();
}

// 2 to 3 devices, 3 to 2, 1 to 4, 4 to 1 and all others up to four; replicated,
// two dimensions, uneven parts, factors of a fused QKV; every strategy and the
// cheapest.
TEST(Messages, EveryPairOfLayoutsWithEveryStrategyIsExact) {
  int pairs = 0;
  for (const char *text : {"[5, 4]", "[3 x 4 x 2]", "[2, 3 x 2 x 2]"}) {
    const Layout shape = *layout::parseLayout(text);
    for (const std::vector<MeshAxis> &from : smallMeshes())
      for (const std::vector<MeshAxis> &to : smallMeshes())
        for (const Layout &a : allLayouts(shape, from))
          for (const Layout &b : allLayouts(shape, to)) {
            const Placement source = placed(a, from, 1);
            const Placement target =
                placed(b, to, 1 + int64_t(source.devices.size()));
            std::vector<std::string> all = strategyNames();
            all.push_back("");
            for (const std::string &strategy : all) {
              ReshardOptions options = *optionsOfPlan(strategy);
              options.order = OrderRule::Size;
              expectExact(source, target, options);
              if (testing::Test::HasFatalFailure())
                return;
              ++pairs;
            }
          }
  }
  EXPECT_GT(pairs, 10000);
}

// A value of several megabytes goes to two nodes in chunks, from the first
// receiver to the second while the next one comes.
TEST(Messages, BroadcastsArePassedOnChunkByChunk) {
  const Layout shape = *layout::parseLayout("[1024, 1024]");
  const Placement source = placed(shape, {{"x", 1}}, 0);
  const Placement target = placed(shape, {{"x", 3}}, 3);
  const Resharding found =
      *reshard(source, target, 4, cluster(), *optionsOfPlan("broadcast"));
  const int chunks = found.legs[0].transfers[0].chunks;
  ASSERT_GT(chunks, 4);
  const std::vector<BoxMessage> messages = *messagesOf(found);
  ASSERT_EQ(messages.size(), size_t(3 * chunks)); // whole rows
  for (int i = 0; i < 3 * chunks; ++i) {
    EXPECT_EQ(messages[i].from, i % 3 == 0 ? 0 : 2 + i % 3);
    EXPECT_EQ(messages[i].to, 3 + i % 3);
    EXPECT_EQ(messages[i].forwarded, i % 3 > 0);
    EXPECT_EQ(messages[i].extent[1], 1024);
    EXPECT_EQ(messages[i].target, messages[i / 3 * 3].target);
  }
}

TEST(Messages, GathersGoAroundTheReceivers) {
  const Layout shape = *layout::parseLayout("[6]");
  const Placement source = placed(shape, {{"x", 1}}, 0);
  const Placement target = placed(shape, {{"x", 3}}, 3);
  const std::vector<BoxMessage> messages = *messagesOf(
      *reshard(source, target, 4, cluster(), *optionsOfPlan("local-gather")));
  std::string text;
  for (const BoxMessage &message : messages)
    text +=
        fmt::format("{}>{} {}; ", message.from, message.to, message.target[0]);
  EXPECT_EQ(text, "0>3 0; 0>4 2; 0>5 4; 3>4 0; 4>5 2; 5>3 4; "
                  "3>4 4; 4>5 0; 5>3 2; ");
}

TEST(Messages, ConversionsStayInTheTensorOfTheTarget) {
  const Placement source =
      placed(*layout::parseLayout("[9, 4@x]"), {{"x", 2}}, 0);
  const Placement target =
      placed(*layout::parseLayout("[9, 4]"), {{"x", 3}}, 3);
  ReshardOptions options = *optionsOfPlan("convert");
  EXPECT_EQ(reshard(source, target, 4, cluster(), options)->legs.size(), 2u);
  // Elsewhere a device would keep what is not its own.
  const Placement turned =
      placed(*layout::parseLayout("[9@x, 4]"), {{"x", 2}}, 3);
  options.inPlace = false;
  const Resharding found = *reshard(source, turned, 4, cluster(), options);
  ASSERT_EQ(found.legs.size(), 2u);
  EXPECT_EQ(messagesOf(found).status().str(),
            "[9, 4@x] on x=2 of 0-1 to [9@x, 4] on x=2 of 3-4: device 0 has no "
            "place for what it gets on the way");
  options.inPlace = true;
  EXPECT_TRUE(messagesOf(*reshard(source, turned, 4, cluster(), options)).ok());
}

TEST(Messages, PlacementsShareNoDevice) {
  const Placement source = placed(*layout::parseLayout("[4@x]"), {{"x", 2}}, 0);
  const Placement target = placed(*layout::parseLayout("[4]"), {{"x", 2}}, 1);
  EXPECT_EQ(messagesOf(*reshard(source, target, 4, cluster())).status().str(),
            "device 1 is in both placements");
}

TEST(Messages, PlansNameAStrategy) {
  EXPECT_FALSE(optionsOfPlan("")->strategy);
  EXPECT_TRUE(optionsOfPlan("send-recv")->apart);
  EXPECT_EQ(optionsOfPlan("gossip").status().str(),
            "no strategy is called 'gossip'");
}

// Parts are even, and whole rows where rows are small beside them.
TEST(Messages, PartsBeginAtRows) {
  for (const std::vector<int64_t> &shape : std::vector<std::vector<int64_t>>{
           {1}, {7}, {100, 3}, {4, 8, 64}, {5, 1, 3}, {1024, 1000}})
    for (int64_t n : {1, 2, 3, 7, 40}) {
      const int64_t size = std::accumulate(shape.begin(), shape.end(),
                                           int64_t{1}, std::multiplies<>());
      EXPECT_EQ(partBegin(shape, 0, n), 0);
      EXPECT_EQ(partBegin(shape, n, n), size);
      for (int64_t i = 0; i < n; ++i) {
        EXPECT_LE(partBegin(shape, i, n), partBegin(shape, i + 1, n));
        EXPECT_LE(std::abs(partBegin(shape, i, n) * n - i * size),
                  n + size / 8);
      }
    }
  EXPECT_EQ(partBegin({4, 8, 64}, 1, 3), 11 * 64);
}

} // namespace
} // namespace merak::resharding
