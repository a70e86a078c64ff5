// Which generations there are, who may write them, and what is never touched.
#include "runtime/checkpoint/Generations.h"

#include "runtime/checkpoint/CheckpointWriter.h"
#include "test/unit/checkpoint/Layouts.h"

#include <filesystem>

namespace merak::runtime::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> visible(const std::string &dir) {
  std::vector<std::string> names = *namesIn(dir);
  std::erase(names, ".lock");
  return names;
}

using Names = std::vector<std::string>;

int64_t stepLoaded(Holder &h, const std::string &path) {
  CheckpointState state;
  const Status status = load(h, path, state);
  EXPECT_TRUE(status.ok()) << status.str();
  return state.step;
}

} // namespace

TEST(Generations, TheNewestAreKept) {
  const std::string dir = temporaryFolder() + "/saved";
  auto source = holder(0);
  for (int64_t step = 1; step <= 5; ++step)
    ASSERT_TRUE(save(*source, dir + "/", {step, step}).ok());
  EXPECT_EQ(visible(dir), (Names{"latest", "step-3", "step-4", "step-5"}));
  EXPECT_EQ(stepLoaded(*source, dir), 5);
  EXPECT_EQ(stepLoaded(*source, dir + "/"), 5);
  EXPECT_EQ(stepLoaded(*source, dir + "/step-3"), 3);
  // A run that began again at 3: what it writes is the latest; what comes after
  // stays until it is replaced.
  ASSERT_TRUE(save(*source, dir, {4, 44}, 2).ok());
  EXPECT_EQ(visible(dir), (Names{"latest", "step-3", "step-4", "step-5"}));
  CheckpointState state;
  ASSERT_TRUE(load(*source, dir, state).ok());
  EXPECT_EQ(state.step, 4);
  EXPECT_EQ(state.samples, 44);
}

TEST(Generations, OneWriterOfSeveralGenerations) {
  const std::string dir = temporaryFolder() + "/saved";
  auto source = holder(1);
  auto writer = CheckpointWriter::open(source->plan, source->ranks, {dir, 2});
  ASSERT_TRUE(writer.ok()) << writer.status().str();
  for (int64_t step = 1; step <= 4; ++step) {
    source->fill(float(step));
    ASSERT_TRUE((*writer)->begin({step, step}).ok());
    source->fill(-1); // training goes on: the copy counts
  }
  ASSERT_TRUE((*writer)->wait().ok());
  EXPECT_EQ(visible(dir), (Names{"latest", "step-3", "step-4"}));
  auto target = holder(3), expected = holder(3);
  for (int64_t step : {3, 4}) {
    EXPECT_EQ(stepLoaded(*target, dir + "/step-" + std::to_string(step)), step);
    expected->fill(float(step));
    for (const char *name : kNames)
      EXPECT_EQ(target->gather(name), expected->gather(name)) << name;
  }
}

TEST(Generations, AFailureBesideTheStepsIsToldOnce) {
  const std::string dir = temporaryFolder() + "/saved";
  auto source = holder(0);
  auto writer = CheckpointWriter::open(source->plan, source->ranks, {dir});
  ASSERT_TRUE(writer.ok());
  fs::remove_all(dir);
  ASSERT_TRUE((*writer)->begin({1, 1}).ok());
  while (!(*writer)->failed())
    std::this_thread::yield();
  EXPECT_NE((*writer)->wait().str().find("cannot make the folder"),
            std::string::npos);
  EXPECT_TRUE((*writer)->wait().ok());
  EXPECT_FALSE((*writer)->failed());
}

TEST(Generations, TheSecondRunIsRefusedWithTheFirst) {
  const std::string dir = temporaryFolder() + "/saved";
  auto source = holder(0);
  auto first = CheckpointWriter::open(source->plan, source->ranks, {dir});
  ASSERT_TRUE(first.ok());
  auto second = CheckpointWriter::open(source->plan, source->ranks, {dir});
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(second.status().str().starts_with(
      "\"" + dir + "\" is being written by merak-run " + (*first)->run() +
      " (process "))
      << second.status().str();
  first->reset();
  EXPECT_TRUE(CheckpointWriter::open(source->plan, source->ranks, {dir}).ok());
}

