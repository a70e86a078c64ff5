// Reshardings executed element by element: every pair of layouts on small
// meshes, all strategies; several at a time in one order.
#include "Execution.h"
#include "Golden.h"

#include "runtime/layout/LayoutText.h"

#include <algorithm>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace merak::resharding {
namespace {

using layout::Factor;
using layout::Layout;

// Two nodes of three devices and more of them.
costmodel::Cluster cluster() {
  return hostCluster(4, 3, 1e9, 1e-5, 1e10, 1e-6);
}

// All layouts of a shape given by factors on a mesh: each axis cuts one factor
// or none, in each order.
std::vector<Layout> allLayouts(const Layout &shape,
                               const std::vector<MeshAxis> &axes) {
  std::vector<Layout> result{shape};
  for (const MeshAxis &axis : axes) {
    std::vector<Layout> next = result; // not cut by this axis
    for (const Layout &known : result)
      for (size_t d = 0; d < known.dims.size(); ++d)
        for (size_t f = 0; f < known.dims[d].factors.size(); ++f)
          for (size_t at = 0; at <= known.dims[d].factors[f].axes.size();
               ++at) {
            next.push_back(known);
            std::vector<std::string> &cut = next.back().dims[d].factors[f].axes;
            cut.insert(cut.begin() + int64_t(at), axis.name);
          }
    result = std::move(next);
  }
  return result;
}

void expectExact(const Placement &source, const Placement &target,
                 const ReshardOptions &options) {
  Result<Resharding> found = reshard(source, target, 4, cluster(), options);
  ASSERT_TRUE(found.ok()) << found.status().str();
  std::string problem;
  const Locals got = execute(*found, reference(source), problem);
  EXPECT_EQ(problem, "");
  EXPECT_EQ(got, reference(target));
  if (problem.empty() && got == reference(target))
    return;
  FAIL() << source.str() << " to " << target.str();
}

// Every pair of layouts, on meshes of 1 to 4 devices and with every strategy in
// turn: 2 to 3, 1 to 4, replicated, two dimensions at once, uneven parts (a
// dimension of 5), factors of a fused QKV.
TEST(Resharding, EveryPairOfLayoutsIsExact) {
  int pairs = 0;
  for (const char *text : {"[5, 4]", "[3 x 4 x 2]", "[2, 3 x 2 x 2]"}) {
    const Layout shape = *layout::parseLayout(text);
    for (const std::vector<MeshAxis> &from : smallMeshes())
      for (const std::vector<MeshAxis> &to : smallMeshes())
        for (const Layout &a : allLayouts(shape, from))
          for (const Layout &b : allLayouts(shape, to)) {
            Placement source = placed("[]", from, 1), target = source;
            source.layout = a;
            // Behind the source; the devices share a node of three.
            target = placed("[]", to, 1 + int64_t(source.devices.size()));
            target.layout = b;
            ReshardOptions options;
            options.order = pairs % 2 ? OrderRule::Size : OrderRule::Naive;
            if (pairs % 7 < 6)
              options.strategy = Strategy(pairs % 7);
            options.apart = pairs % 14 == 0; // send-recv
            expectExact(source, target, options);
            if (HasFatalFailure())
              return;
            ++pairs;
          }
  }
  EXPECT_GT(pairs, 3000);
}

// A device may be on both sides: what it has it keeps.
TEST(Resharding, DevicesOnBothSidesAreExact) {
  std::mt19937 random(5);
  const Layout shape = *layout::parseLayout("[3 x 4 x 2, 5]");
  for (int i = 0; i < 300; ++i) {
    auto pick = [&] {
      const std::vector<MeshAxis> axes = smallMeshes()[random() % 5];
      const std::vector<Layout> all = allLayouts(shape, axes);
      Placement placement = placed("[]", axes, 0);
      placement.layout = all[random() % all.size()];
      std::vector<int64_t> devices{0, 1, 2, 3, 4, 5};
      std::shuffle(devices.begin(), devices.end(), random);
      devices.resize(placement.devices.size());
      placement.devices = devices;
      return placement;
    };
    const Placement source = pick(), target = pick();
    ReshardOptions options;
    if (i % 6 != 5)
      options.strategy = Strategy(i % 6);
    expectExact(source, target, options);
    if (HasFatalFailure())
      return;
  }
}

// What all of a mesh have goes to each of another one from one of them.
TEST(Resharding, ReceiversApartHaveSendersOfTheirOwn) {
  const Placement a = placed("[8, 4]", {{"x", 3}}, 0);
  const Placement b = placed("[8, 4]", {{"y", 3}}, 3); // in the next node
  ReshardOptions options;
  options.strategy = Strategy::SendRecv;
  auto busiest = [&] {
    std::map<int64_t, int> sent;
    int most = 0;
    const Resharding found = *reshard(a, b, 4, cluster(), options);
    for (const Transfer &transfer : found.legs[0].transfers)
      most = std::max(most, ++sent[transfer.participants[0]]);
    return most;
  };
  EXPECT_EQ(busiest(), 3);
  options.apart = true;
  EXPECT_EQ(busiest(), 1);
  expectExact(a, b, options);
}

// From placements to equal ones each device sends one message.
TEST(Resharding, EqualLayoutsAreOneMessageEach) {
  const Placement a = placed("[8@x, 4@y]", {{"x", 2}, {"y", 2}}, 0);
  Placement b = a;
  b.devices = {6, 7, 8, 9};
  const Resharding found = *reshard(a, b, 4, cluster());
  ASSERT_EQ(found.legs.size(), 1u);
  ASSERT_EQ(found.legs[0].transfers.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    const Transfer &transfer = found.legs[0].transfers[i];
    EXPECT_EQ(transfer.kind, TransferKind::Message);
    const int task = transfer.task;
    EXPECT_EQ(transfer.participants,
              (std::vector<int64_t>{task, int64_t(6 + task)}));
  }
  EXPECT_DOUBLE_EQ(found.sentBytes(cluster()), 8 * 4 * 4);
}

// Boxes that need no packing say so, and only these: against the addresses of
// all elements.
TEST(Resharding, ContiguousIsWhatLiesInOneRun) {
  int some = 0, others = 0;
  const Layout shape = *layout::parseLayout("[2, 3 x 2 x 2, 3]");
  for (const std::vector<MeshAxis> &from : smallMeshes())
    for (const Layout &a : allLayouts(shape, from)) {
      Placement source = placed("[]", from, 0);
      source.layout = a;
      const Placement target = placed("[2, 3 x 2@x x 2, 3]", {{"x", 2}}, 6);
      const std::vector<UnitTask> tasks = *unitTasks(source, target);
      for (const UnitTask &task : tasks) {
        std::vector<int64_t> addresses(task.elements());
        for (const SharedBox &box : task.boxes()) {
          std::vector<int64_t> local(1024);
          std::iota(local.begin(), local.end(), 0);
          layout::copyBox(local.data(), task.sourceShape, box.source,
                          addresses.data(), task.shape, box.message, box.extent,
                          sizeof(int64_t));
        }
        bool oneRun = true;
        for (size_t i = 0; i < addresses.size(); ++i)
          oneRun &= addresses[i] == addresses[0] + int64_t(i);
        EXPECT_EQ(task.contiguousInSource(), oneRun) << source.str();
        if (oneRun) {
          EXPECT_EQ(task.sourceOffset(), addresses[0]);
        }
        ++(oneRun ? some : others);
      }
    }
  EXPECT_GT(some, 20);
  EXPECT_GT(others, 20);
}

// The fused QKV of tp = 2 lies in one run on its device; it is unpacked where
// it is received whole.
TEST(Resharding, FusedQkvIsUnpackedOnly) {
  const Placement source = placed("[3 x 4@tp x 16, 8]", {{"tp", 2}}, 0);
  const Placement target = placed("[3 x 4 x 16, 8]", {{"x", 1}}, 6);
  const std::vector<UnitTask> tasks = *unitTasks(source, target);
  ASSERT_EQ(tasks.size(), 2u);
  for (const UnitTask &task : tasks) {
    EXPECT_EQ(task.boxes().size(), 3u);
    EXPECT_TRUE(task.contiguousInSource());
    EXPECT_FALSE(task.contiguousInTarget());
  }
}

// ------------------------------------------------------ several readers

TEST(Resharding, AValueGoesToEachMeshOnce) {
  const Placement source = placed("[8@x, 4]", {{"x", 2}}, 0);
  const Placement near = placed("[8, 4@x]", {{"x", 3}}, 3);
  Placement again = near;
  again.layout = *layout::parseLayout("[8, 4]");
  const Placement far = placed("[8@x, 4]", {{"x", 3}}, 6);
  const std::vector<Placement> readers{near, far, near, again, far};
  const std::vector<Delivery> found = *deliver(source, readers, 4, cluster());
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].from, -1);
  EXPECT_FALSE(found[0].resharding.legs.empty());
  EXPECT_FALSE(found[1].resharding.legs.empty());
  EXPECT_EQ(found[2].from, 0); // kept
  EXPECT_TRUE(found[2].resharding.legs.empty());
  EXPECT_EQ(found[3].from, 0); // converted where it is
  EXPECT_EQ(found[3].resharding.sentBytes(cluster()), 0);
  EXPECT_EQ(found[4].from, 1);
  EXPECT_TRUE(found[4].resharding.legs.empty());
  // What arrives is right, whoever sent it.
  std::vector<Locals> have;
  for (const Delivery &delivery : found) {
    std::string problem;
    const Locals &from =
        delivery.from < 0 ? reference(source) : have[delivery.from];
    have.push_back(execute(delivery.resharding, from, problem));
    EXPECT_EQ(problem, "");
    EXPECT_EQ(have.back(), reference(readers[delivery.reader]));
  }
}

