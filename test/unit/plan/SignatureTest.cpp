// Plans whose kernels may be loaded: signed by this user, unchanged since.
#include "runtime/plan/Signature.h"
#include "runtime/trust/UserKey.h"
#include "test/unit/plan/PlanBuilder.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace merak {
namespace {

class Signature : public testing::Test {
protected:
  void SetUp() override {
    root = fs::temp_directory_path() /
           ("merak-signature-test-" + std::to_string(::getpid()));
    fs::remove_all(root);
    fs::create_directories(root);
    dir = (root / "out.plan").string();
    useKey("mine");
    save(true);
  }
  void TearDown() override { fs::remove_all(root); }

  void useKey(const std::string &name) {
    setenv("MERAK_KEY", (root / name).c_str(), 1);
  }
  void save(bool kernels, const std::string &code = "machine code") {
    LoadedPlan sample = plantest::samplePlan();
    sample.file.set_constants("constants.bin");
    std::vector<PlanExtra> extras = {{"constants.bin", "", "constants"}};
    if (kernels) {
      sample.file.set_kernels("kernels.so");
      extras.push_back({"kernels.so", "", code});
    }
    Status saved = savePlan(dir, sample.file, sample.programs, extras);
    ASSERT_TRUE(saved.ok()) << saved.str();
  }
  std::string read(const std::string &name) {
    std::ifstream in(dir + "/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string &name, const std::string &bytes) {
    std::ofstream(dir + "/" + name, std::ios::binary) << bytes;
  }
  std::string error(bool trust = false) {
    return loadPlanToRun(dir, trust).status().str();
  }

  const std::string remedy = "compile the model here, or give --trust-plan if "
                             "you trust whoever made the plan";
  fs::path root;
  std::string dir;
};

TEST_F(Signature, OnesOwnPlanRuns) {
  EXPECT_EQ(error(), "");
  // Wherever it is moved or copied.
  fs::copy(dir, root / "copy.plan");
  EXPECT_TRUE(loadPlanToRun((root / "copy.plan").string(), false).ok());
}

TEST_F(Signature, ThePlanOfAnotherUserDoesNot) {
  useKey("yours");
  EXPECT_EQ(error(), dir +
                         ": its kernels are machine code that was not signed "
                         "with this user's key \"" +
                         (root / "yours").string() +
                         "\", or the plan was changed since: " + remedy);
  EXPECT_EQ(error(true), "");
  // Whoever only reads a plan loads no code.
  EXPECT_TRUE(loadPlan(dir).ok());
}

TEST_F(Signature, AnUnsignedPlanDoesNot) {
  fs::remove(dir + "/signature");
  EXPECT_EQ(error(),
            dir +
                ": its kernels are machine code that nobody signed: " + remedy);
  EXPECT_EQ(error(true), "");
}

// A signature of one plan is none of another, although all checksums are right.
TEST_F(Signature, NothingOfAPlanCanBeExchanged) {
  const std::string mine = read("signature");
  ASSERT_EQ(mine.size(), 65u);
  save(true, "other code");
  const std::string other = read("signature");
  EXPECT_NE(other, mine);
  for (const std::string &line : {mine, std::string(), other.substr(0, 63),
                                  other + "0", std::string(64, '0') + "\n"}) {
    write("signature", line);
    EXPECT_NE(error().find("was not signed"), std::string::npos) << line;
  }
  write("signature", std::string(5000, '0'));
  EXPECT_EQ(error(),
            dir + "/signature: expected at most 4096 bytes, found more");
  write("signature", other);
  EXPECT_EQ(error(), "");
}

TEST_F(Signature, APlanWithoutKernelsNeedsNone) {
  save(false);
  fs::remove(dir + "/signature");
  EXPECT_EQ(error(), "");
}

// Without a key plans are written all the same.
TEST_F(Signature, WithoutAKeyAPlanIsUnsigned) {
  setenv("MERAK_KEY", "/proc/no/such/key", 1);
  save(true);
  EXPECT_EQ(read("signature"), "");
  EXPECT_NE(error().find("nobody signed"), std::string::npos);
  EXPECT_EQ(error(true), "");
}

} // namespace
} // namespace merak
