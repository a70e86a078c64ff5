// Devices without a rank: where ranks are instead, and when they are back.
#include "runtime/launch/LeftOut.h"
#include "runtime/comm/rendezvous/TcpStore.h"
#include "runtime/launch/Places.h"
#include "runtime/launch/RunOptions.h"

#include <gtest/gtest.h>

#include <unistd.h>

namespace merak::runtime::test {
namespace {

const std::vector<Host> kHosts = *parseHosts("a:2,b:1,c:1");

TEST(Places, OfAPlanWithoutADevice) {
  std::vector<Place> places = placesLeft(kHosts, {});
  placeRanks(places, {0, 2, 3});
  EXPECT_EQ(hostsOfRanks(places), *parseHosts("a:1,b:1,c:1"));
  EXPECT_EQ(placesArgument(places),
            "--places=0:0:0@a,1:1:-1@a,2:0:1@b,3:0:2@c");
  placeRanks(places, {1, 2});
  EXPECT_EQ(hostsOfRanks(places), *parseHosts("a:1,b:1"));
  placeRanks(places, {0, 1, 3}); // b has none
  EXPECT_EQ(hostsOfRanks(places), *parseHosts("a:2,c:1"));
}

// Of all hosts device 3 is that of c, of those that are left device 2.
TEST(Places, WithoutAHost) {
  std::vector<Place> places = placesLeft(kHosts, {"b"});
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[2], (Place{3, 0, "c", -1}));
  placeRanks(places, {1, 2});
  EXPECT_EQ(hostsOfRanks(places), *parseHosts("a:1,c:1"));
  EXPECT_EQ(placesArgument(places), "--places=0:0:-1@a,1:1:0@a,3:0:1@c");
}

// A process's device is that of its place, not that of its number.
TEST(Places, AreReadByTheRun) {
  const auto places = parsePlaces("0:0:-1@a,1:1:0@a,3:0:1@c");
  ASSERT_TRUE(places.ok());
  EXPECT_EQ((*places)[1], (Place{1, 1, "a", 0}));
  EXPECT_EQ(localDevices(*places), (std::vector<int>{1, 0}));
  EXPECT_TRUE(localDevices(*parsePlaces("")).empty());
  for (const char *bad : {"1", "1:2", "1:2:3", "1:2:3:4@a", "1:2:3@", "1:2:x@a",
                          "-1:0:0@a", "0:0:-2@a"})
    EXPECT_EQ(
        parsePlaces(bad).status().str(),
        std::string("--places: expected NUMBER:LOCAL:RANK@HOST, found \"") +
            bad + "\"");
}

// Whichever rank its launcher gives it.
TEST(Places, OfAProcessAreThoseOfItsHost) {
  const std::string here = hostName();
  const auto places = *parsePlaces("0:0:0@a,1:1:1@a,2:0:3@" + here +
                                   ",3:1:-1@" + here + ",4:2:2@" + here);
  ASSERT_TRUE(placeHere(places, 0));
  EXPECT_EQ(placeHere(places, 0)->number, 4);
  EXPECT_EQ(placeHere(places, 1)->rank, 3);
  EXPECT_FALSE(placeHere(places, 2)) << "more processes than ranks";
  EXPECT_FALSE(placeHere(*parsePlaces("0:0:0@a.invalid"), 0));
  EXPECT_FALSE(placeHere({}, 0));
}

TEST(Places, AHostHasSeveralNames) {
  const std::string here = hostName();
  EXPECT_EQ(thisHostAmong({"a.invalid", here, "127.0.0.1"}), 1);
  EXPECT_EQ(thisHostAmong({"a.invalid", "127.0.0.1"}), 1);
  EXPECT_EQ(thisHostAmong({"a.invalid", "b.invalid"}), -1);
  const std::string first = here.substr(0, here.find('.'));
  EXPECT_EQ(thisHostAmong({first + "x.invalid", first + ".invalid"}), 1);
  EXPECT_EQ(thisHostAmong({}), -1);
}

TEST(Places, WhatIsSlowFollowsItsDevice) {
  std::vector<SlowRequest> slow = {{0, 2, 0, 1}, {2, 3, 0, 1}, {3, 4, 0, 1}};
  followDevices(slow, {});
  EXPECT_EQ(slow[2].device, 3);
  followDevices(slow, *parsePlaces("0:0:0@a,1:1:1@a,3:0:2@c"));
  EXPECT_EQ(slow[0].device, 0);
  EXPECT_EQ(slow[1].device, -1);
  EXPECT_EQ(slow[2].device, 2);
}

TEST(LeftOut, IsBackAtTwoLooksInARow) {
  LeftOutDevice device{1, 1, "a", 10, 0, 0};
  EXPECT_FALSE(isBack(device, 0)) << "no answer";
  EXPECT_FALSE(isBack(device, 0.02));
  EXPECT_EQ(device.seconds, 0.02);
  EXPECT_FALSE(isBack(device, 0.021));
  EXPECT_FALSE(isBack(device, 0.002));
  EXPECT_FALSE(isBack(device, 0.01)) << "slow again";
  EXPECT_FALSE(isBack(device, 0.002));
  EXPECT_FALSE(isBack(device, 0)) << "no answer, which says nothing";
  EXPECT_TRUE(isBack(device, 0.0022));
}

TEST(LeftOut, IsAskedOnItsHost) {
  const LeftOutDevice device{3, 1, "a", 10, 0, 0};
  const std::string text = probeArgument(device, 17);
  EXPECT_EQ(text, "--probe=3:1:17");
  const auto request = parseProbe(text.substr(8));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->device, 3);
  EXPECT_EQ(request->local, 1);
  EXPECT_EQ(request->step, 17);
  EXPECT_EQ(parseProbe("3:1").status().str(),
            "--probe: expected NUMBER:LOCAL:STEP, found \"3:1\"");
  EXPECT_EQ(probeSeconds("hello\n" + probeLine(0.25) + "\n"), 0.25);
  EXPECT_EQ(probeSeconds("hello\n"), 0);
}

// The launcher's host c answers in a tenth of the time; b's is lost.
TEST(LeftOut, LooksComeBackWithWhoIsNormal) {
  const std::string launcher =
      "/bin/sh -c 'case {hosts} in c:1) echo merak-probe 0.1 ;; "
      "*) echo merak-probe 1 ;; esac' sh";
  std::vector<LeftOutDevice> devices = {
      {1, 1, "a", 10, 1, 0}, {2, 0, "b", 10, 1, 0}, {3, 0, "c", 10, 1, 0}};
  LeftOutLooks looks(launcher, "/bin/true", 0);
  std::vector<LeftOutDevice> back;
  for (int i = 0; i < 1000 && back.empty(); ++i) {
    back = looks.look(devices, {"b"}, [] { return 5; });
    usleep(10'000);
  }
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(nameOf(back[0]), "device 3 on host c");
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].normal, 0);
  EXPECT_EQ(devices[1].normal, 0);
}

} // namespace
} // namespace merak::runtime::test