// Also where it would be quicker to send it again: both links of the source
// stay inside nodes, those of the mesh do not.
TEST(Resharding, AValueIsNotSentAgainToBeQuicker) {
  Placement source = placed("[8, 4]", {{"x", 2}}, 0);
  source.devices = {4, 7};
  Placement half = placed("[8@x, 4]", {{"x", 2}}, 0);
  Placement turned = placed("[8, 4@x]", {{"x", 2}}, 0);
  half.devices = turned.devices = {3, 6};
  const std::vector<Delivery> found =
      *deliver(source, {half, turned}, 1 << 20, cluster());
  EXPECT_EQ(found[1].from, 0);
  EXPECT_GT(found[1].resharding.seconds,
            reshard(source, turned, 1 << 20, cluster())->seconds);
}

// ------------------------------------------------------------- one order

// Random sets of reshardings over twelve devices.
std::vector<Resharding> randomSet(std::mt19937 &random) {
  std::vector<Resharding> result;
  const Layout shape = *layout::parseLayout("[6, 3 x 4]");
  const int count = 2 + int(random() % 4);
  while (int(result.size()) < count) {
    auto pick = [&] {
      const std::vector<MeshAxis> axes = smallMeshes()[random() % 5];
      const std::vector<Layout> all = allLayouts(shape, axes);
      Placement placement = placed("[]", axes, 0);
      placement.layout = all[random() % all.size()];
      for (int64_t &device : placement.devices)
        device = (device + int64_t(random() % 8)) % 12;
      return placement;
    };
    ReshardOptions options;
    options.order = OrderRule::Greedy;
    options.orderOptions.trials = 4;
    if (random() % 2)
      options.strategy = Strategy(random() % 6);
    Result<Resharding> next =
        reshard(pick(), pick(), 4 << (random() % 2), cluster(), options);
    if (next)
      result.push_back(std::move(*next));
  }
  return result;
}

