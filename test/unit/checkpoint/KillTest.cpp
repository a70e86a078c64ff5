// A save that ends before any of its system calls, as by a kill, or in which
// one of them fails: the newest whole generation loads, and the next run saves.
#include "runtime/checkpoint/CheckpointWriter.h"
#include "test/unit/checkpoint/Layouts.h"

#include <filesystem>
#include <functional>
#include <set>

namespace merak::runtime::test {
namespace {

// Does so many calls and no more; or all but one.
class InterruptedFiles : public Files {
public:
  explicit InterruptedFiles(int64_t calls, bool once = false)
      : left_(calls), once_(once) {}
  std::vector<std::pair<Call, std::string>> done;
  bool interrupted = false;

protected:
  Status before(Call call, const std::string &path) override {
    if (left_ == 0 && !(once_ && interrupted)) {
      interrupted = true;
      return Status::error("interrupted");
    }
    left_ -= left_ > 0;
    done.emplace_back(call, path);
    return {};
  }

private:
  int64_t left_;
  bool once_;
};

struct Scene {
  const char *name;
  std::vector<int64_t> before; // generations, with values of 100 times the step
  int64_t step;                // that is saved, with other values
  int keep;
};

const Scene kScenes[] = {
    {"the first", {}, 1, 3},
    {"one more", {1, 2}, 3, 3},
    {"one more, the oldest goes", {1, 2}, 3, 2},
    {"only the newest stays", {1, 2}, 3, 1},
    {"the newest again", {1, 2}, 2, 3},
    {"an older one again", {1, 2, 3}, 2, 3},
};

constexpr float kNew = 7000;

// Whether the ranks hold what was filled with `base`.
bool holds(Holder &h, float base) {
  auto expected = holder(1);
  expected->fill(base);
  for (const char *name : kNames)
    if (h.gather(name) != expected->gather(name))
      return false;
  return true;
}

void prepare(const Scene &scene, const std::string &dir) {
  auto source = holder(1);
  for (int64_t step : scene.before) {
    source->fill(float(100 * step));
    ASSERT_TRUE(save(*source, dir, {step, 8 * step}).ok());
  }
}

// What the folder must give, whatever happened in it.
void expectNewest(const Scene &scene, const std::string &dir, bool finished) {
  auto target = holder(2);
  CheckpointState state;
  const Status status = load(*target, dir, state);
  if (scene.before.empty() && !finished && !status.ok())
    return; // there is none yet
  ASSERT_TRUE(status.ok()) << status.str();
  const bool isNew = state.step == scene.step && holds(*target, kNew);
  const bool isOld = !scene.before.empty() &&
                     state.step == scene.before.back() &&
                     holds(*target, float(100 * state.step));
  EXPECT_TRUE(finished ? isNew : isNew || isOld) << "step " << state.step;
}

// The next run saves there, and nothing is left of the other.
void expectNextSaves(const std::string &dir) {
  auto source = holder(0);
  source->fill(9000);
  const Status saved = save(*source, dir, {9, 72});
  ASSERT_TRUE(saved.ok()) << saved.str();
  CheckpointState state;
  ASSERT_TRUE(load(*source, dir, state).ok());
  EXPECT_EQ(state.step, 9);
  const std::vector<std::string> names = *namesIn(dir);
  for (const std::string &name : names)
    EXPECT_TRUE(name == ".lock" || name == "latest" || stepOfName(name))
        << name;
}

void interruptAtEachCall(bool once) {
  int64_t interruptions = 0;
  for (const Scene &scene : kScenes)
    for (int64_t calls = 0;; ++calls) {
      SCOPED_TRACE(std::string(scene.name) + ", after " +
                   std::to_string(calls) + " calls");
      const std::string dir = temporaryFolder() + "/saved";
      prepare(scene, dir);
      InterruptedFiles files(calls, once);
      auto source = holder(1);
      source->fill(kNew);
      const Status status =
          save(*source, dir, {scene.step, 8 * scene.step}, scene.keep, files);
      EXPECT_EQ(status.ok(), !files.interrupted) << status.str();
      if (std::filesystem::exists(dir) || status.ok())
        expectNewest(scene, dir, status.ok());
      expectNextSaves(dir);
      if (!files.interrupted)
        break;
      ++interruptions;
    }
  EXPECT_GT(interruptions, 100);
  testing::Test::RecordProperty("interruptions", std::to_string(interruptions));
}

} // namespace

TEST(Kill, BetweenAnyTwoCallsTheNewestGenerationLoads) {
  interruptAtEachCall(false);
}

TEST(Kill, AfterAnyCallThatFailsTheNewestGenerationLoads) {
  interruptAtEachCall(true);
}

// After a loss of power too: what is renamed lies on the disk already.
TEST(Kill, EverythingIsSyncedBeforeItsName) {
  using Call = Files::Call;
  for (const Scene &scene : kScenes) {
    SCOPED_TRACE(scene.name);
    const std::string dir = temporaryFolder() + "/saved";
    prepare(scene, dir);
    InterruptedFiles files(-1);
    auto source = holder(1);
    ASSERT_TRUE(save(*source, dir, {scene.step, 8}, scene.keep, files).ok());
    std::set<std::string> dirty; // files with bytes, folders with names
    int renames = 0;
    for (const auto &[call, path] : files.done) {
      const std::string folder = std::filesystem::path(path).parent_path();
      switch (call) {
      case Call::create:
        dirty.insert(path);
        dirty.insert(folder);
        break;
      case Call::write:
        dirty.insert(path);
        break;
      case Call::sync:
      case Call::syncFolder:
        dirty.erase(path);
        break;
      case Call::rename:
      case Call::exchange:
        ++renames;
        // Of `latest` only its folder: the name under which it was made.
        if (path.ends_with("/latest"))
          dirty.erase(folder);
        EXPECT_EQ(dirty.size(), 0u)
            << path << " while " << *dirty.begin() << " is not on the disk";
        dirty.insert(folder);
        break;
      case Call::remove:
        EXPECT_FALSE(dirty.contains(dir)) << path;
        break;
      default:
        break;
      }
    }
    EXPECT_FALSE(dirty.contains(dir));
    EXPECT_GE(renames, 2);
  }
}

} // namespace merak::runtime::test