TEST(Generations, StrangersStay) {
  const std::string base = temporaryFolder(), dir = base + "/saved";
  fs::create_directories(dir + "/step-7.old");
  fs::create_directories(base + "/saved.tmp");
  fs::create_directories(base + "/saved.old");
  const Names strangers = {
      "/step-7.old/a",  "/step-1.tmp",     "/letter.tmp",
      "/.saving-mine",  "/latest.tmp",     "/step-01",
      "/.removing-x-y", "/../saved.tmp/x", "/../saved.old/x"};
  for (const std::string &name : strangers)
    writeFile(dir + name, "dear");
  auto source = holder(0);
  for (int64_t step = 1; step <= 4; ++step)
    ASSERT_TRUE(save(*source, dir, {step, step}, 1).ok());
  for (const std::string &name : strangers)
    EXPECT_EQ(readFile(dir + name), "dear") << name;
  // A generation with something more in it is not removed.
  writeFile(dir + "/step-4/notes", "dear");
  ASSERT_TRUE(save(*source, dir, {5, 5}, 1).ok());
  EXPECT_EQ(readFile(dir + "/step-4/notes"), "dear");
  EXPECT_EQ(stepLoaded(*source, dir + "/step-4"), 4);
}

TEST(Generations, WhatIsInTheWayIsNotReplaced) {
  const std::string dir = temporaryFolder();
  auto source = holder(0);
  auto refused = [&](const std::string &name, const std::string &what) {
    EXPECT_EQ(save(*source, dir, {1, 1}).str(),
              "\"" + dir + "/" + name + "\" is there and " + what);
  };
  fs::create_directories(dir + "/step-1");
  writeFile(dir + "/step-1/letter", "dear");
  refused("step-1", "is not a checkpoint; it is not replaced");
  EXPECT_EQ(readFile(dir + "/step-1/letter"), "dear");
  fs::remove_all(dir + "/step-1");
  writeFile(dir + "/latest", "news");
  refused("latest", "is not ours; it is not replaced");
  EXPECT_EQ(readFile(dir + "/latest"), "news");
  fs::remove(dir + "/latest");
  fs::remove(dir + "/.lock");
  writeFile(dir + "/.lock", "mine");
  refused(".lock", "is no lock of ours");
  EXPECT_EQ(readFile(dir + "/.lock"), "mine");
}

TEST(Generations, LinksStayLinks) {
  const std::string base = temporaryFolder(), dir = base + "/link";
  fs::create_directories(base + "/real");
  fs::create_directory_symlink(base + "/real", dir);
  auto source = holder(0);
  ASSERT_TRUE(save(*source, dir, {1, 1}, 1).ok());
  EXPECT_TRUE(fs::is_symlink(dir));
  EXPECT_EQ(visible(base + "/real"), (Names{"latest", "step-1"}));
  // A generation behind a link is read, and neither removed nor replaced.
  fs::rename(base + "/real/step-1", base + "/kept");
  fs::create_directory_symlink(base + "/kept", dir + "/step-1");
  EXPECT_EQ(stepLoaded(*source, dir + "/step-1"), 1);
  ASSERT_TRUE(save(*source, dir, {2, 2}, 1).ok());
  EXPECT_TRUE(fs::is_symlink(dir + "/step-1"));
  EXPECT_TRUE(fs::exists(base + "/kept/index.json"));
  EXPECT_NE(save(*source, dir, {1, 1}, 1).str().find("it is not replaced"),
            std::string::npos);
}

TEST(Generations, WithoutLatestItIsTheNewest) {
  const std::string dir = temporaryFolder() + "/saved";
  auto source = holder(0);
  for (int64_t step : {1, 2, 10})
    ASSERT_TRUE(save(*source, dir, {step, step}).ok());
  fs::remove(dir + "/latest");
  EXPECT_EQ(stepLoaded(*source, dir), 10);
  ASSERT_TRUE(save(*source, dir, {11, 11}).ok());
  fs::remove_all(dir + "/step-11");
  CheckpointState state;
  ASSERT_TRUE(load(*source, dir, state).ok());
  EXPECT_EQ(state.step, 10);
  EXPECT_EQ(state.note, "\"" + dir +
                            "/latest\" names step-11, which is not "
                            "there: taking step-10");
  writeFile(dir + "/latest", "step-2 0123456789abcdef\n");
  EXPECT_EQ(load(*source, dir, state).str(),
            "\"" + dir +
                "/latest\" is damaged or not ours: give one "
                "generation, \"" +
                dir + "/step-N\"");
}

TEST(Generations, NamesOfSteps) {
  EXPECT_EQ(stepOfName("step-0"), 0);
  EXPECT_EQ(stepOfName("step-120"), 120);
  for (const char *name : {"step-", "step-01", "step-1x", "step--1", "Step-1",
                           "step-99999999999999999999", "1"})
    EXPECT_FALSE(stepOfName(name).has_value()) << name;
}

} // namespace merak::runtime::test