TEST(TotalOrder, RestrictionsCannotDeadlock) {
  std::mt19937 random(11);
  int transfers = 0, otherOrdersStuck = 0;
  for (int i = 0; i < 300; ++i) {
    const std::vector<Resharding> set = randomSet(random);
    std::vector<const Resharding *> all;
    size_t count = 0;
    for (const Resharding &one : set) {
      all.push_back(&one);
      for (const Leg &leg : one.legs)
        count += leg.transfers.size();
    }
    const std::vector<OrderedTransfer> order = totalOrder(all, cluster());
    ASSERT_EQ(order.size(), count);
    transfers += int(count);
    std::map<int64_t, std::vector<OrderedTransfer>> lists, mixed;
    for (int64_t device = 0; device < 12; ++device) {
      lists[device] = restriction(order, all, device);
      // The orders of the reshardings, but each device takes them in another
      // order: what the total order is for.
      mixed[device] = lists[device];
      std::stable_sort(mixed[device].begin(), mixed[device].end(),
                       [&](const auto &a, const auto &b) {
                         return (a.resharding + device) % 3 <
                                (b.resharding + device) % 3;
                       });
    }
    EXPECT_EQ(stuck(lists, all), 0);
    otherOrdersStuck += stuck(mixed, all) > 0;
  }
  EXPECT_GT(transfers, 4000);
  EXPECT_GT(otherOrdersStuck, 100); // the executor does block
}

// Each resharding keeps its own order.
TEST(TotalOrder, KeepsTheOrderOfEach) {
  std::mt19937 random(12);
  const std::vector<Resharding> set = randomSet(random);
  std::vector<const Resharding *> all;
  for (const Resharding &one : set)
    all.push_back(&one);
  std::map<int, OrderedTransfer> last;
  for (const OrderedTransfer &place : totalOrder(all, cluster())) {
    if (last.count(place.resharding)) {
      const OrderedTransfer &before = last[place.resharding];
      EXPECT_LT(std::pair(before.leg, before.transfer),
                std::pair(place.leg, place.transfer));
    }
    last[place.resharding] = place;
  }
}

// ---------------------------------------------------------------- errors

TEST(Resharding, SaysAllThatIsWrong) {
  Placement source = placed("[8@x, 4] partial(y)", {{"x", 2}, {"y", 2}}, 0);
  source.devices = {0, 1, 1};
  Placement target = placed("[8@(x,x), 5@z]", {{"x", 2}}, 20);
  Result<Resharding> found = reshard(source, target, 4, cluster());
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(
      found.status().str(),
      "target: the cluster has devices 0-11, found 20\n"
      "target: the cluster has devices 0-11, found 21\n"
      "source: the mesh has 4 devices, found 3\n"
      "source: device 1 stands twice\n"
      "source: layout [8@x, 4] partial(y) is partial: a sum is reduced before "
      "it is sent\n"
      "target: layout [8@(x,x), 5@z] uses axis x twice\n"
      "target: layout [8@(x,x), 5@z] names axis z, which the mesh lacks\n"
      "source and target are one tensor: the shape is [8, 4], found [8, 5]");
}

TEST(Resharding, RefusesWhatIsNoTensor) {
  const Placement target = placed("[8]", {{"x", 2}}, 2);
  for (const char *text :
       {"[9223372036854775807 x 9223372036854775807]", "[4000000000 x 2@x]",
        "[1000000, 1000000, 1000000@x]"}) {
    Result<Resharding> found =
        reshard(placed(text, {{"x", 2}}, 0), target, 4, cluster());
    EXPECT_NE(found.status().str().find("expected at most 1e+15 elements"),
              std::string::npos)
        << text << found.status().str();
  }
}

} // namespace
} // namespace merak::resharding
